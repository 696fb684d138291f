"""The HydraGNN architecture, built from HydraGNN's JSON; and what a step of it costs."""

from hydragnn_flow.models.build import build_model
from hydragnn_flow.models.cost import NetworkCost, network_cost
from hydragnn_flow.models.heads import NOISE_SUFFIX
from hydragnn_flow.models.model import HydraModel, PropertyModel
from hydragnn_flow.models.mpnn import PROPERTIES
from hydragnn_flow.models.potential import PotentialModel
from hydragnn_flow.models.stress import STRESS

__all__ = [
    "NOISE_SUFFIX",
    "PROPERTIES",
    "STRESS",
    "HydraModel",
    "NetworkCost",
    "PotentialModel",
    "PropertyModel",
    "build_model",
    "network_cost",
]
