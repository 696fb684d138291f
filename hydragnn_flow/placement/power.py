"""Power of a machine, from the counted energy of its segments and nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from hydragnn_flow.placement.cost_model import Experience


@dataclass(frozen=True)
class Power:
    """Power of busy GCDs, and of the rest of their nodes."""

    gcd_watts: float
    """Power of a GCD with segments [W]."""
    segments: int
    """Number of segments with known energy, from which that power follows."""
    rest_watts: float | None = None
    """Power of a node outside its segments, idle or not [W]; None if nothing has counted it."""

    def joules(self, gcd_seconds: float, node_seconds: float) -> float | None:
        """Compute the energy of nodes [J]; None if that outside segments is unknown."""
        if self.rest_watts is None:
            return None
        return gcd_seconds * self.gcd_watts + node_seconds * self.rest_watts


def measured_power(experiences: Iterable[Experience]) -> Power | None:
    """Compute the power from segments whose energy was counted; None if there are none.

    A co-located segment counts its share of the energy and of the time of its GCD.

    Parameters
    ----------
    experiences
        Experiences of one machine; an observation that several contain counts once.
    """
    taken = {}
    rest: list[float] = []
    for experience in experiences:
        for one in chain(*experience.segments.values(), *experience.packs.values()):
            if one.is_sound and one.joules is not None and 0 <= one.joules < math.inf:
                taken[one] = one.joules, one.seconds * one.width / one.together
        if experience.rest_watts is not None:
            rest.append(experience.rest_watts)
    if not taken:
        return None
    joules, seconds = map(sum, zip(*taken.values(), strict=True))
    return Power(joules / seconds, len(taken), rest[-1] if rest else None)
