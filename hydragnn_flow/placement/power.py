"""Power of a machine, from the counted energy of its segments and nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from hydragnn_flow.placement.cost_model import Experience


@dataclass(frozen=True)
class Power:
    """Power of the GCDs that run segments, and of the rest of their nodes."""

    gcd_watts: float
    """Mean power of a GCD that runs segments [W]."""
    segments: int
    """Number of measured segments from which ``gcd_watts`` follows."""
    rest_watts: float | None = None
    """Power of a node outside its segments, idle or not [W]; None if nothing has counted it."""

    def joules(self, gcd_seconds: float, node_seconds: float) -> float | None:
        """Compute the energy of nodes [J]; None if their power outside segments is unknown.

        ``gcd_seconds`` is the busy time summed over GCDs, ``node_seconds`` the time summed over
        nodes [s].
        """
        if self.rest_watts is None:
            return None
        return gcd_seconds * self.gcd_watts + node_seconds * self.rest_watts


def measured_power(experiences: Iterable[Experience]) -> Power | None:
    """Compute the power from segments with counted energy; None if there are none.

    A segment that shared its GCD counts with its share of the GCD's energy and time.

    Parameters
    ----------
    experiences
        Measurements on one machine; a segment that several of them contain counts once.
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
