"""Writer of one shard: a complete BP5 file in HydraGNN's layout, block by block."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.sources import BRANCH
from hydragnn_flow.data.columns import BranchRuns, Column, trailing
from hydragnn_flow.data.store.bp5 import Bp5Writer
from hydragnn_flow.data.store.integrity import checksum, describe_files, fsync_tree
from hydragnn_flow.data.store.layout import BLOCKS, INDEX, REST, BlockTable
from hydragnn_flow.data.store.manifest import Dtypes, Key, Shard, SplitSize, Target
from hydragnn_flow.data.store.statistics import Accumulator

# ADIOS2 searches the blocks of a variable one after the other: a read takes 20 us among a thousand
# and 300 us among fifty thousand.
_MOST_BLOCKS = 1000


class ShardWriter:
    """Writer of one shard: a BP5 file of a store, which also gathers the graphs' statistics.

    Parameters
    ----------
    path
        New directory of the shard.
    name
        Value of HydraGNN's attribute ``dataset_name``.
    dtypes
        Storage of integers, ``hydragnn`` or ``compact``, as in :func:`write_store`.
    targets
        Description of each key that is a label, by name, for the statistics.
    node_features
        Names of the columns of ``x``, if known.
    """

    def __init__(
        self,
        path: Path,
        *,
        name: str,
        dtypes: Dtypes,
        targets: Mapping[str, Target],
        node_features: Sequence[str] | None = None,
    ) -> None:
        self.path = path
        self.keys: dict[str, Key] = {}
        """Description of each key of the graphs written so far, by name."""
        self.statistics = Accumulator(targets, node_features)
        """Statistics of the graphs written so far."""
        self._narrow = dtypes == "compact"
        self._name = name
        self._stored: dict[str, np.dtype[Any]] = {}
        self._counts: dict[str, dict[str, list[NDArray[np.int64]]]] = {}
        self._sizes: dict[str, SplitSize] = {}
        self._branches: dict[str, list[NDArray[np.integer]]] = {}
        self._blocks = BlockTable()
        self._file = Bp5Writer(path)

    def takes(self, columns: Mapping[str, Column]) -> bool:
        """Return True if another block of graphs fits into this shard.

        The result is False after a thousand blocks, or if integers of the block exceed the narrow
        type in which the shard stores their key. The caller then closes this shard and writes the
        block to the next shard.
        """
        if not self._stored:
            return True
        if len(self._blocks) >= _MOST_BLOCKS:
            return False
        return all(
            np.can_cast(self._type_of(columns[name], key), self._stored[name], "safe")
            for name, key in describe_keys(columns).items()
        )

    def append(self, split: str, columns: Mapping[str, Column]) -> None:
        """Write graphs of one split to the shard as its next block.

        Parameters
        ----------
        split
            Name of the split.
        columns
            Columns of at least one graph, with the same keys in every call.
        """
        found = describe_keys(columns)
        for key, column in columns.items():
            stored = self._stored.setdefault(key, self._type_of(column, found[key]))
            self.keys[key] = self.keys[key] & found[key] if key in self.keys else found[key]
            self._counts.setdefault(split, {}).setdefault(key, []).append(column.counts)
            self._file.append(
                f"{split}/{key}", column.values.astype(stored, copy=False), column.dim
            )
        size = size_of(columns)
        self._sizes[split] = self._sizes.get(split, SplitSize()) + size
        if BRANCH in columns:
            self._branches.setdefault(split, []).append(columns[BRANCH].values.reshape(-1))
        self.statistics.update(columns, split)
        self._close_block(split, size.graphs)

    def close(self, splits: list[str]) -> Shard:
        """Finish the shard, force it to disk and return its description for the manifest.

        Parameters
        ----------
        splits
            Names of the store's splits in order, with splits that have no graphs in this shard.
        """
        file = self._file
        # A key without a single row, such as the edges of isolated atoms, is written too.
        for split, counts in self._counts.items():
            for key, of_blocks in counts.items():
                if not any(rows.any() for rows in of_blocks):
                    nothing = np.empty(self.keys[key].array_shape(0), self._stored[key])
                    self._file.put(f"{split}/{key}", nothing)
        # First the counts that an index needs, in their own block, to be read and verified alone.
        for split, counts in self._counts.items():
            for key in ("x", "edge_index"):
                self._put_counts(split, key, counts[key])
        self._close_block(INDEX, 0)
        for split, counts in self._counts.items():
            for key in sorted(counts):
                if key not in ("x", "edge_index"):
                    self._put_counts(split, key, counts[key])
        self._close_block(REST, 0)
        file.attribute("dataset_name", self._name)
        # HydraGNN's name for the degree histogram of the atoms to train on.
        file.attribute("pna_deg", self.statistics.degrees)
        sizes = {split: self._sizes.get(split, SplitSize()) for split in splits}
        total = sum(size.graphs for size in sizes.values())
        file.attribute("total_ndata", np.array(total, dtype=np.int64))
        for split, size in sizes.items():
            file.attribute(f"{split}/ndata", np.array(size.graphs, dtype=np.int64))
            # HydraGNN's reader takes branches from files, and fails at a key of that name.
            file.attribute(f"{split}/keys", [key for key in self.keys if key != BRANCH])
            for key, described in self.keys.items():
                file.attribute(f"{split}/{key}/variable_dim", np.array(described.dim, np.int64))
        file.close()
        self._blocks.save(self.path / BLOCKS)
        fsync_tree(self.path)
        return Shard(
            path=self.path.name,
            files=describe_files(self.path),
            splits=sizes,
            # If branches change more often, their column is as good.
            branch_runs={
                split: runs
                for split, branches in self._branches.items()
                if len(runs := BranchRuns.of(branches).pairs) <= 4096
            },
        )

    def abort(self) -> None:
        """Delete the unfinished shard."""
        self._file.abort()
        shutil.rmtree(self.path, ignore_errors=True)

    def _put_counts(self, split: str, key: str, of_blocks: list[NDArray[np.int64]]) -> None:
        counts = np.concatenate(of_blocks)
        self._file.put(f"{split}/{key}/variable_count", counts)
        self._file.put(f"{split}/{key}/variable_offset", np.cumsum(counts) - counts)

    def _close_block(self, split: str, graphs: int) -> None:
        start, end = self._blocks.end, self._file.flush()
        self._blocks.add(split, graphs, end, checksum(self.path / "data.0", start, end))

    def _type_of(self, column: Column, key: Key) -> np.dtype[Any]:
        """Return the data type in which to store a key's values."""
        values = column.values
        # Keys of whole graphs are small: growing numbers must not cost a new shard.
        if not self._narrow or not (key.node or key.edge) or values.dtype.kind != "i":
            return values.dtype
        # A signed type that holds -1 - n holds n.
        least = min(int(values.min()), -1 - int(values.max())) if values.size else 0
        return np.result_type(np.int16, np.min_scalar_type(least))


def describe_keys(columns: Mapping[str, Column]) -> dict[str, Key]:
    """Describe each key (named tensor) of a block of graphs: its type, shape and rows."""
    atoms, edges = columns["x"].counts, columns["edge_index"].counts
    return {
        key: Key(
            dtype=column.values.dtype.name,
            dim=column.dim,
            shape=trailing(column.values, column.dim),
            node=bool(np.array_equal(column.counts, atoms)),
            edge=bool(np.array_equal(column.counts, edges)),
            rows=int(column.counts[0]) if (column.counts == column.counts[0]).all() else None,
        )
        for key, column in columns.items()
    }


def size_of(columns: Mapping[str, Column]) -> SplitSize:
    """Return the numbers of graphs, atoms and edges in a block of graphs."""
    return SplitSize(
        graphs=len(columns["x"].counts),
        atoms=int(columns["x"].counts.sum()),
        edges=int(columns["edge_index"].counts.sum()),
    )
