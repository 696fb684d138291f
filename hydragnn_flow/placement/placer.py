"""Which segments run together on a GCD."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from hydragnn_flow.placement.cost import Estimate, Gcd

T = TypeVar("T")

# A little over full: two half-busy segments rarely wait for each other at the same moment.
FULL = 1.05
# Part of a GCD's memory that estimates may fill; they are estimates.
MEMORY_SHARE = 0.9
# A bundle ends with its longest segment, so segments share a GCD only with others about as long.
LONGEST_TO_SHORTEST = 3.0


@dataclass(frozen=True)
class Placeable(Generic[T]):
    """A segment ready to run, and what it is expected to take."""

    item: T
    estimate: Estimate


def next_bundle(
    ready: Sequence[Placeable[T]], gcd: Gcd, free_gcds: int
) -> tuple[list[Placeable[T]], list[Placeable[T]]]:
    """Choose what the next free GCD runs.

    The longest segment goes first (Graham, SIAM J. Appl. Math. 17, 416 (1969)). Others join it
    while there are more segments than free GCDs, and while memory, computing time and similar
    length allow; a segment that fills a GCD keeps it to itself.

    Parameters
    ----------
    ready
        Segments that could run now.
    gcd
        The GCD, as all others of the site.
    free_gcds
        GCDs with nothing to do, this one included.

    Returns
    -------
    bundle, rest
        The segments to run side by side, and those left over.

    Raises
    ------
    ValueError
        If nothing is ready.
    """
    if not ready:
        raise ValueError("no segment is ready")
    queue = sorted(ready, key=lambda p: -p.estimate.seconds)
    bundle, rest = queue[:1], queue[1:]
    spare = len(rest) - (free_gcds - 1)
    shortest = bundle[0].estimate.seconds / LONGEST_TO_SHORTEST
    for candidate in list(rest):
        if spare <= 0 or len(bundle) == gcd.share:
            break
        together = [*bundle, candidate]
        if (
            candidate.estimate.seconds >= shortest
            and sum(p.estimate.busy for p in together) <= FULL
            and sum(p.estimate.memory_gib for p in together) <= MEMORY_SHARE * gcd.memory_gib
        ):
            bundle.append(candidate)
            rest.remove(candidate)
            spare -= 1
    return bundle, rest


def too_large(estimate: Estimate, gcd: Gcd) -> bool:
    """Whether a segment is expected not to fit the memory of a GCD even alone."""
    return estimate.memory_gib > gcd.memory_gib
