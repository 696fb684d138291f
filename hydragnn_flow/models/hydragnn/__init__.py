"""Layers as HydraGNN has them, to go on with weights that HydraGNN has trained.

They are types like a user's own: ``mpnn_type: hydragnn_flow.models.hydragnn:EGNN``, which
`start_from` writes where it reads a checkpoint of HydraGNN's. A layer replaces the features of the
atoms; the first one reads the input columns, as numbers. HydraGNN's normalisation over the batch is
what it is when HydraGNN predicts, a scale and a shift of each feature, and stays that in training.
Modules have the names of HydraGNN's, so that its weights have the same.

Lengths respect the cell. A search that begins with random weights is better served by the types of
``hydragnn_flow/models/mpnn``; docs/models.md says in what these differ.
"""

from hydragnn_flow.models.hydragnn.attention import GAT
from hydragnn_flow.models.hydragnn.connections import CGCNN, GIN, MFC, SAGE
from hydragnn_flow.models.hydragnn.lengths import EGNN, SchNet
from hydragnn_flow.models.hydragnn.pna import PNA, PNAPlus
from hydragnn_flow.models.hydragnn.vectors import PAINN, PNAEq

__all__ = [
    "CGCNN",
    "EGNN",
    "GAT",
    "GIN",
    "MFC",
    "PAINN",
    "PNA",
    "SAGE",
    "PNAEq",
    "PNAPlus",
    "SchNet",
]
