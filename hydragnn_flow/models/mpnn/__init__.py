"""Message-passing types: one file each, one protocol (:class:`MessagePassing`).

A new type is a file beside these and a line in :data:`MPNN_TYPES`.
"""

from hydragnn_flow.models.mpnn.base import MessagePassing, Properties, TrainingFacts
from hydragnn_flow.models.mpnn.egnn import EGNN
from hydragnn_flow.models.mpnn.pna import PNA
from hydragnn_flow.models.mpnn.schnet import SchNet

MPNN_TYPES: dict[str, type[MessagePassing]] = {"SchNet": SchNet, "EGNN": EGNN, "PNA": PNA}
"""Types by HydraGNN's names, `Architecture.mpnn_type`."""

PROPERTIES: dict[str, Properties] = {name: kind.properties for name, kind in MPNN_TYPES.items()}
"""What each type promises."""

__all__ = ["MPNN_TYPES", "PROPERTIES", "MessagePassing", "Properties", "TrainingFacts"]
