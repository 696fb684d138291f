"""Attention between all atoms of a graph that depends on their relative positions.

HydraGNN's engine `EquivariantTransformer`. Atom i averages over the other atoms j

    value(j) = Σ over paths and r: φ_r(|x_j - x_i|) · W_r (features of j ⊗ harmonics of x_j - x_i)

by the softmax over j of the products of queries and keys, which are invariant. HydraGNN computes
the matrix Σ φ_r W_r of every path for each pair of atoms, and multiplies it by the features of atom
j. Here the sum over j comes first, and the matrices W_r are applied once per atom. The numbers are
the same, with a fraction of the work, and no memory grows with pairs times the square of the width.

**Crystals.** HydraGNN refuses periodic graphs. Here a crystal is the limit of ever larger pieces of
it. Nearly all images of an atom are then far away, equally in all directions. So a value has the
φ_r of an infinite distance and only harmonics of degree zero, and an atom also sees its own images.
The average therefore runs over the atoms of the cell and is the same in a supercell. Positions in
the cell matter only through the atoms' features.

Attention, normalisation and perceptron act on scalars, vectors and features of higher degree, and
are equivariant. The design is HydraGNN's own; see ``docs/equivariant_graph_transformer.md`` there.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hydragnn_flow.models.couplings import (
    SphericalHarmonics,
    Table,
    clebsch_gordan,
    components,
    couple_to,
)
from hydragnn_flow.models.geometry import Geometry, Padding, Space
from hydragnn_flow.models.kernels.recomputed import recomputed
from hydragnn_flow.models.mpnn.base import NodeState


class DegreeLinear(nn.Module):
    """Linear map of the channels of equivariant features, separate for each degree, without a bias.

    Its weights are one parameter, because some degrees are zero in crystals: a parameter without
    any gradient would stop training on several ranks (processes of a distributed job).

    Parameters
    ----------
    highest
        Highest degree of the features.
    inputs, outputs
        Numbers of input and output channels.
    gain
        Ratio of the output's initial scale to that of the input.
    """

    def __init__(self, highest: int, inputs: int, outputs: int, gain: float = 1.0) -> None:
        super().__init__()
        drawn = torch.randn(highest + 1, inputs, outputs)
        self.weight = nn.Parameter(drawn * (gain * inputs**-0.5))

    def forward(self, features: Tensor) -> Tensor:
        """Map features [n, (highest + 1)², inputs] to [n, (highest + 1)², outputs]."""
        degrees = enumerate(self.weight.unbind())
        mixed = [features[:, components(degree)] @ weight for degree, weight in degrees]
        return torch.cat(mixed, dim=1)


class PairFunctions(nn.Module):
    """Learnt functions φ of the distance between two atoms, the last of which is a constant.

    The other functions are a linear layer and a SiLU on Gaussians of d / (1 Å + d), which goes from
    zero to one with the distance d. The functions have no cutoff.

    Parameters
    ----------
    size
        Number of Gaussians, and number of functions besides the constant.
    """

    centres: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("centres", torch.linspace(0.0, 1.0, size), persistent=False)
        self.exponent = -(max(size - 1, 1) ** 2)
        self.mix = nn.Linear(size, size)
        self.size = size + 1
        """Number of functions, including the constant."""

    def forward(self, nearness: Tensor) -> Tensor:
        """Compute the functions [..., size] from ``nearness`` [...], which is d / (1 Å + d).

        Here d is the distance between two atoms.
        """
        gaussians = torch.exp(self.exponent * (nearness[..., None] - self.centres).square())
        functions = functional.silu(self.mix(gaussians))
        return torch.cat([functions, torch.ones_like(functions[..., :1])], dim=-1)

    def at_infinity(self) -> Tensor:
        """Return the functions' values [size] for two atoms at infinite distance."""
        functions: Tensor = self(torch.ones_like(self.centres[0]))
        return functions


