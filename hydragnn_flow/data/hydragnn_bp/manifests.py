"""Manifests of HydraGNN's ``.bp`` files, and of stores that use files in place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from hydragnn_flow.config.sources import (
    BRANCH,
    CALIBRATION,
    SPLIT_OF_ROLE,
    TEST,
    TRAIN,
    VALIDATION,
    WEIGHT,
    Level,
    TargetConfig,
)
from hydragnn_flow.data.columns import check_graphs, concatenation_dim
from hydragnn_flow.data.hydragnn_bp.trial_read import damaged, trial_read
from hydragnn_flow.data.reading.disk import DiskReader
from hydragnn_flow.data.reading.index import SplitIndex
from hydragnn_flow.data.reading.shard_file import ShardFile
from hydragnn_flow.data.sources.opening import check_alike, describe
from hydragnn_flow.data.store.bp5 import Bp5File
from hydragnn_flow.data.store.describe import Content, Description, find_targets, make_manifest
from hydragnn_flow.data.store.integrity import describe_files
from hydragnn_flow.data.store.layout import lies_in_rows, read_counts
from hydragnn_flow.data.store.manifest import Key, Manifest, Part, Shard, SplitSize, Target
from hydragnn_flow.data.store.statistics import Accumulator
from hydragnn_flow.errors import InputError, StoreError

_USUAL = (TRAIN, VALIDATION, TEST)


def bp_manifest(path: Path, *, statistics: bool = True) -> Manifest:
    """Compute the manifest (description of the content) of a HydraGNN ``.bp`` file.

    The file is read twice: first in another process, which damage may crash, then here.

    Parameters
    ----------
    path
        Directory with the suffix ``.bp``.
    statistics
        True to check graphs and compute statistics; otherwise only node features are read a second
        time.

    Raises
    ------
    StoreError
        If the file is damaged or not in HydraGNN's layout.
    """
    trial_read(path)
    try:
        return _manifest(path, statistics)
    except StoreError:
        raise
    except InputError as error:
        raise damaged(path, f"cannot be used ({error})") from error
    except (ValueError, TypeError, LookupError, RuntimeError, MemoryError) as error:
        # Numbers that cannot be right lead to such errors.
        said = " ".join(str(error).split())
        raise damaged(path / "md.0", f"contradicts itself ({said})") from error


def _manifest(path: Path, whole: bool) -> Manifest:
    with closing(Bp5File(path)) as file:
        lengths = _splits(file)
        keys = {split: _describe_split(file, split, n) for split, n in lengths.items() if n}
    if not lengths.get(TRAIN):
        raise StoreError(
            f"{path}/md.0 names no graphs of {TRAIN}; {path} is not in HydraGNN's layout or "
            "damaged, so write it with HydraGNN or restore it from a copy"
        )
    sizes = {split: SplitSize(graphs=graphs) for split, graphs in lengths.items()}
    reading = ShardFile(path, Shard(path=".", files={}, splits=sizes))
    joined: dict[str, Key] = {}
    for split, described in keys.items():
        for key, found in described.items():
            found = _counted(reading, split, key, found)
            if key in joined and not joined[key].fits(found):
                raise StoreError(
                    f"{path}: {split}/{key} has another type or shape than in {TRAIN}; "
                    "write the file again"
                )
            joined[key] = joined[key] & found if key in joined else found
    targets = find_targets(joined, Description())
    statistics = Accumulator(targets)
    for split in keys:
        index = SplitIndex(split, joined, [reading], [lengths[split]])
        sizes[split] = _size(index)
        if whole:
            _check(index, statistics)
        else:
            x = {"x": joined["x"]}
            for columns in DiskReader(SplitIndex(split, x, [reading], [lengths[split]])).blocks():
                statistics.update(columns, "")  # elements only
    reading.close()
    shard = Shard(path=".", files={}, splits=sizes)
    return make_manifest(Content([shard], joined, statistics), Description(), "hydragnn")


def _splits(file: Bp5File) -> dict[str, int]:
    """Return the number of graphs by split, with training, validation and test sets first."""
    end = "/ndata"
    names = [name.removesuffix(end) for name in file.attributes if name.endswith(end)]
    names.sort(key=lambda name: _USUAL.index(name) if name in _USUAL else len(_USUAL))
    for name in file.variables:
        if names and not name.startswith(tuple(f"{split}/" for split in names)):
            raise damaged(file.path / "md.0", f"does not say of how many graphs {name} is")
    return {split: int(file.attribute(split + end)[0]) for split in names}


def _describe_split(file: Bp5File, split: str, graphs: int) -> dict[str, Key]:
    """Return a description of each key of a split, in the order of the file.

    Keys without rows are left out. ``graphs`` is the number of graphs of the split.
    """
    start, end = f"{split}/", "/variable_count"
    variables = set(file.variables)
    stored = {
        name.removeprefix(start).removesuffix(end)
        for name in variables
        if name.startswith(start) and name.endswith(end)
    }
    keys = [str(key) for key in file.attribute(f"{split}/keys")]
    # Shards of a store do not list this key, as HydraGNN's reader fails at its name.
    keys += [key for key in (BRANCH,) if key in stored - set(keys)]
    if set(keys) != stored:
        differing = ", ".join(sorted(set(keys) ^ stored))
        raise damaged(
            file.path / "md.0", f"contradicts itself about the keys {differing} of {split}"
        )
    described = {}
    for key in keys:
        counts = file.read(f"{split}/{key}{end}")
        if counts.shape != (graphs,):
            raise damaged(file.path / "md.0", f"has not {graphs} graphs in {split}/{key}")
        if counts.any() or f"{split}/{key}" in variables:
            described[key] = _describe(file, split, key)
    return described


def _describe(file: Bp5File, split: str, key: str) -> Key:
    name = f"{split}/{key}"
    variable, counts = file.variable(name), read_counts(file, split, key)
    shape = variable.shape
    in_rows = lies_in_rows(file, split, key)
    two = len(shape) == 2 and ((counts == 2).all() if in_rows else shape[0] == 2)
    if key == "edge_index" and not two:
        raise damaged(file.path / "md.0", f"does not give {name} two rows in each graph")
    dim = 1 if in_rows else concatenation_dim(key, len(shape))
    rest = (2,) if key == "edge_index" else shape[:dim] + shape[dim + 1 :]
    return Key(dtype=variable.dtype.name, dim=dim, shape=rest, node=False, edge=False, rows=None)


def _counted(shard: ShardFile, split: str, key: str, described: Key) -> Key:
    counts = shard.counts(split, key)
    return described.model_copy(
        update={
            "node": bool(np.array_equal(counts, shard.counts(split, "x"))),
            "edge": bool(np.array_equal(counts, shard.counts(split, "edge_index"))),
            "rows": int(counts[0]) if (counts == counts[0]).all() else None,
        }
    )


def _size(index: SplitIndex) -> SplitSize:
    n = len(index)
    return SplitSize(graphs=n, atoms=index.atoms.start(n), edges=index.edges.start(n))


def _check(index: SplitIndex, statistics: Accumulator) -> None:
    """Check the graphs of a split and add them to ``statistics`` in place."""
    first = 0
    for columns in DiskReader(index).blocks():
        last = first + len(columns["x"].counts)
        check_graphs(columns, [f"{index.split}: graph {graph}" for graph in range(first, last)])
        statistics.update(columns, index.split)
        first = last


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
    """Return the manifest of a store that reads a file's graphs in place, without a copy.

    The manifest describes the keys (named tensors of the graphs) that a store with copied graphs
    would have.

    Parameters
    ----------
    found
        Manifest of the file or store that is used in place.
    path
        Absolute path of the file or store that is used in place.
    targets
        Description of each target by name.
    parts
        Position in ``y`` by name of the target, for targets that are packed in ``y``.
    branch
        Index of the branch (output heads for one data set) of all graphs; None for the branches in
        the file, if any.

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
        if known.classes and width != len(known.classes):
            raise InputError(
                f"{path}: {name!r} has {width} numbers for {len(known.classes)} classes, and "
                f"networks learn one for each; {_COPY}"
            )
        about = known.model_dump(include={"unit", "classes"})
        described[name] = Target(level=level, dim=width, extensive=known.is_extensive, **about)
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
    """Reduce the manifests of data sets used in place to the keys that all data sets have.

    A data set used in place is read from its own files, without a copy in the store. A key is a
    named tensor of its graphs.

    Parameters
    ----------
    parts
        Pairs of a data set's name, for error messages, and its manifest.

    Raises
    ------
    InputError
        If the data sets differ in targets, node features, or the shape of a key.
    """
    _, manifest = parts[0]
    common = [key for key in manifest.keys if all(key in part.keys for _, part in parts)]
    splits = [s for s in SPLIT_OF_ROLE.values() if any(s in part.splits for _, part in parts)]
    check_alike("targets", {name: describe(part.targets) for name, part in parts})
    check_alike("node features", {name: ", ".join(part.node_features) for name, part in parts})
    weighted = {name: "there" if WEIGHT in part.keys else "missing" for name, part in parts}
    check_alike(f"weights, {WEIGHT},", weighted)
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
    """Return a description of each key that networks read, except those in ``labels``.

    Data types and shapes are those that the keys have in a store with copied graphs.
    """
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
        elif key in ("graph_attr", WEIGHT) and here.rows == 1:
            keys[key] = _of_graphs("float32", (width,))
        elif key in {*_OF_NODES, *_OF_EDGES, "cell", "pbc", BRANCH, WEIGHT, "graph_attr"}:
            raise InputError(
                f"{path}: its {key} has {here.rows or 'different numbers of'} rows of "
                f"{list(here.shape)} in each graph, and networks need another shape; {_COPY}"
            )
    return keys


