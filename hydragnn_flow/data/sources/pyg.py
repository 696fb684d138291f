"""Source of saved PyG graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from hydragnn_flow.data.sources.base import Chunk, Record
from hydragnn_flow.data.sources.features import ATOMIC_NUMBER, column_names, feature_rows
from hydragnn_flow.data.sources.file_names import FilesSection, ranges
from hydragnn_flow.data.sources.graph_files import GraphFiles, LevelledTargets
from hydragnn_flow.data.sources.pyg_keys import Arrays, graph_record, n_nodes, tensors
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    from torch_geometric.data import Data

_GRAPHS_PER_CHUNK = 1000
# Each chunk opens its file again, and a list of graphs is then loaded as a whole.
_MOST_CHUNKS = 16


class PygSource(FilesSection):
    """Files `.pt` of PyG graphs: one `Data`, a list of them, or an InMemoryDataset's content.

    Nodes have the columns of `x`, or else `z` as their chemical elements. Edges of the graphs are
    kept; graphs without edges get those within the cutoff. Other keys that are not targets are not
    read.
    """

    reads = "saved `torch_geometric` graphs"
    labels = "keys of a graph"

    targets: LevelledTargets
    """Targets by name: level, unit, and key if it has another name in the files."""
    node_features: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Names of the columns of `x`; `atomic_number` is the chemical element. The default is x_0,
    x_1, …, all plain numbers."""

    def open(self, folder: Path, seed: int) -> PygFiles:
        return PygFiles(self, folder)


class PygFiles(GraphFiles[PygSource]):
    """Reader of graphs in `.pt` files.

    Parameters
    ----------
    section
        Section of the source: files and targets.
    folder
        Directory that the file names are relative to.
    """

    def __init__(self, section: PygSource, folder: Path) -> None:
        super().__init__(section, folder, suffixes=(".pt",))

    def chunks(self) -> list[Chunk]:
        """Return ranges of the graphs of each file."""
        from hydragnn_flow.data.sources.pt_files import load_graphs

        self._read_first()
        chunks = []
        for role, found in self._by_role.items():
            first = 0
            for path in found:
                n = len(load_graphs(path))
                chunks += [
                    Chunk(role, str(path), start, stop, first)
                    for start, stop in ranges(n, _GRAPHS_PER_CHUNK, _MOST_CHUNKS)
                ]
                first += n
        return chunks

    def read(self, chunk: Chunk) -> Iterator[Record]:
        """Yield the graphs of a chunk."""
        from hydragnn_flow.data.sources.pt_files import load_graphs

        graphs = load_graphs(Path(chunk.file))
        for i in range(chunk.start, chunk.stop):
            origin = f"{chunk.file}: graph {i}"
            record, names = self._record(graphs[i], chunk.first + i, origin)
            self._check_features(names, origin)
            yield record

    def _read(self, path: Path, index: int) -> tuple[Record, Sequence[str]]:
        from hydragnn_flow.data.sources.pt_files import load_graphs

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
