"""Sources: chunks to be read side by side, and records that become graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.sources import Role
from hydragnn_flow.data.positions import are_resolved
from hydragnn_flow.data.sources.network_keys import add_keys
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.data.truncation import Truncation, count_truncation, whole
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    import ase
    import torch
    from torch_geometric.data import Data

    from hydragnn_flow.data.neighbours import Neighbours

# Relative error of a length in single precision.
_ROUNDING = 1e-4


@dataclass(frozen=True)
class Chunk:
    """Consecutive structures of one file: what one process reads at a time. All of it is JSON."""

    role: Role
    file: str
    """Path of the file; empty if structures are generated."""
    start: int
    """Position of the first structure within the file."""
    stop: int
    """Position after that of the last."""
    first: int
    """Position of the file's first structure among all structures of the role, files in order."""
    data_set: int = 0
    """Place of the data set among those of ``data.sources``."""


@dataclass(frozen=True)
class Labelled:
    """A structure with its labels, checked."""

    atoms: ase.Atoms
    """Positions and cell in Å; without a calculator."""
    targets: dict[str, NDArray[np.float64]]
    """Labels: [d] for one of the whole structure, [n_atoms, d] for one of each atom."""
    origin: str
    """The file and the structure's position there, for messages."""
    index: int
    """Position among all structures of its role: the graph's ``graph_id``."""
    group: str | None = None
    """The group it belongs to, where the source names groups."""
    x: NDArray[np.float64] | None = None
    """Node features [n_atoms, n_features] in place of the atomic numbers; with these, the elements
    of ``atoms`` do not count."""
    keys: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Further keys of the graph, as :func:`network_keys` finds them."""

    def graph(self, cutoff: float, max_neighbours: int | None) -> Data:
        """The structure's graph, as :func:`atoms_to_graph` builds it.

        Raises
        ------
        InputError
            Naming file and structure, where it cannot be a graph.
        """
        from hydragnn_flow.data.graphs import atoms_to_graph

        try:
            graph = atoms_to_graph(
                self.atoms, cutoff, max_neighbours, self.index, self.targets, self.x
            )
        except InputError as error:
            # It knows the structure by its number in the whole input, the user by that in a file.
            said = str(error).removeprefix(f"structure {self.index} ")
            raise InputError(f"{self.origin} {said}") from None
        return add_keys(graph, self.keys)

    def truncation(self, graph: Data, cutoff: float, max_neighbours: int | None) -> Truncation:
        """Neighbours within the cutoff that :meth:`graph` left out."""
        from hydragnn_flow.data.graphs import truncation_of

        return truncation_of(self.atoms, graph, cutoff, max_neighbours)


@dataclass(frozen=True)
class ReadyGraph:
    """A graph that a source brings as it is, checked."""

    data: Data
    """In the layout of :func:`atoms_to_graph`, targets and ``graph_id`` included."""
    origin: str
    """The file and the graph's position there, for messages."""
    index: int
    """Position among all graphs of its role, the same as ``graph_id``."""
    group: str | None = None
    """The group it belongs to, where the source names groups."""
    of_topology: bool = False
    """Whether its edges are those of cells or elements; all within the longest of them may be very
    many, where some are much shorter."""

    @property
    def longest_edge(self) -> float:
        """Length of the longest edge, in the unit of the positions; 0 without edges."""
        lengths = self._lengths()
        return float(lengths.max()) if len(lengths) else 0.0

    def graph(self, cutoff: float, max_neighbours: int | None) -> Data:
        """The graph, with the edges that it has already.

        Raises
        ------
        InputError
            Naming file and graph, where an edge is longer than the cutoff: networks would pass
            over it in silence.
        """
        longest = self.longest_edge
        if longest > cutoff * (1 + _ROUNDING):
            raise InputError(
                f"{self.origin} has an edge of length {longest:.6g}, but networks see none beyond "
                f"Architecture.radius = {cutoff:g}; set Architecture.radius to the longest edge "
                f"of all graphs ({longest:.6g} or more), or remove such edges"
            )
        return self.data

    def has_own_edges(self, cutoff: float, max_neighbours: int | None) -> bool:
        """Whether its edges are others than :func:`neighbour_list` finds for the positions."""
        found = self._neighbours(cutoff, max_neighbours)
        if found is None:
            return True
        ours = _in_order(found.senders, found.receivers, found.distances)
        senders, receivers = self.data.edge_index.numpy()
        brought = _in_order(senders, receivers, self._lengths().numpy())
        return ours.shape != brought.shape or not np.allclose(ours, brought, rtol=_ROUNDING)

    def truncation(self, graph: Data, cutoff: float, max_neighbours: int | None) -> Truncation:
        """Neighbours within the cutoff that the graph's own edges leave out.

        Edges of a topology leave out nothing: they are no lists of neighbours. Edges that are as
        long as the cutoff do not count, as rounding decides which of these are there.
        """
        closer = cutoff * (1 - _ROUNDING)
        receivers, lengths = self.data.edge_index[1].numpy(), self._lengths().numpy()
        close, n_atoms = lengths <= closer, len(self.data.pos)
        kept, lengths = receivers[close], lengths[close]
        found = self._neighbours(closer, None)
        if found is None:
            return whole(np.bincount(kept, minlength=n_atoms))
        return count_truncation(kept, lengths, found.receivers, found.distances, n_atoms)

    def _neighbours(self, cutoff: float, max_neighbours: int | None) -> Neighbours | None:
        """Edges that :func:`neighbour_list` finds; None for edges of a topology."""
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
    """Edges as sorted rows of sender, receiver and length.

    That tells lists of neighbours apart: they have all edges of a length, or none.
    """
    order = np.lexsort((lengths, receivers, senders))
    return np.column_stack([senders, receivers, lengths])[order]


Record = Labelled | ReadyGraph


class Source(Protocol):
    """Reader of a source, made by a section's ``open`` in each process that reads.

    All of them see the same input: a source keeps no state that reading one chunk needs from
    reading another.
    """

    @property
    def node_features(self) -> Sequence[str]:
        """Names of the columns of ``x``; ``("atomic_number",)`` for atoms."""
        ...

    @property
    def found_targets(self) -> Mapping[str, Target]:
        """The targets as the records read so far have them; empty before the first.

        Records of one source object agree. If several processes read chunks, the caller compares
        their findings.
        """
        ...

    def files(self) -> list[Path]:
        """Every file that is read, in order; none if structures are generated.

        Raises
        ------
        InputError
            If one is missing or cannot be read.
        """
        ...

    def chunks(self) -> list[Chunk]:
        """All structures of all roles, in order.

        Raises
        ------
        InputError
            Soon, and naming file, key and remedy, where a file is missing, cannot be read, holds no
            structures, or where its first structure has not got the labels.
        """
        ...

    def read(self, chunk: Chunk) -> Iterator[Record]:
        """The structures of a chunk, in order, each checked as it comes.

        Any range of a file within one of its chunks can be read, alone and repeatedly.

        Raises
        ------
        InputError
            Naming file and structure, where one cannot be read, or a label is missing, is not
            finite, or differs in shape from that of the structures before it.
        """
        ...
