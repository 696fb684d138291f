"""Checks of the facts of a site for contradictions, when it is loaded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.options import cores_in

if TYPE_CHECKING:
    from hydragnn_flow.execution.site import Node, Site
    from hydragnn_flow.placement import Gcd

# Possible numbers of hardware threads per core: a group may name that many times `cores_per_gcd`.
_THREADS_OF_A_CORE = (1, 2, 4)


def check_site(site: Site, source: object, gcd_key: str = "node.gcd") -> None:
    """Refuse a site whose facts contradict each other or are impossible.

    Parameters
    ----------
    site
        Site as returned by its file.
    source
        File with the facts, for the message.
    gcd_key
        Key of the facts of a GCD in that file: `node` in a `site.yaml`.

    Raises
    ------
    InputError
        With the first contradiction; the message names file, key and remedy.
    """
    for said in (*_of_blocks(site), *_of_gcds(site.node, gcd_key), *_of_cores(site.node)):
        raise InputError(f"{source}: {said}")


def _of_blocks(site: Site) -> Iterator[str]:
    for name in ("nodes", "blocks"):
        if (count := getattr(site, name)) < 1:
            yield f"{name}: must be at least 1, got {count}; correct it"
            return
    if site.nodes % site.blocks:
        yield (
            f"nodes: {site.nodes} is not a multiple of the {site.blocks} blocks; give "
            f"{site.nodes - site.nodes % site.blocks or site.blocks} nodes or other blocks"
        )


def _of_gcds(node: Node, key: str) -> Iterator[str]:
    if not node.gcds:
        yield "node.gcds: the node has no GCD; name at least one"
    name, times = Counter(node.gcds).most_common(1)[0] if node.gcds else ("", 1)
    if times > 1:
        yield f"node.gcds: {name!r} is there {times} times; give each GCD a name of its own"
    gcd: Gcd = node.gcd
    for fact in ("memory_gib", "flops", "bandwidth", "launch_seconds"):
        if not 0 < (value := getattr(gcd, fact)) < math.inf:
            yield f"{key}.{fact}: must be above 0 and finite, got {value:g}; correct it"
    if not 0 <= gcd.process_gib < gcd.memory_gib:
        yield (
            f"{key}.memory_gib: {gcd.memory_gib:g} GiB leave nothing beside the "
            f"{gcd.process_gib:g} GiB that a process takes before it has a model; give more memory "
            "or fewer GCDs"
        )
    if gcd.most_segments < 1:
        yield f"{key}.most_segments: must be at least 1, got {gcd.most_segments}; correct it"


def _of_cores(node: Node) -> Iterator[str]:
    if node.cores_per_gcd < 1:
        yield f"node.cores_per_gcd: must be at least 1, got {node.cores_per_gcd}; correct it"
    have, gcds = node.cores_of_a_node, len(node.gcds)
    if have is not None and (need := gcds * node.cores_per_gcd) > have:
        yield (
            f"node.cores_per_gcd: {gcds} GCDs of {node.cores_per_gcd} cores need {need}, and a "
            f"node has {have}; give at most {have // gcds} for each GCD"
            if have >= gcds
            else f"node.gcds: {gcds} GCDs need a core each, and a node has {have}; correct one"
        )
    if node.cores and len(node.cores) != gcds:
        yield f"node.cores: {len(node.cores)} groups for {gcds} GCDs; give one each"
    groups: list[tuple[str, set[int]]] = []
    for group in node.cores:
        try:
            groups.append((group, cores_in(group)))
        except ValueError as error:
            yield f"node.{error}; correct it"
            return
    for group, cores in groups:
        if len(cores) not in [node.cores_per_gcd * threads for threads in _THREADS_OF_A_CORE]:
            yield (
                f"node.cores: {group!r} names {len(cores)} for a cores_per_gcd of "
                f"{node.cores_per_gcd}; make them agree"
            )
    for (one, first), (other, second) in combinations(groups, 2):
        if both := first & second:
            yield (
                f"node.cores: {one!r} and {other!r} both name core {min(both)}; give each GCD "
                "cores of its own"
            )