class PairAverages(nn.Module):
    """Averages of values over the atoms of a graph, weighted by attention, for each attending atom.

    A value is a product of another atom's features, spherical harmonics of the direction to it and
    functions of the distance. The module's docstring has the formula.

    Parameters
    ----------
    width
        Number of channels of each degree.
    reads, writes
        Highest degree of the input features, and of the output features.
    heads
        Number of attention heads.
    highest
        Highest degree of the harmonics.
    radial
        Number of functions of the distance, besides the constant one.
    """

    def __init__(
        self, width: int, reads: int, writes: int, heads: int, highest: int, radial: int
    ) -> None:
        super().__init__()
        self.width, self.heads, self.reads, self.writes = width, heads, reads, writes
        self.functions = PairFunctions(radial)
        self.paths = [
            (first, second, result)
            for first in range(reads + 1)
            for second in range(highest + 1)
            for result in range(writes + 1)
            if couple_to(first, second, result)
        ]
        """Paths as degrees of (features, harmonics, product); each path has its own matrices."""
        # Others are unit matrices, divided by the root of their size if the result is a scalar.
        self.tables = nn.ModuleDict(
            {
                str(number): Table(clebsch_gordan(*path))
                for number, path in enumerate(self.paths)
                if 0 not in path
            }
        )
        self.highest = max(second for _, second, _ in self.paths)
        self.harmonics = SphericalHarmonics(self.highest)
        self.matrices = nn.Parameter(self._drawn())

    def _drawn(self) -> Tensor:
        """Draw initial matrices [n_paths, heads, n_functions · width, width]."""
        results = Counter(result for _, _, result in self.paths)
        inputs = self.functions.size * self.width
        drawn = torch.randn(len(self.paths), self.heads, inputs, self.width)
        scale = [(results[result] * inputs) ** -0.5 for _, _, result in self.paths]
        return drawn * torch.tensor(scale)[:, None, None, None]

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        features: Tensor,
        positions: Tensor,
        *,
        start: int,
        present: Tensor,
        space: Space,
    ) -> Tensor:
        """Return the averages of attending atoms [heads, n_graphs, (writes + 1)², n_rows, width].

        ``n_rows`` is the number of atoms of each graph that attend in this call.

        Parameters
        ----------
        queries
            Queries of the attending atoms [heads, n_graphs, n_rows, …].
        keys
            Keys of all atoms [heads, n_graphs, largest, …].
        features
            Features of all atoms [n_graphs, largest, components · width].
        positions
            Positions of all atoms [n_graphs, largest, 3] in Å.
        start
            Index of the first attending atom in each graph.
        present
            Mask of the rows that hold an atom, [n_graphs, largest].
        space
            Space that says which graphs are not periodic.
        """
        logits = queries @ keys.transpose(2, 3) * queries.shape[3] ** -0.5
        atoms = torch.arange(present.shape[1], device=logits.device)
        itself = atoms[start : start + queries.shape[2], None] == atoms
        # An atom of a crystal sees its own images.
        seen = present[:, None] & ~(space.finite[:, None, None] & itself)
        # Finite and not -inf: a lone atom sees nothing, and its average has to be zero, not NaN.
        logits = logits.masked_fill(~seen, torch.finfo(logits.dtype).min)
        weights = logits.softmax(dim=3) * seen
        if not space.any_finite:
            return self._far(weights, features)
        rows = positions[:, start : start + queries.shape[2]]
        functions, harmonics = self._pairs(rows, positions, space.finite)
        return self._near(weights, functions, harmonics, features)

    def _pairs(self, rows: Tensor, positions: Tensor, finite: Tensor) -> tuple[Tensor, Tensor]:
        """Return functions of the distance and harmonics of the direction of each pair of atoms.

        Functions of the distance are [n_graphs, n_rows, size, largest], harmonics of the direction
        [(highest + 1)², n_graphs, n_rows, largest].
        """
        vectors = positions[:, None] - rows[:, :, None]
        # Like edge lengths, they have finite derivatives at zero.
        lengths = (vectors.square().sum(dim=3) + 1e-12).sqrt()
        finite = finite[:, None, None]
        nearness = torch.where(finite, lengths / (1.0 + lengths), 1.0)
        functions = self.functions(nearness).transpose(2, 3).contiguous()
        directions = (vectors / lengths[..., None] * finite[..., None]).view(-1, 3)
        harmonics = self.harmonics(directions).t()
        return functions, harmonics.reshape(-1, *lengths.shape)

    def _near(
        self, weights: Tensor, functions: Tensor, harmonics: Tensor, features: Tensor
    ) -> Tensor:
        """Compute averages if at least one graph is not a crystal (not periodic).

        Weights are [heads, n_graphs, n_rows, largest], features [n_graphs, largest, components ·
        width]; functions and harmonics come from :meth:`_pairs`.
        """
        heads, n_graphs, _, largest = weights.shape
        senders = features.view(n_graphs, largest, -1, self.width).transpose(1, 2)
        senders = senders.expand(heads, -1, -1, -1, -1)
        # By degree of the harmonics, [n_graphs, 2 second + 1, n_rows, n_functions, largest].
        pairs = [functions[:, None]]
        for second in range(1, self.highest + 1):
            here = harmonics[components(second)].transpose(0, 1)
            pairs.append(here[:, :, :, None] * functions[:, None])
        results: dict[int, Tensor] = {}
        for first in range(self.reads + 1):
            for second, of_pairs in enumerate(pairs):
                paths = [n for n, path in enumerate(self.paths) if path[:2] == (first, second)]
                if not paths:
                    continue
                of_degree = senders[:, :, components(first)]
                sums = self._sums(paths, weights, of_pairs, of_degree)
                for path, summed in zip(paths, sums, strict=True):
                    result, new = self.paths[path][2], self._map(summed, self.matrices[path])
                    results[result] = results[result] + new if result in results else new
        return torch.cat([results[degree] for degree in range(self.writes + 1)], dim=2)

    def _sums(
        self, paths: list[int], weights: Tensor, of_pairs: Tensor, senders: Tensor
    ) -> list[Tensor]:
        """Sum products of features of one degree and harmonics of one degree over atoms.

        ``paths`` are the paths with these degrees. Weights are [heads, n_graphs, n_rows, largest],
        ``of_pairs`` [n_graphs, 2 second + 1, n_rows, n_functions, largest], senders [heads,
        n_graphs, 2 first + 1, largest, width]. The sum of each path is [heads, n_graphs, 2 result +
        1, n_rows, n_functions, width].
        """
        first, second, result = self.paths[paths[0]]
        shape = (*weights.shape[:2], -1, weights.shape[2], of_pairs.shape[3], self.width)
        if first and second and result == 0 and len(paths) == 1:
            # A scalar product also sums over components, each of which meets only its equal.
            of_pairs = of_pairs.permute(0, 2, 3, 1, 4).contiguous()
            factors = weights[:, :, :, None, None] * of_pairs
            sums = factors.flatten(4).flatten(2, 3) @ senders.flatten(2, 3)
            return [(sums / math.sqrt(2 * first + 1)).view(shape)]
        factors = (weights[:, :, None, :, None] * of_pairs).flatten(3, 4)
        if first == 0 or second == 0:
            return [(factors @ senders).view(shape)]
        # Shape [heads, n_graphs, 2 second + 1, 2 first + 1, n_rows · n_functions, width]
        sums = factors[:, :, :, None] @ senders[:, :, None]
        tables = [self._table(path, sums) for path in paths]
        return [torch.einsum("hgymrw,myk->hgkrw", sums, table).view(shape) for table in tables]

    def _table(self, path: int, like: Tensor) -> Tensor:
        """Return a path's Clebsch-Gordan coefficients [2 first + 1, 2 second + 1, 2 result + 1]."""
        if str(path) in self.tables:
            table: Tensor = self.tables[str(path)](like)
            return table
        size = 2 * self.paths[path][0] + 1  # to a scalar
        unit: Tensor = torch.eye(size, dtype=like.dtype, device=like.device)
        return unit[:, :, None] / math.sqrt(size)

    def _map(self, summed: Tensor, matrices: Tensor) -> Tensor:
        """Map [heads, …, n_functions, width] to [heads, …, width] by the matrices of each head."""
        flat = summed.reshape(self.heads, -1, matrices.shape[1])
        return torch.bmm(flat, matrices).view(*summed.shape[:-2], self.width)

    def _far(self, weights: Tensor, features: Tensor) -> Tensor:
        """Compute averages if all graphs are periodic; parameters are those of :meth:`_near`."""
        averaged = (weights @ features).view(*weights.shape[:3], -1, self.width).transpose(2, 3)
        functions = self.functions.at_infinity()[:, None, None]
        results = []
        for degree in range(self.writes + 1):
            if degree <= self.reads:
                by_function = self.matrices[self.paths.index((degree, 0, degree))]
                matrices = by_function.view(self.heads, -1, self.width, self.width)
                matrix = (matrices * functions).sum(dim=1)
                results.append(self._map(averaged[:, :, components(degree), :, None], matrix))
            else:
                shape = (*averaged.shape[:2], 2 * degree + 1, *averaged.shape[3:])
                results.append(averaged.new_zeros(shape))
        return torch.cat(results, dim=2)


