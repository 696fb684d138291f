"""Output heads: from features to targets in the data's units, optionally with their noise."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn, promote_types
from torch.nn import functional

from hydragnn_flow.config.network import GraphHead, NodeHead
from hydragnn_flow.models.exact import of_branch, pack_by_branch, unpack_exact
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.outputs.branches import chosen
from hydragnn_flow.models.outputs.head_layers import (
    BranchHeads,
    HeadContext,
    PlaceLinear,
    make_heads,
)

NOISE_SUFFIX = "_aleatoric_std"
"""Suffix of the output with the standard deviation of a target's noise."""


@dataclass(frozen=True)
class Output:
    """Output of a network, with statistics of its target.

    Attributes
    ----------
    name
        Name of the target in the store.
    level
        Level of its rows, ``graph`` or ``node``.
    mean, std
        Mean and deviation over the training structures of each branch, by component, in its unit.
    """

    name: str
    level: str
    mean: tuple[tuple[float, ...], ...]
    std: tuple[tuple[float, ...], ...]

    @property
    def dim(self) -> int:
        """Number of components."""
        return len(self.mean[0])


class BranchedHeads(nn.Module):
    """Heads of one level for all branches; each row gets the outputs of its branch.

    Parameters
    ----------
    heads
        HydraGNN's description of each branch.
    dims
        Number of components of each output.
    context
        Properties of the network.
    noise
        If true, each output has as many additional columns for its noise.
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
        self.branches = nn.ModuleList(make_heads(head, widths, context) for head in heads)
        # Index of each branch among those kept on this rank; None if all are kept.
        self.register_buffer("places", None, persistent=False)

    def __len__(self) -> int:
        return len(self.branches)

    def keep(self, branches: Collection[int]) -> None:
        """Remove the heads of other branches, whose graphs can no longer be computed.

        Parameters that remain keep their names.
        """
        places = torch.full((len(self),), -1)
        for place, number in enumerate(sorted(branches)):
            places[number] = place
        for number in range(len(self)):
            if number not in branches:
                self.branches[number] = nn.Identity()
        self.places = places

    def forward(self, features: Tensor, geometry: Geometry, branch: Tensor | None) -> list[Tensor]:
        """Compute each output, [n, d].

        Parameters
        ----------
        features
            Features of atoms or graphs [n, width].
        geometry
            Geometry of the batch.
        branch
            Branch of each row, int64 [n]; None if there is only one.
        """
        if branch is not None and self.places is not None:
            branch = self.places.index_select(0, branch)  # -1 for a removed branch, which fails
        by_branch = [one(features, geometry) for one in self._here()]
        return [chosen(outputs, branch) for outputs in zip(*by_branch, strict=True)]

    @torch.no_grad()
    def set_bias(self, value: float) -> None:
        """Set the bias of all last layers, except in the columns of the noise."""
        for last, dim in self._last_layers():
            last.bias[..., :dim] = value

    @torch.no_grad()
    def scale_weights(self, factor: float) -> None:
        """Multiply the weights of all last layers by a factor."""
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
    """Return the number of parameters in the heads of all branches."""
    heads = (module for module in model.modules() if isinstance(module, BranchedHeads))
    return sum(weight.numel() for one in heads for weight in one.parameters())


class Rescale(nn.Module):
    """Conversion of a target from mean 0 and deviation 1 to the data's units.

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
        self.register_buffer("mean", pack_by_branch(output.mean))
        self.register_buffer("std", pack_by_branch(output.std))

    def forward(self, raw: Tensor, branch: Tensor | None) -> dict[str, Tensor]:
        """Convert the output of a head [n, d], or [n, 2 d] with noise, to targets [n, d] by name.

        ``branch`` is the branch of each row, int64 [n]; None if there is only one.
        """
        # In the bfloat16 of automatic mixed precision, adding the mean would lose the rest.
        raw = raw.to(torch.float64 if self.exact else promote_types(raw.dtype, torch.float32))
        mean, std = (
            of_branch(unpack_exact(values).to(raw.dtype), branch)
            for values in (self.mean, self.std)
        )
        if not self.noise:
            return {self.name: raw * std + mean}
        value, noise = raw.chunk(2, dim=1)
        return {self.name: value * std + mean, self.name + NOISE_SUFFIX: deviations(noise) * std}


def deviations(raw: Tensor) -> Tensor:
    """Return standard deviations of noise, in units of the target's spread, from any numbers."""
    # Smallest standard deviation of the noise, as a fraction of the target's spread. Without it
    # labels that repeat exactly would have unlimited likelihood.
    return functional.softplus(raw) + 1e-3


class Heads(nn.Module):
    """All heads of one level, by output name.

    Parameters
    ----------
    heads
        HydraGNN's description of each branch.
    outputs
        Targets to predict at this level.
    context
        Properties of the network.
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
        """Compute targets [n, d] by name, in the data's units; see :class:`BranchedHeads`."""
        found: dict[str, Tensor] = {}
        raw = self.branches(features, geometry, branch)
        for scale, values in zip(self.scales, raw, strict=True):
            found |= scale(values, branch)
        return found

    def set_bias(self, value: float) -> None:
        """Make every target begin ``value`` of its spreads above its mean."""
        self.branches.set_bias(value)
