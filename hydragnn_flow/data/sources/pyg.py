"""Saved PyG graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from torch_geometric.data import Data

from hydragnn_flow.config.graph_sources import PygSource
from hydragnn_flow.data.sources.base import Part, Record
from hydragnn_flow.data.sources.features import ATOMIC_NUMBER, column_names, feature_rows
from hydragnn_flow.data.sources.files import ranges
from hydragnn_flow.data.sources.graph_files import GraphFiles
from hydragnn_flow.data.sources.pt_files import load_graphs
from hydragnn_flow.data.sources.pyg_keys import Arrays, graph_record, n_nodes, tensors
from hydragnn_flow.errors import InputError

_GRAPHS_PER_PART = 1000
# Each part opens its file anew, which for a list of graphs means to load all of it.
_MOST_PARTS = 16


class PygFiles(GraphFiles[PygSource]):
    """Graphs in `.pt` files.

    Parameters
    ----------
    section
        Files and targets.
    folder
        Directory the files are relative to.
    """

    def __init__(self, section: PygSource, folder: Path) -> None:
        super().__init__(section, folder, suffixes=(".pt",))

    def parts(self) -> list[Part]:
        """Ranges of the graphs of each file."""
        self._read_first()
        parts = []
        for role, found in self._by_role.items():
            first = 0
            for path in found:
                n = len(load_graphs(path))
                parts += [
                    Part(role, str(path), start, stop, first)
                    for start, stop in ranges(n, _GRAPHS_PER_PART, _MOST_PARTS)
                ]
                first += n
        return parts

    def read(self, part: Part) -> Iterator[Record]:
        """The graphs of a part."""
        graphs = load_graphs(Path(part.file))
        for i in range(part.start, part.stop):
            origin = f"{part.file}: graph {i}"
            record, names = self._record(graphs[i], part.first + i, origin)
            self._check_features(names, origin)
            yield record

    def _read(self, path: Path, index: int) -> tuple[Record, Sequence[str]]:
        return self._record(load_graphs(path)[0], index, f"{path}: graph 0")

    def _record(self, data: Data, index: int, origin: str) -> tuple[Record, Sequence[str]]:
        arrays = tensors(data)
        n = n_nodes(arrays, origin)
        targets = self._targets(arrays, arrays, n, origin)
        key = "z" if "z" in arrays and "x" not in arrays else "x"
        names = self._names(arrays, key, n, origin)
        record = graph_record(arrays, key, names, targets, index, origin, self._label_keys)
        return record, names

    def _names(self, arrays: Arrays, key: str, n: int, origin: str) -> Sequence[str]:
        width = feature_rows(arrays, key, n, origin).shape[1]
        given = [ATOMIC_NUMBER] if key == "z" else self._section.node_features
        names = given or column_names("x", width)
        if len(names) != width:
            raise InputError(
                f"{origin}: {key} has {width} columns, not the {len(names)} that "
                "data.source.node_features names; correct it"
            )
        return names
