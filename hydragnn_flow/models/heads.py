"""Output heads: pooling and layers that lead to targets in the data's units, perhaps with noise."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import torch
from torch import Tensor, nn, promote_types
from torch.nn import functional

from hydragnn_flow.config.network.architecture import GraphHead, NodeHead
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.branches import chosen
from hydragnn_flow.models.geometry import Geometry, sum_by
from hydragnn_flow.models.layers import (
    activation,
    hidden_layers,
    of_branch,
    pack_by_branch,
    unpack_exact,
)
from hydragnn_flow.models.mpnn import MessagePassing


@dataclass(frozen=True)
class HeadContext:
    """Properties of a network, such as its width, that its output heads depend on.

    Attributes
    ----------
    width
        Number of features of an atom or graph that the heads read.
    activation
        HydraGNN's name of the activation.
    places
        Number of atoms in every graph; None if graphs differ in size.
    convolutions
        Function that returns message-passing layers of the network's type, given width and depth.
    """

    width: int
    activation: str
    places: int | None
    convolutions: Callable[[int, int], MessagePassing]


class BranchHeads(nn.Module):
    """Base class of the output heads of one branch (data set) at one level (graph or node).

    A subclass is constructed with HydraGNN's description of the heads, the number of components of
    each output, and properties of the network.

    Attributes
    ----------
    heads
        Head of each output, which ends in a linear layer.
    """

    heads: nn.ModuleList

    def prepare(self, features: Tensor, geometry: Geometry) -> Tensor:
        """Return the common input of all heads; by default ``features`` [n, width] unchanged."""
        return features

    def forward(self, features: Tensor, geometry: Geometry) -> list[Tensor]:
        """Return the output [n, d] of each head, from features [n, width] of n graphs or atoms."""
        prepared = self.prepare(features, geometry)
        return [head(prepared) for head in self.heads]


class PerceptronHeads(BranchHeads):
    """Heads of graphs or nodes: a perceptron for each output, the same for every row.

    Graph heads have hidden layers before it that all outputs share.
    """

    def __init__(
        self, head: GraphHead | NodeHead, dims: Sequence[int], context: HeadContext
    ) -> None:
        super().__init__()
        widths = [context.width]
        if isinstance(head, GraphHead):
            widths += [head.dim_sharedlayers] * head.num_sharedlayers
        self.shared = hidden_layers(widths, context.activation)
        widths = [widths[-1], *_hidden(head)]
        self.heads = nn.ModuleList(
            nn.Sequential(*hidden_layers(widths, context.activation), nn.Linear(widths[-1], dim))
            for dim in dims
        )

    def prepare(self, features: Tensor, geometry: Geometry) -> Tensor:
        """Return features [n, d] after the shared layers, from features [n, width]."""
        shared: Tensor = self.shared(features)
        return shared


class ConvolutionHeads(BranchHeads):
    """Node heads: message-passing layers of the network's type, then a linear map per output.

    HydraGNN ends in a message-passing layer as wide as the output, so one to three numbers are a
    bottleneck for messages. Here the layers keep their width.
    """

    def __init__(self, head: NodeHead, dims: Sequence[int], context: HeadContext) -> None:
        super().__init__()
        width = context.width
        steps: list[nn.Module] = []
        for wide, group in groupby(_hidden(head)):
            steps.append(nn.Identity() if wide == width else nn.Linear(width, wide))
            # Consecutive layers of one width form a stack, which reads the edges once.
            steps.append(context.convolutions(wide, len(list(group))))
            width = wide
        self.steps = nn.ModuleList(steps)
        self.heads = nn.ModuleList(nn.Sequential(nn.Linear(width, dim)) for dim in dims)

    def prepare(self, features: Tensor, geometry: Geometry) -> Tensor:
        """Return node features [n_atoms, d] after the message-passing layers."""
        for step in self.steps:
            features = (
                step(features, geometry) if isinstance(step, MessagePassing) else step(features)
            )
        return features


class PlaceHeads(BranchHeads):
    """Node heads: a separate perceptron for each place (position in the order of a graph's atoms).

    They suit graphs of equal size whose order of atoms has a meaning.
    """

    def __init__(self, head: NodeHead, dims: Sequence[int], context: HeadContext) -> None:
        super().__init__()
        assert context.places is not None  # checked by head_context
        self.places = context.places
        widths = [context.width, *_hidden(head)]
        self.heads = nn.ModuleList()
        for dim in dims:
            layers: list[nn.Module] = []
            for wide, narrow in pairwise(widths):
                layers += [PlaceLinear(self.places, wide, narrow), activation(context.activation)]
            self.heads.append(nn.Sequential(*layers, PlaceLinear(self.places, widths[-1], dim)))

    def prepare(self, features: Tensor, geometry: Geometry) -> Tensor:
        """Arrange features by the atoms' places in their graph, [places, n_graphs, width].

        Raises
        ------
        InputError
            If a graph has another number of atoms than ``places``. On an accelerator only the total
            is checked, because the host would have to wait for more.
        """
        if geometry.graph.device.type != "meta":
            self._check(geometry)
        # The batch of average size whose cost is counted may not consist of whole graphs.
        elif missing := -geometry.n_atoms % self.places:
            features = torch.cat([features, features.new_empty((missing, features.shape[1]))])
        return features.view(-1, self.places, features.shape[1]).transpose(0, 1)

    def forward(self, features: Tensor, geometry: Geometry) -> list[Tensor]:
        """Return the output [n_atoms, d] of each head, from node features [n_atoms, width]."""
        by_place = super().forward(features, geometry)
        return [output.transpose(0, 1).flatten(0, 1)[: geometry.n_atoms] for output in by_place]

    def _check(self, geometry: Geometry) -> None:
        fits = geometry.n_atoms == geometry.n_graphs * self.places
        if fits and geometry.graph.device.type == "cpu":
            expected = torch.arange(geometry.n_graphs).repeat_interleave(self.places)
            fits = torch.equal(geometry.graph, expected)
        if not fits:
            raise InputError(
                f"the node heads of type 'mlp_per_node' were trained on graphs of {self.places} "
                f"atoms and take no others; leave them out"
            )


class PlaceLinear(nn.Module):
    """Linear layers, one for each place (position in the order of a graph's atoms).

    One batched product computes them all. Weights are drawn like those of
    :func:`~hydragnn_flow.models.build_model`'s linear layers.

    Parameters
    ----------
    places
        Number of atoms in every graph.
    wide, narrow
        Numbers of input and output features.
    """

    def __init__(self, places: int, wide: int, narrow: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(places, wide, narrow) * wide**-0.5)
        self.bias = nn.Parameter(torch.zeros(places, 1, narrow))

    def forward(self, features: Tensor) -> Tensor:
        """Apply the layer of each place: [places, n_graphs, wide] to [places, n_graphs, narrow]."""
        return torch.baddbmm(self.bias, features, self.weight)


_HEADS: dict[str, Callable[[Any, Sequence[int], HeadContext], BranchHeads]] = {
    "mlp_per_node": PlaceHeads,
    "conv": ConvolutionHeads,
}
"""Node heads that are no perceptrons of each row, by HydraGNN's names of their types."""


def _hidden(head: GraphHead | NodeHead) -> tuple[int, ...]:
    return tuple(head.dim_headlayers[: head.num_headlayers])


NOISE_SUFFIX = "_aleatoric_std"
"""Suffix of a target's name in the name of the output with the standard deviation of its noise."""


@dataclass(frozen=True)
class Output:
    """Output of a network: its name, level (graph or node), and statistics of the target.

    Attributes
    ----------
    name
        Name of the target in the store.
    level
        Level of the target's rows, ``graph`` or ``node``.
    mean, std
        Mean and standard deviation over the training structures, by branch and component, in the
        target's unit. For classes, logarithm of each class's share, and 1.
    of_classes
        True if the components are the probabilities of classes.
    """

    name: str
    level: str
    mean: tuple[tuple[float, ...], ...]
    std: tuple[tuple[float, ...], ...]
    of_classes: bool = False

    @property
    def dim(self) -> int:
        """Number of components of the target."""
        return len(self.mean[0])


class BranchedHeads(nn.Module):
    """Output heads of all branches (data sets) at one level (graph or node).

    Each graph or atom gets the outputs of its own branch.

    Parameters
    ----------
    heads
        HydraGNN's description of the heads of each branch.
    dims
        Number of components of each output.
    context
        Properties of the network that heads depend on.
    noise
        If true, each output has twice as many columns, the second half for its noise.
    """

    places: Tensor | None

    def __init__(
        self,
        heads: Sequence[GraphHead | NodeHead],
        dims: Sequence[int],
        context: HeadContext,
        noise: bool = False,
    ) -> None:
        super().__init__()
        self.dims = tuple(dims)
        widths = [2 * dim if noise else dim for dim in dims]
        self.branches = nn.ModuleList(
            _HEADS.get(getattr(head, "type", ""), PerceptronHeads)(head, widths, context)
            for head in heads
        )
        # Index of each branch among those kept on this rank; None if all are kept.
        self.register_buffer("places", None, persistent=False)

    def __len__(self) -> int:
        return len(self.branches)

    def keep(self, branches: Collection[int]) -> None:
        """Remove the heads of all branches (data sets) except ``branches``, in place.

        ``branches`` are indices. Graphs of removed branches can no longer be computed. Remaining
        parameters keep their names.
        """
        places = torch.full((len(self),), -1)
        for place, number in enumerate(sorted(branches)):
            places[number] = place
        for number in range(len(self)):
            if number not in branches:
                self.branches[number] = nn.Identity()
        self.places = places

    def forward(self, features: Tensor, geometry: Geometry, branch: Tensor | None) -> list[Tensor]:
        """Return each output [n, d] of n graphs or atoms, from the heads of their own branch.

        With noise an output is [n, 2 d].

        Parameters
        ----------
        features
            Features of atoms or graphs [n, width].
        geometry
            Geometry of the batch.
        branch
            Index of each graph's or atom's branch, int64 [n]; None if there is only one branch.
        """
        if branch is not None and self.places is not None:
            branch = self.places.index_select(0, branch)  # -1 for a removed branch, which fails
        by_branch = [one(features, geometry) for one in self._here()]
        return [chosen(outputs, branch) for outputs in zip(*by_branch, strict=True)]

    @torch.no_grad()
    def set_bias(self, value: float) -> None:
        """Set the bias of every head's last layer to ``value``, except in the columns of noise."""
        for last, dim in self._last_layers():
            last.bias[..., :dim] = value

    @torch.no_grad()
    def scale_weights(self, factor: float) -> None:
        """Multiply the weights of every head's last layer by ``factor``."""
        for last, _ in self._last_layers():
            last.weight *= factor

    def _last_layers(self) -> Iterator[tuple[nn.Linear | PlaceLinear, int]]:
        for branch in self._here():
            for head, dim in zip(branch.heads, self.dims, strict=True):
                assert isinstance(head, nn.Sequential)
                last = head[-1]
                assert isinstance(last, (nn.Linear, PlaceLinear))
                yield last, dim

    def _here(self) -> list[BranchHeads]:
        return [branch for branch in self.branches if isinstance(branch, BranchHeads)]


def parameters_of_heads(model: nn.Module) -> int:
    """Return the number of parameters in a model's output heads, those of all branches together."""
    heads = (module for module in model.modules() if isinstance(module, BranchedHeads))
    return sum(weight.numel() for one in heads for weight in one.parameters())


class Rescale(nn.Module):
    """Conversion of a head's output from mean 0 and deviation 1 to the data's units.

    Graph targets are float64: near a total energy of -9391 eV the spacing of float32 is 1 meV.

    Parameters
    ----------
    output
        Target and its statistics.
    noise
        If true, the second half of the columns is the target's noise (Nix and Weigend,
        doi:10.1109/ICNN.1994.374138), made positive by a softplus.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, output: Output, noise: bool) -> None:
        super().__init__()
        self.name = output.name
        self.noise = noise
        self.exact = output.level == "graph"
        self.of_classes = output.of_classes
        self.register_buffer("mean", pack_by_branch(output.mean))
        self.register_buffer("std", pack_by_branch(output.std))

    def forward(self, raw: Tensor, branch: Tensor | None) -> dict[str, Tensor]:
        """Convert the output of a head [n, d], or [n, 2 d] with noise, to targets [n, d] by name.

        ``branch`` is the index of each row's branch, int64 [n]; None if there is only one branch.
        """
        # In the bfloat16 of automatic mixed precision, adding the mean would lose the rest.
        raw = raw.to(torch.float64 if self.exact else promote_types(raw.dtype, torch.float32))
        mean, std = (
            of_branch(unpack_exact(values).to(raw.dtype), branch)
            for values in (self.mean, self.std)
        )
        value, *noise = raw.chunk(1 + self.noise, dim=1)
        value = value * std + mean
        if self.of_classes:  # their noise is in the probabilities
            return {self.name: value.softmax(dim=1)}
        if not noise:
            return {self.name: value}
        return {self.name: value, self.name + NOISE_SUFFIX: deviations(noise[0]) * std}


def deviations(raw: Tensor) -> Tensor:
    """Return the standard deviations of a target's noise, which are positive.

    They are in units of the target's standard deviation. ``raw`` is the output of a network, of any
    sign.
    """
    # Smallest standard deviation of the noise, as a fraction of the target's spread. Without it
    # labels that repeat exactly would have unlimited likelihood.
    return functional.softplus(raw) + 1e-3


class Heads(nn.Module):
    """All output heads of one level (graph or node), which return targets in the data's units.

    Parameters
    ----------
    heads
        HydraGNN's description of the heads of each branch.
    outputs
        Targets to predict at this level.
    context
        Properties of the network that heads depend on.
    noise
        If true, each target comes with the standard deviation of its noise.
    """

    def __init__(
        self,
        heads: Sequence[GraphHead | NodeHead],
        outputs: Sequence[Output],
        context: HeadContext,
        noise: bool,
    ) -> None:
        super().__init__()
        dims = [output.dim for output in outputs]
        self.branches = BranchedHeads(heads, dims, context, noise)
        # A ModuleList, because a ModuleDict refuses some names of targets, such as "type".
        self.scales = nn.ModuleList(Rescale(output, noise) for output in outputs)

    def forward(
        self, features: Tensor, geometry: Geometry, branch: Tensor | None
    ) -> dict[str, Tensor]:
        """Return targets [n, d] by name, in the data's units, for n graphs or atoms.

        Parameters are those of :meth:`BranchedHeads.forward`.
        """
        found: dict[str, Tensor] = {}
        raw = self.branches(features, geometry, branch)
        for scale, values in zip(self.scales, raw, strict=True):
            found |= scale(values, branch)
        return found


def pool(nodes: Tensor, graph: Tensor, n_graphs: int, how: str) -> Tensor:
    """Pool node features by graph: [n_atoms, d] to [n_graphs, d].

    Parameters
    ----------
    nodes
        Features of all atoms in the batch.
    graph
        Index of the graph that each atom belongs to, int64 [n_atoms].
    n_graphs
        Number of graphs in the batch.
    how
        Kind of pooling: ``mean``, ``max``, or ``add``, also called ``sum``.
    """
    if how == "max":
        empty = nodes.new_zeros((n_graphs, nodes.shape[1]))
        index = graph[:, None].expand_as(nodes)
        return empty.scatter_reduce(0, index, nodes, "amax", include_self=False)
    total = sum_by(nodes, graph, n_graphs)
    if how == "mean":
        return total / sum_by(torch.ones_like(nodes[:, :1]), graph, n_graphs)
    return total
