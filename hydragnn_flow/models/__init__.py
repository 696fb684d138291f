"""HydraGNN's architecture, built from its JSON, and the cost of a training step."""

from hydragnn_flow.models.build import build_model
from hydragnn_flow.models.cost import NetworkCost, network_cost
from hydragnn_flow.models.heads import NOISE_SUFFIX
from hydragnn_flow.models.model import HydraModel, PropertyModel
from hydragnn_flow.models.potential import PotentialModel
from hydragnn_flow.models.stress import STRESS

__all__ = [
    "NOISE_SUFFIX",
    "STRESS",
    "HydraModel",
    "NetworkCost",
    "PotentialModel",
    "PropertyModel",
    "build_model",
    "network_cost",
]
