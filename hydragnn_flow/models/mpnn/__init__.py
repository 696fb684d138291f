"""Message-passing types: one file each, one protocol (:class:`MessagePassing`).

A new type is a file beside these and a line in :data:`MPNN_TYPES`.
"""

from hydragnn_flow.models.mpnn.base import MessagePassing, Properties, TrainingFacts
from hydragnn_flow.models.mpnn.cgcnn import CGCNN
from hydragnn_flow.models.mpnn.dimenet import DimeNet
from hydragnn_flow.models.mpnn.egnn import EGNN
from hydragnn_flow.models.mpnn.gat import GAT
from hydragnn_flow.models.mpnn.gin import GIN
from hydragnn_flow.models.mpnn.mace import MACE
from hydragnn_flow.models.mpnn.mfc import MFC
from hydragnn_flow.models.mpnn.painn import PAINN
from hydragnn_flow.models.mpnn.pna import PNA
from hydragnn_flow.models.mpnn.pnaeq import PNAEq
from hydragnn_flow.models.mpnn.pnaplus import PNAPlus
from hydragnn_flow.models.mpnn.sage import SAGE
from hydragnn_flow.models.mpnn.schnet import SchNet

MPNN_TYPES: dict[str, type[MessagePassing]] = {
    "SchNet": SchNet,
    "EGNN": EGNN,
    "PAINN": PAINN,
    "PNAEq": PNAEq,
    "DimeNet": DimeNet,
    "PNA": PNA,
    "PNAPlus": PNAPlus,
    "CGCNN": CGCNN,
    "GIN": GIN,
    "GAT": GAT,
    "SAGE": SAGE,
    "MACE": MACE,
    "MFC": MFC,
}
"""Types by HydraGNN's names, `Architecture.mpnn_type`."""

PROPERTIES: dict[str, Properties] = {name: kind.properties for name, kind in MPNN_TYPES.items()}
"""What each type promises."""

__all__ = ["MPNN_TYPES", "PROPERTIES", "MessagePassing", "Properties", "TrainingFacts"]
