"""Output heads: from features to targets in the data's units, with their noise if asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn, promote_types
from torch.nn import functional

from hydragnn_flow.config.network import GraphHead, NodeHead
from hydragnn_flow.models.branches import chosen
from hydragnn_flow.models.exact import of_branch, pack_by_branch, unpack_exact
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.head_layers import BranchHeads, HeadContext, PlaceLinear, make_heads

NOISE_SUFFIX = "_aleatoric_std"
"""Follows a target's name in the name of the standard deviation of its noise."""

# Smallest standard deviation of the noise, as a fraction of the target's spread. A label repeated
# exactly would otherwise be worth any amount of likelihood.
_LEAST_NOISE = 1e-3


@dataclass(frozen=True)
class Output:
    """One output of a network.

    Attributes
    ----------
    name
        Of the target in the store.
    level
        ``graph`` or ``node``.
    mean, std
        Of the target over the training structures of each branch, per component, in its unit.
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
    """Heads of one level: a set for each branch; a row gets the outputs of its branch.

    Parameters
    ----------
    heads
        HydraGNN's description of each branch.
    dims
        Components of each output.
    context
        The network.
    noise
        Whether each output has as many columns more, for its noise.
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
        # Of each branch, its place among those that are here; None if all are.
        self.register_buffer("places", None, persistent=False)

    def __len__(self) -> int:
        return len(self.branches)

    def keep(self, branches: Collection[int]) -> None:
        """Let go of the heads of all other branches, whose graphs cannot be computed then.

        The parameters that stay keep their names.
        """
        places = torch.full((len(self),), -1)
        for place, number in enumerate(sorted(branches)):
            places[number] = place
        for number in range(len(self)):
            if number not in branches:
                self.branches[number] = nn.Identity()
        self.places = places

    def forward(self, features: Tensor, geometry: Geometry, branch: Tensor | None) -> list[Tensor]:
        """Each output [n, d].

        Parameters
        ----------
        features
            [n, width], of atoms or graphs.
        geometry
            Of the batch.
        branch
            Of each row, int64 [n]; None if there is but one.
        """
        if branch is not None and self.places is not None:
            branch = self.places.index_select(0, branch)  # of a branch that is gone, -1 is refused
        by_branch = [one(features, geometry) for one in self._here()]
        return [chosen(outputs, branch) for outputs in zip(*by_branch, strict=True)]

    @torch.no_grad()
    def set_bias(self, value: float) -> None:
        """Fill the bias of all last layers, but for the halves that say the noise."""
        for last, dim in self._last_layers():
            last.bias[..., :dim] = value

    @torch.no_grad()
    def scale_weights(self, factor: float) -> None:
        """Multiply the weights of all last layers."""
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
    """Number of trainable numbers in the heads of all branches."""
    heads = (module for module in model.modules() if isinstance(module, BranchedHeads))
    return sum(weight.numel() for one in heads for weight in one.parameters())


class Rescale(nn.Module):
    """Rescale a target from mean 0 and deviation 1 to the data's units.

    Graph targets come in float64: a total energy of -9391 eV has a float32 spacing of 1 meV.

    Parameters
    ----------
    output
        The target.
    noise
        Whether a second half of the columns is the target's noise (Nix and Weigend,
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
        """Targets [n, d] from the output of a head [n, d], or [n, 2 d] with noise.

        ``branch`` is that of each row, int64 [n]; None if there is but one.
        """
        # In bfloat16, which automatic mixed precision ends in, the mean would swallow the rest.
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
    """Standard deviations of noise, in units of the target's spread, from outputs of any sign."""
    return functional.softplus(raw) + _LEAST_NOISE


class Heads(nn.Module):
    """All heads of one level, by output name.

    Parameters
    ----------
    heads
        HydraGNN's description of each branch.
    outputs
        What to predict at this level.
    context
        The network.
    noise
        Whether each target comes with the standard deviation of its noise.
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
        # A list: a target may bear a name, such as "type", that a ModuleDict refuses.
        self.scales = nn.ModuleList(Rescale(output, noise) for output in outputs)

    def forward(
        self, features: Tensor, geometry: Geometry, branch: Tensor | None
    ) -> dict[str, Tensor]:
        """Targets [n, d] by name, in the data's units; parameters as of :class:`BranchedHeads`."""
        found: dict[str, Tensor] = {}
        raw = self.branches(features, geometry, branch)
        for scale, values in zip(self.scales, raw, strict=True):
            found |= scale(values, branch)
        return found

    def set_bias(self, value: float) -> None:
        """Let every target start ``value`` of its spreads above its mean."""
        self.branches.set_bias(value)
