"""Manifest of a ``.bp`` that HydraGNN wrote, computed from its arrays."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np

from hydragnn_flow.config.targets import BRANCH
from hydragnn_flow.data.columns import check_graphs, concatenation_dim
from hydragnn_flow.data.hydragnn_bp.trial_read import damaged, trial_read
from hydragnn_flow.data.reading.disk import DiskReader
from hydragnn_flow.data.reading.index import SplitIndex
from hydragnn_flow.data.reading.shard_file import ShardFile
from hydragnn_flow.data.splits import TEST, TRAIN, VALIDATION
from hydragnn_flow.data.store.bp5 import Bp5File
from hydragnn_flow.data.store.describe import Content, Description, find_targets, make_manifest
from hydragnn_flow.data.store.layout import lies_in_rows, read_counts
from hydragnn_flow.data.store.manifest import Key, Manifest, Shard, SplitSize
from hydragnn_flow.data.store.statistics import Accumulator
from hydragnn_flow.errors import InputError, StoreError

_USUAL = (TRAIN, VALIDATION, TEST)


def bp_manifest(path: Path, *, statistics: bool = True) -> Manifest:
    """Read all of a HydraGNN file twice: in a process of its own, then block by block.

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
        If it is damaged or not in HydraGNN's layout.
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
                statistics.update(columns, train=False)
    reading.close()
    shard = Shard(path=".", files={}, splits=sizes)
    return make_manifest(Content([shard], joined, statistics), Description(), "hydragnn")


def _splits(file: Bp5File) -> dict[str, int]:
    """Return the number of graphs of each split: training, validation and test first."""
    end = "/ndata"
    names = [name.removesuffix(end) for name in file.attributes if name.endswith(end)]
    names.sort(key=lambda name: _USUAL.index(name) if name in _USUAL else len(_USUAL))
    for name in file.variables:
        if names and not name.startswith(tuple(f"{split}/" for split in names)):
            raise damaged(file.path / "md.0", f"does not say of how many graphs {name} is")
    return {split: int(file.attribute(split + end)[0]) for split in names}


def _describe_split(file: Bp5File, split: str, graphs: int) -> dict[str, Key]:
    """Return the keys of a split in their order, without keys that have no rows."""
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
    """Check a split's graphs and add them to the statistics."""
    first = 0
    for columns in DiskReader(index).blocks():
        last = first + len(columns["x"].counts)
        check_graphs(columns, [f"{index.split}: graph {graph}" for graph in range(first, last)])
        statistics.update(columns, train=index.split == TRAIN)
        first = last
