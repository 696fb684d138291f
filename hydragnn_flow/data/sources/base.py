"""Protocol of sources: chunks that are read in parallel, and records that become graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.sources import Role
from hydragnn_flow.data.positions import INEXACT, are_resolved
from hydragnn_flow.data.sources.arrays import add_keys
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.data.truncation import Truncation, count_truncation, whole
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    import ase
    import torch
    from torch_geometric.data import Data

    from hydragnn_flow.data.neighbours import Neighbours


@dataclass(frozen=True)
class Chunk:
    """Consecutive structures of one file that one process reads; all fields are JSON."""

    role: Role
    file: str
    """Path of the file; empty if structures are generated."""
    start: int
    """Position of the first structure within the file."""
    stop: int
    """Position after the last structure."""
    first: int
    """Position of the file's first structure among all structures of the role, files in order."""
    data_set: int = 0
    """Index of the data set among ``data.sources``."""


@dataclass(frozen=True)
class Labelled:
    """Structure with its checked labels."""

    atoms: ase.Atoms
    """Positions and cell in Å; without a calculator."""
    targets: dict[str, NDArray[np.float64]]
    """Labels by target: [d] for the whole structure, [n_atoms, d] for atoms."""
    origin: str
    """File and position in it, for messages."""
    index: int
    """Position among all structures of its role: the graph's ``graph_id``."""
    group: str | None = None
    """Group of the structure, if the source names groups."""
    x: NDArray[np.float64] | None = None
    """Node features [n_atoms, n_features] instead of atomic numbers; with them, the elements of
    ``atoms`` are ignored."""
    keys: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Further arrays of the graph by key, such as ``pe``; :func:`network_keys` lists them."""

    def graph(self, cutoff: float, max_neighbours: int | None) -> Data:
        """Build the structure's graph, with edges up to the length ``cutoff`` [Å].

        Each atom has edges from its ``max_neighbours`` nearest neighbours; None for all neighbours.

        Raises
        ------
        InputError
            If the structure cannot be a graph; the message names file and structure.
        """
        from hydragnn_flow.data.graphs import atoms_to_graph

        try:
            graph = atoms_to_graph(
                self.atoms, cutoff, max_neighbours, self.index, self.targets, self.x
            )
        except InputError as error:
            # The error has the number in the whole input; users know the number in the file.
            said = str(error).removeprefix(f"structure {self.index} ")
            raise InputError(f"{self.origin} {said}") from None
        return add_keys(graph, self.keys)

    def truncation(self, graph: Data, cutoff: float, max_neighbours: int | None) -> Truncation:
        """Return counts of the neighbours within the cutoff that :meth:`graph` left out."""
        from hydragnn_flow.data.graphs import truncation_of

        return truncation_of(self.atoms, graph, cutoff, max_neighbours)


@dataclass(frozen=True)
class ReadyGraph:
    """Checked graph that a source provides complete, with its own edges."""

    data: Data
    """Graph in the layout of :func:`atoms_to_graph`, with targets and ``graph_id``."""
    origin: str
    """File and position in it, for messages."""
    index: int
    """Position among all graphs of its role, the same as ``graph_id``."""
    group: str | None = None
    """Group of the graph, if the source names groups."""
    of_topology: bool = False
    """True if edges come from Voronoi cells or finite elements. Such edges differ in length, and a
    node may have very many others within the length of the longest."""

    @property
    def longest_edge(self) -> float:
        """Length of the longest edge, in the unit of the positions; 0 without edges."""
        lengths = self._lengths()
        return float(lengths.max()) if len(lengths) else 0.0

    def graph(self, cutoff: float, max_neighbours: int | None) -> Data:
        """Return the graph with its own edges.

        Raises
        ------
        InputError
            If an edge is longer than the cutoff, as networks would silently ignore it; the message
            names file and graph.
        """
        longest = self.longest_edge
        if longest > cutoff * (1 + INEXACT):
            raise InputError(
                f"{self.origin} has an edge of length {longest:.6g}, but networks see none beyond "
                f"Architecture.radius = {cutoff:g}; set Architecture.radius to the longest edge "
                f"of all graphs ({longest:.6g} or more), or remove such edges"
            )
        return self.data

    def has_own_edges(self, cutoff: float, max_neighbours: int | None) -> bool:
        """Return True if the graph's edges differ from a neighbour list with these settings.

        ``cutoff`` is the maximum length of an edge [Å], ``max_neighbours`` the number of nearest
        neighbours kept per atom, None for all.
        """
        found = self._neighbours(cutoff, max_neighbours)
        if found is None:
            return True
        ours = _in_order(found.senders, found.receivers, found.distances)
        senders, receivers = self.data.edge_index.numpy()
        brought = _in_order(senders, receivers, self._lengths().numpy())
        return ours.shape != brought.shape or not np.allclose(ours, brought, rtol=INEXACT)

    def truncation(self, graph: Data, cutoff: float, max_neighbours: int | None) -> Truncation:
        """Return counts of the neighbours within the cutoff that the graph's own edges leave out.

        Edges of Voronoi cells or finite elements leave out nothing, as they are not neighbour
        lists. Edges as long as the cutoff do not count, as rounding decides which of these exist.
        """
        closer = cutoff * (1 - INEXACT)
        receivers, lengths = self.data.edge_index[1].numpy(), self._lengths().numpy()
        close, n_atoms = lengths <= closer, len(self.data.pos)
        kept, lengths = receivers[close], lengths[close]
        found = self._neighbours(closer, None)
        if found is None:
            return whole(np.bincount(kept, minlength=n_atoms))
        return count_truncation(kept, lengths, found.receivers, found.distances, n_atoms)

    def _neighbours(self, cutoff: float, max_neighbours: int | None) -> Neighbours | None:
        """Return the edges of :func:`neighbour_list`; None if the graph cannot have such a list.

        That is a graph of Voronoi cells or finite elements, or one too far from the origin.
        """
        positions, cell = self.data.pos.double().numpy(), self.data.cell.double().numpy()
        if self.of_topology or not are_resolved(positions, cutoff):
            return None
        from hydragnn_flow.data.neighbours import neighbour_list

        pbc = self.data.pbc.bool().numpy()
        return neighbour_list(positions, cell, pbc, cutoff, max_neighbours)

    def _lengths(self) -> torch.Tensor:
        import torch

        senders, receivers = self.data.edge_index
        vectors = self.data.pos[receivers] - self.data.pos[senders] + self.data.edge_shifts
        lengths: torch.Tensor = torch.linalg.norm(vectors, dim=1)
        return lengths


def _in_order(
    senders: NDArray[np.int64], receivers: NDArray[np.int64], lengths: NDArray[np.floating[Any]]
) -> NDArray[np.float64]:
    """Return edges as sorted rows of sender, receiver and length, [n_edges, 3].

    Such rows are enough to compare neighbour lists, which have all equally long edges of an atom,
    or none of them.
    """
    order = np.lexsort((lengths, receivers, senders))
    return np.column_stack([senders, receivers, lengths])[order]


Record = Labelled | ReadyGraph


class Source(Protocol):
    """Protocol of readers of a data set; a section's ``open`` makes one in each reading process.

    All processes see the same input: reading a chunk must not depend on having read another chunk.
    """

    @property
    def node_features(self) -> Sequence[str]:
        """Names of the columns of ``x``; ``("atomic_number",)`` for atoms."""
        ...

    @property
    def found_targets(self) -> Mapping[str, Target]:
        """Targets by name, found in the records read so far; empty before the first record.

        Records of one source object agree. If several processes read chunks, the caller compares
        the targets of the processes.
        """
        ...

    def files(self) -> list[Path]:
        """Return every file that is read, in order; an empty list if structures are generated.

        Raises
        ------
        InputError
            If a file is missing or cannot be read.
        """
        ...

    def chunks(self) -> list[Chunk]:
        """Return chunks of all structures of all roles, in order.

        Raises
        ------
        InputError
            If a file is missing, cannot be read or holds no structures, or its first structure
            lacks labels. The message names file, key and remedy.
        """
        ...

    def read(self, chunk: Chunk) -> Iterator[Record]:
        """Yield the structures of a chunk in order, each checked when it is read.

        Any range of a file within one of its chunks can be read, alone and repeatedly.

        Raises
        ------
        InputError
            If a structure cannot be read, or a label is missing, not finite, or differs in shape
            from that of the structures before; the message names file and structure.
        """
        ...
