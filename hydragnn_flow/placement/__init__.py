"""Cost model and placer: what a segment takes, and where it runs. Neither torch nor Parsl."""

from hydragnn_flow.placement.cost import CostModel, Estimate, Gcd, Sizes, Taken, Work
from hydragnn_flow.placement.members import Wave, plan_members
from hydragnn_flow.placement.placer import Filling, Placeable, next_bundles, too_large
from hydragnn_flow.placement.weighing import Weighing

__all__ = [
    "CostModel",
    "Estimate",
    "Filling",
    "Gcd",
    "Placeable",
    "Sizes",
    "Taken",
    "Wave",
    "Weighing",
    "Work",
    "next_bundles",
    "plan_members",
    "too_large",
]