def _level(node: bool) -> Level:
    return "node" if node else "graph"


def _level_of_key(found: Manifest, key: str, known: TargetConfig, path: Path) -> tuple[Level, int]:
    """Return the level and the number of components of a target, stored as ``key`` in the file."""
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
    """Return a description of a float32 key with the rows of ``other`` and ``width`` columns."""
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
    """Return the description, in a new store, of a shard that is used in place.

    If the shard's own store uses it in place too, ``shard`` may already rename keys.

    Parameters
    ----------
    path
        Directory that the path of the shard is relative to.
    shard
        Description of the shard in its own store or file.
    keys
        All keys of the new store.
    names
        Name in the shard's own store by key, where the two names differ.
    constants
        Value by key, for keys with one value everywhere.
    parts
        Position in ``y`` by name of the target, for targets that are packed in ``y``.
    splits
        Names of the splits of the new store.
    """
    place = path / shard.path
    there = {k: names.get(k, k) for k in keys.keys() - constants.keys() - parts.keys()}
    renamed = {key: shard.names.get(name, name) for key, name in there.items()}
    runs = {name: shard.branch_runs[name] for name in splits if name in shard.branch_runs}
    if BRANCH in constants:
        runs = {name: [(constants[BRANCH], shard.splits[name].graphs)] for name in splits}
    return Shard(
        path=str(place),
        files=shard.files or describe_files(place, in_place=True),
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
