"""Power of a machine, as the energy of its segments and nodes was counted."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from hydragnn_flow.placement.cost_model import Experience


@dataclass(frozen=True)
class Power:
    """What GCDs at work draw, and the rest of their nodes."""

    gcd_watts: float
    """Of a GCD with segments [W]."""
    segments: int
    """Segments whose energy is known, from which that follows."""
    rest_watts: float | None = None
    """Of a node, beside the segments on it, idle or not [W]; None if nothing has counted it."""

    def joules(self, gcd_seconds: float, node_seconds: float) -> float | None:
        """Energy of nodes [J]; None if that of a part of them is not known."""
        if self.rest_watts is None:
            return None
        return gcd_seconds * self.gcd_watts + node_seconds * self.rest_watts


def measured_power(experiences: Iterable[Experience]) -> Power | None:
    """The power that follows from segments whose energy was counted; None if there are none.

    A segment that shared its GCD was charged with a part of its energy, for a part of its time.

    Parameters
    ----------
    experiences
        Of one machine. What several of them have seen counts once.
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
