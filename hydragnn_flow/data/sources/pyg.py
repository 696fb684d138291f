"""Source of saved PyG graphs, opened without running code from their files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from hydragnn_flow.data.sources.arrays import ATOMIC_NUMBER, column_names, named_rows
from hydragnn_flow.data.sources.file_names import FilesSection, LevelledTargets
from hydragnn_flow.data.sources.structures import Found, StructureSource, cut
from hydragnn_flow.errors import InputError


class PygSource(FilesSection):
    """Configuration section `data.source` for `.pt` files of PyG graphs.

    A file has one `Data`, a list of them, or an InMemoryDataset's content. Nodes have the columns
    of `x`, or else `z` as their chemical elements. Edges of the graphs are kept; graphs without
    edges get those within the cutoff. Other keys that are not targets are not read.
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


class PygFiles(StructureSource[PygSource]):
    """Reader of PyG graphs in `.pt` files."""

    suffixes = (".pt",)

    def ranges(self, file: Path) -> list[tuple[int, int]]:
        from hydragnn_flow.data.sources.pyg_graphs import load_graphs

        # Each range opens its file again, and a list of graphs is then loaded as a whole.
        return cut(len(load_graphs(file)), 16)

    def structures(self, file: Path, start: int, stop: int) -> Iterator[Found]:
        from hydragnn_flow.data.sources.pyg_graphs import graph_of, load_graphs, n_nodes, tensors

        graphs = load_graphs(file)
        labels = [target.key or name for name, target in self._section.targets.items()]
        for number in range(start, min(stop, len(graphs))):
            origin = f"{file}: structure {number}"
            arrays = tensors(graphs[number])
            key = "z" if "z" in arrays and "x" not in arrays else "x"
            width = named_rows(arrays, key, n_nodes(arrays, origin), origin).shape[1]
            given = [ATOMIC_NUMBER] if key == "z" else self._section.node_features
            names = given or column_names("x", width)
            if len(names) != width:
                raise InputError(
                    f"{origin}: {key} has {width} columns, not the {len(names)} that "
                    "data.source.node_features names; correct it"
                )
            yield graph_of(arrays, key, names, labels, origin)
