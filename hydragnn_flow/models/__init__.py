"""Networks of HydraGNN's architecture, built from its JSON, and the cost of a training step.

The layers are this package's own. Energies are smooth and extensive. Predictions do not depend on
the rest of the batch. Every message-passing type respects periodic cells. Second derivatives are
cheap enough to train on forces. HydraGNN's own layers lack one or another of these.
"""

from hydragnn_flow.models.build_encoder import build_model
from hydragnn_flow.models.cost import NetworkCost, network_cost, probed_cost
from hydragnn_flow.models.engine import EngineModel
from hydragnn_flow.models.geometry import STRESS
from hydragnn_flow.models.heads import NOISE_SUFFIX
from hydragnn_flow.models.model import HydraModel, Model, PropertyModel
from hydragnn_flow.models.potential import Potential, PotentialModel

__all__ = [
    "NOISE_SUFFIX",
    "STRESS",
    "EngineModel",
    "HydraModel",
    "Model",
    "NetworkCost",
    "Potential",
    "PotentialModel",
    "PropertyModel",
    "build_model",
    "network_cost",
    "probed_cost",
]
