"""Cost model and placer: the expected cost of segments, and the GCDs they run on."""

from hydragnn_flow.placement.cost_model import CostModel, Estimate, Gcd, Sizes, Taken, Work
from hydragnn_flow.placement.interpolation import WorkInterpolation
from hydragnn_flow.placement.placer import Filling, Placeable, next_bundles, too_large
from hydragnn_flow.placement.waves import Wave, plan_members

__all__ = [
    "CostModel",
    "Estimate",
    "Filling",
    "Gcd",
    "Placeable",
    "Sizes",
    "Taken",
    "Wave",
    "Work",
    "WorkInterpolation",
    "next_bundles",
    "plan_members",
    "too_large",
]