class EquivariantAttention(nn.Module):
    """Softmax attention between a graph's atoms that depends on their relative positions.

    It averages products of other atoms' features and spherical harmonics of the directions to them.
    Features are [n_atoms, components, width] with the components of all degrees up to the highest,
    in e3nn's order.

    Parameters
    ----------
    width
        Number of channels of each degree.
    reads, writes
        Highest degree of the input features, and of the requested output.
    heads
        Number of attention heads, each as wide as the features.
    highest
        Highest degree of the harmonics.
    radial
        Number of functions of the distance, besides the constant one.
    chunk
        Number of atoms of a graph that attend at a time; None for all at once. With several chunks,
        pairs of atoms are recomputed in backward passes, so that memory does not grow with the
        number of pairs.
    gain
        Factor of the initial weights of the output map.
    """

    def __init__(
        self,
        width: int,
        reads: int,
        writes: int,
        heads: int,
        highest: int,
        radial: int,
        chunk: int | None,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.width, self.heads, self.chunk = width, heads, chunk
        # The products have no higher degrees.
        writes = min(writes, reads + highest)
        self.query = DegreeLinear(reads, width, heads * width)
        self.key = DegreeLinear(reads, width, heads * width)
        self.averages = PairAverages(width, reads, writes, heads, highest, radial)
        self.output = DegreeLinear(writes, heads * width, width, gain)

    def forward(self, features: Tensor, geometry: Geometry) -> Tensor:
        """Return the attention's output for each atom, [n_atoms, (writes + 1)², width].

        ``features`` are [n_atoms, (reads + 1)², width]. The output has fewer components if products
        with harmonics do not reach degree ``writes``.
        """
        padding, space = geometry.padding, geometry.space
        assert padding is not None and space is not None  # the encoder provides them
        queries = self._by_head(self.query(features), padding)
        keys = self._by_head(self.key(features), padding)
        padded = padding.pad(features.flatten(1)), padding.pad(space.positions)
        largest = padding.present.shape[1]
        at_a_time = min(self.chunk or largest, largest)
        parts: list[Tensor] = []
        for start in range(0, largest, at_a_time):
            given = queries[:, :, start : start + at_a_time], keys, *padded
            others: dict[str, Any] = {"start": start, "present": padding.present, "space": space}
            if at_a_time < largest:
                parts += recomputed(self.averages, *given, **others)
            else:
                parts.append(self.averages(*given, **others))
        # Shape [n_graphs, largest, components, heads, width]
        averaged = torch.cat(parts, dim=3).permute(1, 3, 2, 0, 4)
        of_atoms = padding.unpad(averaged.flatten(2))
        new: Tensor = self.output(of_atoms.view(len(features), -1, self.heads * self.width))
        return new.to(features.dtype)

    def _by_head(self, rows: Tensor, padding: Padding) -> Tensor:
        """Map [n_atoms, components, heads · width] to [heads, n_graphs, largest, …]."""
        padded = padding.pad(rows.flatten(1))
        split = padded.view(*padding.present.shape, -1, self.heads, self.width)
        return split.permute(3, 0, 1, 2, 4).flatten(3)


class RootMeanSquare(nn.Module):
    """Normalisation of an atom's features by their root mean square, which is invariant."""

    def __init__(self) -> None:
        super().__init__()
        # One-dimensional, because a parameter without dimensions cannot be sharded over ranks.
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, features: Tensor) -> Tensor:
        """Divide each atom's features [n_atoms, components, width] by their root mean square.

        A learnt factor, the same for all atoms, multiplies the result.
        """
        squares = features.square().mean(dim=(1, 2), keepdim=True)
        return features * (self.gain * (squares + 1e-8).rsqrt())


