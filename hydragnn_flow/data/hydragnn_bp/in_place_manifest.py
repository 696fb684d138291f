"""Manifest of files in place: which keys training reads from them, in which form and position."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydragnn_flow.config.sources import Level
from hydragnn_flow.config.targets import BRANCH, TargetConfig
from hydragnn_flow.data.sources.opening import check_alike, describe
from hydragnn_flow.data.splits import CALIBRATION, SPLIT_OF_ROLE
from hydragnn_flow.data.store.integrity import describe_foreign_files
from hydragnn_flow.data.store.manifest import Key, Manifest, Part, Shard, SplitSize, Target
from hydragnn_flow.errors import InputError

_OF_NODES, _OF_EDGES = ("x", "pos", "pe"), ("edge_shifts", "edge_attr", "rel_pe")
_CELL = Key(dtype="float32", dim=0, shape=(3,), node=False, edge=False, rows=3)
_PBC = Key(dtype="int32", dim=0, shape=(), node=False, edge=False, rows=3)
_BRANCH = Key(dtype="int64", dim=0, shape=(1,), node=False, edge=False, rows=1)
_COPY = "leave in_place out to have it copied"


def in_place(
    found: Manifest,
    path: Path,
    targets: Mapping[str, TargetConfig],
    parts: Mapping[str, Part],
    branch: int | None,
) -> Manifest:
    """Return the manifest of a store that uses a file in place, in the form of a copy's.

    Parameters
    ----------
    found
        Manifest of the file.
    path
        Absolute path of the file or store.
    targets
        Description of each target by name.
    parts
        Position of each target that is packed in ``y``.
    branch
        Branch of all its graphs; None for the file's own branches, if any.

    Returns
    -------
    Manifest
        Manifest with keys in the types and shapes in which networks read them, and shards with
        absolute paths. Its statistics are still those of the file.

    Raises
    ------
    InputError
        If networks cannot read a key as the file has it.
    """
    names = {name: target.key or name for name, target in targets.items() if name not in parts}
    constants: dict[str, int] = {}
    keys = _network_keys(found, set(names.values()), path)
    if "cell" not in keys:
        keys["cell"], constants["cell"] = _CELL, 0
    if "pbc" not in keys:
        keys["pbc"] = _PBC
        if "cell" in constants:
            constants["pbc"] = 0
        else:
            names["pbc"] = "cell"
    if "edge_shifts" not in keys:
        if "cell" not in constants:
            raise InputError(
                f"{path}: its graphs have a cell and edges, but no edge_shifts to say to which "
                "image they lead; write the file with them"
            )
        keys["edge_shifts"] = _rows_like(found.keys["edge_index"], 3)
        constants["edge_shifts"] = 0
    if branch is not None:
        keys[BRANCH], constants[BRANCH] = _BRANCH, branch
    described = {}
    for name, known in targets.items():
        if name in parts:
            level, width = _level(parts[name].node), parts[name].width
        else:
            level, width = _level_of_key(found, names[name], known, path)
        if level == "node" and known.is_extensive:
            raise InputError(
                f"{path}: {name!r} has a label for each atom, and only those of whole structures "
                "are extensive; remove extensive from data.source.targets"
            )
        # The types of a copy: energies of thousands of eV need more digits than forces.
        if level == "node":
            keys[name] = _rows_like(keys["x"], width)
        else:
            keys[name] = _of_graphs("float64", () if width == 1 else (width,))
        described[name] = Target(
            level=level, dim=width, unit=known.unit, extensive=known.is_extensive
        )
    splits = {name: found.splits[name] for name in SPLIT_OF_ROLE.values() if name in found.splits}
    for name in SPLIT_OF_ROLE.values():
        if name != CALIBRATION and not splits.get(name, SplitSize()).graphs:
            raise InputError(f"{path} has no graphs in {name}; name a file that has some")
    return found.model_copy(
        update={
            "targets": described,
            "keys": keys,
            "splits": splits,
            "branch_names": [],
            "shards": [
                _shard(path, shard, keys, names, constants, parts, list(splits))
                for shard in found.shards
                if any(shard.splits[name].graphs for name in splits)
            ],
        }
    )


def alike(parts: Sequence[tuple[str, Manifest]]) -> list[Manifest]:
    """Return data sets in place with only the keys that all of them have.

    Parameters
    ----------
    parts
        Name of each data set, for messages, and its manifest.

    Raises
    ------
    InputError
        If they differ in targets, node features, or the shape of a key.
    """
    _, manifest = parts[0]
    common = [key for key in manifest.keys if all(key in part.keys for _, part in parts)]
    splits = [s for s in SPLIT_OF_ROLE.values() if any(s in part.splits for _, part in parts)]
    check_alike("targets", {name: describe(part.targets) for name, part in parts})
    check_alike("node features", {name: ", ".join(part.node_features) for name, part in parts})
    for key in common:
        rows = {name: str(list(part.keys[key].shape)) for name, part in parts}
        check_alike(f"rows of {key}", rows)
    return [
        part.model_copy(
            update={
                "keys": {key: part.keys[key] for key in common},
                "splits": {name: part.splits.get(name, SplitSize()) for name in splits},
                "shards": [_with_splits(shard, splits) for shard in part.shards],
            }
        )
        for _, part in parts
    ]


def _network_keys(found: Manifest, labels: set[str], path: Path) -> dict[str, Key]:
    """Return the keys that networks read, without labels, in types and shapes of a copy."""
    keys = {}
    for key, here in found.keys.items():
        width = math.prod(here.shape)
        if key in labels:
            continue
        if key == "edge_index":
            keys[key] = here.model_copy(update={"dtype": "int64"})
        elif (key in _OF_NODES and here.node) or (key in _OF_EDGES and here.edge):
            keys[key] = _rows_like(here, width)
        elif key == "cell" and (here.rows, here.shape) == (3, (3,)):
            keys[key] = _CELL
        elif key == "pbc" and here.rows == 3 and width == 1:
            keys[key] = _PBC
        elif key == BRANCH and here.rows == 1 and width == 1:
            keys[key] = _BRANCH
        elif key == "graph_attr" and here.rows == 1:
            keys[key] = _of_graphs("float32", (width,))
        elif key in {*_OF_NODES, *_OF_EDGES, "cell", "pbc", BRANCH, "graph_attr"}:
            raise InputError(
                f"{path}: its {key} has {here.rows or 'different numbers of'} rows of "
                f"{list(here.shape)} in each graph, and networks need another shape; {_COPY}"
            )
    return keys


def _level(node: bool) -> Level:
    return "node" if node else "graph"


def _level_of_key(found: Manifest, key: str, known: TargetConfig, path: Path) -> tuple[Level, int]:
    """Return level and components of a target that is a key of the file."""
    if key not in found.keys:
        raise InputError(
            f"{path}: its graphs have no {key!r} (they have: {', '.join(found.keys)}); correct the "
            f"name in data.source.targets"
        )
    here = found.keys[key]
    level: Level | None = known.level
    if level is None and key in found.targets:
        level = found.targets[key].level
    if level is None:
        level = _level(here.node)
    if here.dim or not (here.node if level == "node" else here.rows == 1):
        raise InputError(
            f"{path}: {key!r} has not one row for each {level}, as a target needs it in place; "
            f"correct data.source.targets, or {_COPY}"
        )
    return level, math.prod(here.shape)


def _rows_like(other: Key, width: int) -> Key:
    """Return a key of single precision with as many rows as another one of nodes or edges."""
    return other.model_copy(update={"dtype": "float32", "dim": 0, "shape": (width,)})


def _of_graphs(dtype: str, shape: tuple[int, ...]) -> Key:
    return Key(dtype=dtype, dim=0, shape=shape, node=False, edge=False, rows=1)


def _shard(
    path: Path,
    shard: Shard,
    keys: Mapping[str, Key],
    names: Mapping[str, str],
    constants: Mapping[str, int],
    parts: Mapping[str, Part],
    splits: Sequence[str],
) -> Shard:
    """Return a shard of a file; one of a store with data in place may rename keys itself."""
    place = path / shard.path
    there = {k: names.get(k, k) for k in keys.keys() - constants.keys() - parts.keys()}
    renamed = {key: shard.names.get(name, name) for key, name in there.items()}
    runs = {name: shard.branch_runs[name] for name in splits if name in shard.branch_runs}
    if BRANCH in constants:
        runs = {name: [(constants[BRANCH], shard.splits[name].graphs)] for name in splits}
    return Shard(
        path=str(place),
        files=shard.files or describe_foreign_files(place),
        splits={name: shard.splits[name] for name in splits},
        branch_runs=runs,
        names={key: name for key, name in sorted(renamed.items()) if key != name},
        constants={
            **{key: shard.constants[key] for key in sorted(there) if key in shard.constants},
            **constants,
        },
        parts={
            **{key: shard.parts[name] for key, name in there.items() if name in shard.parts},
            **parts,
        },
    )


def _with_splits(shard: Shard, splits: Sequence[str]) -> Shard:
    sizes = {name: shard.splits.get(name, SplitSize()) for name in splits}
    return shard.model_copy(update={"splits": sizes})
