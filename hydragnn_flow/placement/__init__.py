"""Cost model and placer: the expected cost of segments, and the GCDs they run on."""

from hydragnn_flow.placement.cost_model import (
    CostModel,
    Estimate,
    Experience,
    Gcd,
    Sizes,
    Taken,
    Work,
)
from hydragnn_flow.placement.fleet import Fleet, Host, Resident, Spot
from hydragnn_flow.placement.interpolation import WorkInterpolation
from hydragnn_flow.placement.placer import Placeable, Placement, place, too_large
from hydragnn_flow.placement.room import Room, room_of
from hydragnn_flow.placement.waves import Wave, plan_members

__all__ = [
    "CostModel",
    "Estimate",
    "Experience",
    "Fleet",
    "Gcd",
    "Host",
    "Placeable",
    "Placement",
    "Resident",
    "Room",
    "Sizes",
    "Spot",
    "Taken",
    "Wave",
    "Work",
    "WorkInterpolation",
    "place",
    "plan_members",
    "room_of",
    "too_large",
]