class Perceptron(nn.Module):
    """Perceptron on features of all degrees: two linear layers, with a gate by the norm in between.

    Parameters
    ----------
    highest
        Highest degree of the features.
    width
        Number of channels of each degree.
    multiplier
        Ratio of the number of hidden channels to ``width``.
    gain
        Factor of the initial weights of the second layer.
    """

    def __init__(self, highest: int, width: int, multiplier: int, gain: float = 1.0) -> None:
        super().__init__()
        self.first = DegreeLinear(highest, width, multiplier * width)
        self.second = DegreeLinear(highest, multiplier * width, width, gain)
        self.sizes = [2 * degree + 1 for degree in range(highest + 1)]

    def forward(self, features: Tensor) -> Tensor:
        """Return the perceptron's output for each atom's features, [n_atoms, components, width]."""
        hidden = self.first(features).to(features.dtype)
        # SiLU of the norm, in the same direction; with finite derivatives at zero.
        parts = [
            part * (part.square().sum(dim=1, keepdim=True) + 1e-12).sqrt().sigmoid()
            for part in hidden.split(self.sizes, dim=1)
        ]
        new: Tensor = self.second(torch.cat(parts, dim=1))
        return new.to(features.dtype)


class EquivariantTransformerLayer(nn.Module):
    """Message-passing layer and equivariant attention, followed by a perceptron.

    Parameters
    ----------
    layer
        Message-passing layer, which includes its own residual connection.
    attention
        Attention over the atoms of a graph.
    perceptron
        Perceptron for the output features.
    sequential
        If true, attention acts on the output of message passing, otherwise in parallel to it.
    """

    def __init__(
        self,
        layer: nn.Module,
        attention: EquivariantAttention,
        perceptron: Perceptron,
        *,
        sequential: bool,
    ) -> None:
        super().__init__()
        self.layer = layer
        self.attention = attention
        self.perceptron = perceptron
        self.sequential = sequential
        self.attention_norm = RootMeanSquare()
        self.norm = RootMeanSquare()

    def forward(self, state: NodeState, features: Any, geometry: Geometry) -> NodeState:
        """Return the atoms' features after this layer; their scalars are [n_atoms, width]."""
        new: NodeState = self.layer(state, features, geometry)
        nodes = _together(new)
        read = nodes if self.sequential else _together(state)
        far = self.attention(self.attention_norm(read), geometry)
        # Attention may not reach the highest degrees.
        reached = far.shape[1]
        nodes = torch.cat([nodes[:, :reached] + far, nodes[:, reached:]], dim=1)
        nodes = nodes + self.perceptron(self.norm(nodes))
        return NodeState(nodes[:, 0], nodes[:, 1:] if new.tensors is not None else None)


def _together(state: NodeState) -> Tensor:
    """Return features of all degrees [n_atoms, components, width]."""
    scalars = state.scalars[:, None]
    return scalars if state.tensors is None else torch.cat([scalars, state.tensors], dim=1)
