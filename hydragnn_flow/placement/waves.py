"""How many GCDs each ensemble member gets, which share a node and which have several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Wave:
    """Members that run at the same time on one node, or one member on several."""

    members: tuple[int, ...]
    """Positions in the list of costs."""
    widths: tuple[int, ...]
    """GCDs of each."""
    nodes: int = 1


def plan_members(
    seconds: Sequence[float], nodes: int, gcds_per_node: int, widest: Sequence[int]
) -> list[Wave]:
    """Give members GCDs in proportion to their cost, so that they end together.

    Members are dealt to groups of equal cost, longest first; a group shares one node. Within it
    every member has one GCD and each further GCD goes to the member that would end last. If there
    are more nodes than members, each further node goes to the member that would end last.

    Parameters
    ----------
    seconds
        Expected time of each member on one GCD [s].
    nodes
        Nodes of the site.
    gcds_per_node
        GCDs of a node.
    widest
        Largest useful number of GCDs of each member, at least one.

    Returns
    -------
    list of Wave
        Every member in exactly one wave; waves are independent and may run in any order. All nodes
        of a member on several nodes but the last are full.
    """
    n_waves = max(min(nodes, len(seconds)), -(-len(seconds) // gcds_per_node))
    groups: list[list[int]] = [[] for _ in range(n_waves)]
    for member in sorted(range(len(seconds)), key=lambda m: -seconds[m]):
        open_groups = [group for group in groups if len(group) < gcds_per_node]
        min(open_groups, key=lambda group: sum(seconds[m] for m in group)).append(member)
    waves = [
        Wave(
            tuple(group),
            _widths([seconds[m] for m in group], [widest[m] for m in group], gcds_per_node),
        )
        for group in groups
        if group
    ]
    for _ in range(nodes - len(waves)):
        growing = [w for w in waves if len(w.members) == 1 and w.widths[0] < widest[w.members[0]]]
        if not growing:
            break
        last = max(growing, key=lambda wave: seconds[wave.members[0]] / wave.widths[0])
        (member,) = last.members
        width = min(widest[member], (last.nodes + 1) * gcds_per_node)
        waves[waves.index(last)] = Wave(last.members, (width,), last.nodes + 1)
    return waves


def _widths(seconds: Sequence[float], widest: Sequence[int], gcds: int) -> tuple[int, ...]:
    widths = [1] * len(seconds)
    for _ in range(gcds - sum(widths)):
        growing = [i for i, most in enumerate(widest) if widths[i] < most]
        if not growing:
            break
        widths[max(growing, key=lambda i: seconds[i] / widths[i])] += 1
    return tuple(widths)
