"""Cost model and placer: the expected cost of segments, and the GCDs they run on.

A segment is one stretch of a trial's or member's training, sent as one job. A search trains
thousands of networks of different sizes. To pack them well on GCDs, their time and memory are
predicted before they run, and finished segments correct the predictions.
"""

from hydragnn_flow.placement.cost_model import (
    CostModel,
    Estimate,
    Experience,
    Gcd,
    Sharing,
    Sizes,
    Taken,
    Work,
)
from hydragnn_flow.placement.fleet import (
    MEMORY_FRACTION,
    Fleet,
    Host,
    Power,
    Resident,
    Spot,
    measured_power,
)
from hydragnn_flow.placement.interpolation import WorkInterpolation
from hydragnn_flow.placement.placer import Placeable, Placement, Room, place, too_large
from hydragnn_flow.placement.shapes import (
    SURELY_BEFORE,
    to_part,
    to_place_anew,
    useful_widths,
    widened,
)

__all__ = [
    "MEMORY_FRACTION",
    "SURELY_BEFORE",
    "CostModel",
    "Estimate",
    "Experience",
    "Fleet",
    "Gcd",
    "Host",
    "Placeable",
    "Placement",
    "Power",
    "Resident",
    "Room",
    "Sharing",
    "Sizes",
    "Spot",
    "Taken",
    "Work",
    "WorkInterpolation",
    "measured_power",
    "place",
    "to_part",
    "to_place_anew",
    "too_large",
    "useful_widths",
    "widened",
]
