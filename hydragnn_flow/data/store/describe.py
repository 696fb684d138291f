"""A manifest worked out from the arrays themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from hydragnn_flow.data.columns import Column
from hydragnn_flow.data.splits import TRAIN
from hydragnn_flow.data.store.manifest import Manifest, Shard, SplitSize, Target
from hydragnn_flow.data.store.statistics import atomic_numbers, training_statistics
from hydragnn_flow.errors import InputError

_USUAL_TARGETS: dict[str, Literal["graph", "node"]] = {"energy": "graph", "forces": "node"}


def describe(
    splits: Mapping[str, Mapping[str, Column]],
    *,
    shards: list[Shard],
    targets: Mapping[str, Target] | None = None,
    units: Mapping[str, str] | None = None,
    cutoff: float | None = None,
    max_neighbours: int | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Manifest:
    """Make the manifest of a store.

    Parameters
    ----------
    splits
        The columns of each split, ``trainset`` with at least one graph among them.
    shards
        The files the columns are in.
    targets
        Which keys are labels; by default ``energy`` and ``forces`` where they exist.
    units
        Units of further keys, and of targets found by default.
    cutoff, max_neighbours, provenance
        As in the manifest.

    Raises
    ------
    InputError
        Where a target is not among the keys or is not what it is said to be.
    """
    units = dict(units or {})
    train = splits[TRAIN]
    if targets is None:
        targets = {
            name: Target(level=level, dim=_components(train, name, level), unit=units.get(name, ""))
            for name, level in _USUAL_TARGETS.items()
            if name in train
        }
    for name, target in targets.items():
        _check_target(name, target, train)
        if target.unit:
            units[name] = target.unit

    numbers = [atomic_numbers(columns) for columns in splits.values()]
    width = train["x"].values.shape[1]
    names = [f"feature_{i}" for i in range(width)]
    elements: set[int] = set()
    known = [part for part in numbers if part is not None]
    if len(known) == len(numbers):
        names[0] = "atomic_number"
        elements = {int(number) for part in known for number in part}
    return Manifest(
        targets=dict(targets),
        units=units,
        cutoff=cutoff,
        max_neighbours=max_neighbours,
        elements=sorted(elements),
        node_features=names,
        splits={name: _size(columns) for name, columns in splits.items()},
        statistics=training_statistics(train, targets),
        provenance=dict(provenance or {}),
        shards=shards,
    )


def _size(columns: Mapping[str, Column]) -> SplitSize:
    return SplitSize(
        graphs=len(columns["x"].counts),
        atoms=int(columns["x"].counts.sum()),
        edges=int(columns["edge_index"].counts.sum()),
    )


def _rows(columns: Mapping[str, Column], level: Literal["graph", "node"]) -> int:
    atoms = columns["x"].counts
    return len(atoms) if level == "graph" else int(atoms.sum())


def _components(columns: Mapping[str, Column], name: str, level: Literal["graph", "node"]) -> int:
    return columns[name].values.size // _rows(columns, level)


def _check_target(name: str, target: Target, columns: Mapping[str, Column]) -> None:
    """Check that a target is a key, with the level and components it is said to have."""
    if name not in columns:
        raise InputError(
            f"target {name!r} is not among the keys of the graphs ({', '.join(columns)}); "
            "correct its name"
        )
    column, atoms = columns[name], columns["x"].counts
    shared = atoms if target.level == "node" else np.full_like(atoms, column.counts[0])
    expected = _rows(columns, target.level) * target.dim
    if column.values.size != expected or not np.array_equal(column.counts, shared):
        raise InputError(
            f"target {name!r} is said to have {target.dim} component(s) per {target.level}, "
            "but the graphs do not; correct its description or its shape"
        )
