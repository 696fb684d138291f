"""Streaming of graphs from disk, block by block, for data sets larger than memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.reading.disk import DiskReader
from hydragnn_flow.data.reading.lines import Lines, join_lines, lines_of

# Number of blocks read ahead: enough for a disk to work while a batch is computed.
_AHEAD = 4


class StreamReader(DiskReader):
    """Reader of whole blocks, each read once and held as long as coming batches need it.

    The order of the graphs decides how many blocks are held at a time: a plan that shuffles within
    windows of neighbouring blocks needs one window, whatever the size of the split.
    """

    def stream(self, selections: Iterable[NDArray[np.int64]]) -> Iterator[dict[str, NDArray[Any]]]:
        chosen = list(selections)
        bounds = self._index.block_bounds
        homes = [np.searchsorted(bounds, graphs, side="right") - 1 for graphs in chosen]
        order = list(dict.fromkeys(int(block) for home in homes for block in home))
        place = {block: number for number, block in enumerate(order)}
        last_use = {block: step for step, home in enumerate(homes) for block in home.tolist()}
        held: dict[int, Future[dict[str, Lines]]] = {}
        asked = 0
        with ThreadPoolExecutor(1) as thread:
            try:
                for step, (graphs, home) in enumerate(zip(chosen, homes, strict=True)):
                    blocks = np.unique(home).tolist()
                    needed = max(place[block] for block in blocks) + 1 + _AHEAD
                    for block in order[asked:needed]:
                        held[block] = thread.submit(self._load, block)
                    asked = max(asked, needed)
                    there = {block: held[block].result() for block in blocks}
                    yield self._join(graphs, home, there)
                    for block in blocks:
                        if last_use[block] == step:
                            del held[block]
            finally:
                for future in held.values():
                    future.cancel()

    def _load(self, block: int) -> dict[str, Lines]:
        """Read a block, in the thread that reads ahead."""
        first, last = self._index.block_bounds[block : block + 2].tolist()
        values = self.take(np.arange(first, last))
        return {key: lines_of(values[key], self._index.keys[key].dim) for key in values}

    def _join(
        self,
        graphs: NDArray[np.int64],
        home: NDArray[np.int64],
        blocks: dict[int, dict[str, Lines]],
    ) -> dict[str, NDArray[Any]]:
        """Return the values of some graphs from the blocks that hold them."""
        first = self._index.block_bounds[home]
        pieces_of: dict[int, list[tuple[int, slice]]] = {}
        values = {}
        for key, described in self._index.keys.items():
            rows = self._index.rows(key)
            pieces = pieces_of.get(id(rows))
            if pieces is None:
                starts = rows.starts(graphs) - rows.starts(first)
                ends = starts + rows.counts(graphs)
                slices = map(slice, starts.tolist(), ends.tolist())
                pieces = pieces_of[id(rows)] = list(zip(home.tolist(), slices, strict=True))
            n_lines = len(next(iter(blocks.values()))[key])
            lines = [
                [blocks[block][key][line][piece] for block, piece in pieces]
                for line in range(n_lines)
            ]
            values[key] = join_lines(lines, np.dtype(described.dtype), described)
        return values
