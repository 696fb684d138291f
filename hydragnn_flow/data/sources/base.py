"""Protocol of sources: chunks that are read in parallel, and records that become graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.sources import Role
from hydragnn_flow.data.neighbours import Neighbours, Truncation, whole
from hydragnn_flow.data.sources.arrays import add_keys
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    import ase
    from torch_geometric.data import Data


@dataclass(frozen=True)
class Chunk:
    """Range of consecutive structures in one file, which one process reads.

    All fields can be written as JSON.
    """

    role: Role
    file: str
    """Path of the file; empty if structures are generated."""
    start: int
    """Position of the first structure within the file."""
    stop: int
    """Position after the last structure."""
    first: int
    """Position of the file's first structure among all structures of the role, files in order. Data
    sets are numbered on."""
    data_set: int = 0
    """Index of the data set among ``data.sources``."""


class Nodes(NamedTuple):
    """Node features of a structure that replace atomic numbers, and its own edges if it has any."""

    x: NDArray[np.float64]
    """Node features [n_nodes, n_features]."""
    names: Sequence[str]
    """Names of the columns of ``x``."""
    edges: Neighbours | None = None
    """Edges of the graph; None to find edges within the cutoff."""
    edge_attr: NDArray[np.float64] | None = None
    """Edge features [n_edges, n_edge_features]; by default the lengths."""
    keys: Mapping[str, NDArray[Any]] = {}
    """Further arrays of the graph by key, such as ``pe``; :func:`network_keys` lists them."""
    of_topology: bool = False
    """True if edges come from Voronoi cells or finite elements, not from distances. Such edges
    differ in length, and a node may have very many others within the length of the longest."""


@dataclass(frozen=True)
class Record:
    """Structure with its checked labels, and with node features and edges if it has its own."""

    atoms: ase.Atoms
    """Positions and cell in Å; without a calculator. Elements, unless there are ``nodes``."""
    targets: dict[str, NDArray[np.float64]]
    """Labels by target: [d] for the whole structure, [n_atoms, d] for atoms. One that the structure
    lacks is not among them."""
    origin: str
    """File and position in it, for messages."""
    index: int
    """Position among all structures of its role: the graph's ``graph_id``."""
    group: str | None = None
    """Group of the structure, if the source names groups."""
    nodes: Nodes | None = None
    """Node features and edges, if nodes are more than chemical elements."""
    keys: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Further arrays of the graph by key, before those of ``nodes``."""
    id: str | None = None
    """Name of the structure in its file, if it has one there."""
    lacking: str = ""
    """Sentence that says why a label is missing; empty if none is."""
    frame: int | None = None
    """Index in the file; None if it is ``index``, counted from the file's first structure."""
    file: str = ""
    """Path of the structure's own file, if it is another than the chunk's: a table names it."""

    def masked(self, targets: Mapping[str, Target]) -> Record:
        """Return the record with a label of each of the targets, NaN where it is missing."""
        nothing = {
            name: np.full([len(self.atoms)] * (target.level == "node") + [target.dim], np.nan)
            for name, target in targets.items()
        }
        return replace(self, targets=nothing | self.targets)

    def graph(self, cutoff: float, max_neighbours: int | None) -> Data:
        """Build the structure's graph: with its own edges, or those up to the length ``cutoff``.

        The graph has edges from each atom's ``max_neighbours`` nearest neighbours; None for all
        neighbours. Own edges are all kept.

        Raises
        ------
        InputError
            If the structure cannot be a graph, or brings an edge longer than ``cutoff``, which
            networks would silently ignore; the message names file and structure.
        """
        from hydragnn_flow.data.graphs import assemble_graph, atoms_to_graph, check_lengths

        nodes, atoms = self.nodes, self.atoms
        try:
            if nodes is None or nodes.edges is None:
                x = None if nodes is None else nodes.x
                graph = atoms_to_graph(atoms, cutoff, max_neighbours, self.index, self.targets, x)
            else:
                graph = assemble_graph(
                    nodes.x,
                    atoms.positions,
                    np.where(atoms.pbc[:, None], atoms.cell.array, 0.0),
                    nodes.edges,
                    graph_id=self.index,
                    targets=self.targets,
                    edge_attr=nodes.edge_attr,
                )
                check_lengths(graph, cutoff, f"structure {self.index}")
        except InputError as error:
            # The error has the number in the whole input; users know the number in the file.
            said = str(error).removeprefix(f"structure {self.index} ")
            raise InputError(f"{self.origin} {said}") from None
        own = {} if nodes is None else nodes.keys
        return add_keys(graph, {**own, **self.keys})

    def has_own_edges(self, graph: Data, cutoff: float, max_neighbours: int | None) -> bool:
        """Return True if the structure brings edges that are not those of a neighbour list.

        ``graph`` is the result of :meth:`graph` with the same ``cutoff`` and ``max_neighbours``.
        """
        from hydragnn_flow.data.graphs import has_own_edges

        if self.nodes is None or self.nodes.edges is None:
            return False
        return self.nodes.of_topology or has_own_edges(graph, cutoff, max_neighbours)

    def truncation(self, graph: Data, cutoff: float, max_neighbours: int | None) -> Truncation:
        """Count the neighbours within ``cutoff`` that the structure's graph leaves out.

        ``graph`` is the result of :meth:`graph` with the same settings. Edges of Voronoi cells or
        finite elements leave out nothing, as they are not neighbour lists.
        """
        from hydragnn_flow.data.graphs import truncation_of

        kept = np.bincount(graph.edge_index[1].numpy(), minlength=len(graph.pos))
        if self.nodes is not None and self.nodes.edges is not None:
            return whole(kept) if self.nodes.of_topology else truncation_of(graph, cutoff)
        if max_neighbours is None or kept.max(initial=0) < max_neighbours:
            return whole(kept)
        return truncation_of(graph, cutoff, self.atoms)


class Source(Protocol):
    """Protocol of classes that read or generate the structures of one data set.

    The method ``open`` of a section `data.source` makes an object in each reading process. All
    processes see the same input: reading a chunk must not depend on having read another chunk.
    """

    @property
    def node_features(self) -> Sequence[str]:
        """Names of the node features, the columns of ``x``; ``("atomic_number",)`` for atoms."""
        ...

    @property
    def found_targets(self) -> Mapping[str, Target]:
        """Targets (quantities to learn) by name, found in the structures read so far.

        Records of one source object agree. If several processes read chunks, the caller compares
        the targets of the processes.
        """
        ...

    def files(self) -> list[Path]:
        """Return every file of the data set that is read, in order.

        The list is empty if structures are generated.

        Raises
        ------
        InputError
            If a file is missing or cannot be read.
        """
        ...

    def chunks(self) -> list[Chunk]:
        """Return chunks (ranges of structures in a file) that cover the data set, in order.

        They cover all roles, the splits that structures are meant for.

        Raises
        ------
        InputError
            If a file is missing, cannot be read or holds no structures, or its first structure
            lacks labels. The message names file, key and remedy.
        """
        ...

    def read(self, chunk: Chunk) -> Iterator[Record]:
        """Yield the structures of a chunk (range in one file) in order, each after checks.

        Any range of a file within one of its chunks can be read, alone and repeatedly.

        Raises
        ------
        InputError
            If a structure cannot be read, or a label is missing, not finite, or differs in shape
            from that of the structures before; the message names file and structure.
        """
        ...
