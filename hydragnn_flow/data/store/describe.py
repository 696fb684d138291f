"""Manifest computed from the content of the shards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hydragnn_flow.config.sources import TRAIN
from hydragnn_flow.data.neighbours import Truncation
from hydragnn_flow.data.store.manifest import (
    Dtypes,
    Key,
    Manifest,
    Shard,
    SplitSize,
    Target,
)
from hydragnn_flow.data.store.statistics import Accumulator
from hydragnn_flow.errors import InputError

USUAL_TARGETS: dict[str, Literal["graph", "node"]] = {"energy": "graph", "forces": "node"}


@dataclass(frozen=True)
class Content:
    """Shards (BP5 files) of a store, with the keys and the statistics of their graphs."""

    shards: list[Shard]
    keys: dict[str, Key]
    statistics: Accumulator


@dataclass(frozen=True)
class Description:
    """Properties of a store that its graphs do not contain, such as units and cutoff."""

    targets: Mapping[str, Target] | None = None
    """Keys that are labels; by default ``energy`` and ``forces`` if the graphs have them."""
    units: Mapping[str, str] | None = None
    """Units by key, also of the default targets; given ``targets`` have their own unit."""
    cutoff: float | None = None
    max_neighbours: int | None = None
    truncation: Truncation | None = None
    """Neighbours that the edges leave out; None if they were not counted."""
    node_features: Sequence[str] | None = None
    """Names of the columns of ``x``. By default they are ``feature_0``, ``feature_1``, …; the first
    is ``atomic_number`` if all its values can be atomic numbers."""
    branch_names: Sequence[str] = ()
    """Name of each branch, from branch 0 on; empty if branches have no names."""
    provenance: Mapping[str, Any] | None = None
    references: Sequence[Mapping[int, float] | Literal["isolated"]] = ()
    """Reference energy by atomic number, of each data set; ``isolated`` for those of isolated
    atoms. Empty if they are fitted."""


def find_targets(keys: Mapping[str, Key], described: Description) -> dict[str, Target]:
    """Return the targets (labelled quantities) of a store by name.

    They are those of the description, or else ``energy`` and ``forces`` if these are among the
    keys.

    Raises
    ------
    InputError
        If a target is not among the keys or does not match its description.
    """
    if described.targets is None:
        units = described.units or {}
        return {
            name: Target(level=level, dim=_size(keys[name], level), unit=units.get(name, ""))
            for name, level in USUAL_TARGETS.items()
            if name in keys
        }
    for name, target in described.targets.items():
        _check_target(name, target, keys)
    return dict(described.targets)


def make_manifest(content: Content, described: Description, dtypes: Dtypes) -> Manifest:
    """Compute a store's manifest (its table of contents) from its shards and description.

    Raises
    ------
    InputError
        If a target is not among the keys or does not match its description.
    """
    targets = find_targets(content.keys, described)
    units = dict(described.units or {})
    units |= {name: target.unit for name, target in targets.items() if target.unit}
    elements = content.statistics.elements
    names = described.node_features
    if names is None:
        width = content.keys["x"].shape[0]
        names = [f"feature_{i}" for i in range(width)]
        if elements:
            names[0] = "atomic_number"
    splits: dict[str, SplitSize] = {}
    for shard in content.shards:
        for split, size in shard.splits.items():
            splits[split] = splits.get(split, SplitSize()) + size
    lacking = content.statistics.lacking
    for split, numbers in lacking.items():
        for name, n in numbers.items():
            if n == splits[split].graphs:
                raise InputError(
                    f"{split}: no structure has a label of the target {name!r}; give some to it "
                    f"(data.split), or drop the target"
                )
    statistics = content.statistics.statistics(described.references)
    for name, target in targets.items():
        train, without = splits.get(TRAIN, SplitSize()), lacking.get(TRAIN, {}).get(name, 0)
        train = train.model_copy(update={"graphs": train.graphs - without})
        _check_classes(name, target, statistics.targets[name].mean, train)
    return Manifest(
        dtypes=dtypes,
        targets=targets,
        units=units,
        cutoff=described.cutoff,
        max_neighbours=described.max_neighbours,
        truncation=described.truncation,
        elements=sorted(elements or ()) if names[0] == "atomic_number" else [],
        node_features=list(names),
        branches=sorted(content.statistics.branches),
        branch_names=list(described.branch_names),
        keys=content.keys,
        splits=splits,
        lacking=lacking,
        statistics=statistics,
        provenance=dict(described.provenance or {}),
        shards=content.shards,
    )


def _check_classes(name: str, target: Target, shares: Sequence[float], train: SplitSize) -> None:
    """Raise InputError if a class has fewer than two labels in the training split.

    ``shares`` is the share of each class, [n_classes].
    """
    labels = train.graphs if target.level == "graph" else train.atoms
    for one, share in zip(target.classes, shares, strict=False):
        if labels and (n := round(share * labels)) < 2:
            raise InputError(
                f"target {name!r}: {n} of {labels} training labels name the class {one!r}, and a "
                f"network cannot learn it from fewer than 2; add some, or leave these structures "
                f"and the class out of data.source.targets.{name}.classes"
            )


def join_contents(contents: Sequence[Content]) -> Content:
    """Combine the shards, keys and statistics that several processes have written for a store.

    The statistics of the first part are changed in place.

    Raises
    ------
    InputError
        If the graphs of two parts differ in keys, types or shapes.
    """
    first = contents[0]
    keys = dict(first.keys)
    for content in contents[1:]:
        fits = (keys[name].fits(content.keys[name]) for name in keys)
        if content.keys.keys() != keys.keys() or not all(fits):
            raise InputError(
                f"{content.shards[0].path}: its graphs have other keys, types or shapes than those "
                f"of {first.shards[0].path}; make all graphs alike"
            )
        keys = {key: described & content.keys[key] for key, described in keys.items()}
        first.statistics.merge(content.statistics)
    return Content(
        [shard for content in contents for shard in content.shards], keys, first.statistics
    )


def _size(key: Key, level: Literal["graph", "node"]) -> int:
    size = math.prod(key.shape)
    return size if level == "node" else size * (key.rows or 0)


def _check_target(name: str, target: Target, keys: Mapping[str, Key]) -> None:
    """Raise InputError unless a target is a key with the described level and components."""
    if name not in keys:
        raise InputError(
            f"target {name!r} is not among the keys of the graphs ({', '.join(keys)}); "
            "correct its name"
        )
    key = keys[name]
    fits = key.node if target.level == "node" else key.rows is not None
    fits &= len(target.classes) in (0, target.dim)
    if not fits or _size(key, target.level) != target.dim:
        raise InputError(
            f"target {name!r} is said to have {target.dim} component(s) per {target.level}, "
            "but the graphs do not; correct its description or its shape"
        )
