"""Output heads: layers from HydraGNN's `output_heads` that end in the data's units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from hydragnn_flow.config.network import GraphHead, NodeHead
from hydragnn_flow.models.activation import hidden_layers
from hydragnn_flow.models.exact import pack_exact, unpack_exact


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
        Of the target over the training split, per component, in its unit.
    """

    name: str
    level: str
    mean: tuple[float, ...]
    std: tuple[float, ...]


def shared_layers(head: GraphHead, width: int, activation: str) -> tuple[nn.Module, int]:
    """Layers all graph heads share, and the width they end in."""
    widths = [width] + [head.dim_sharedlayers] * head.num_sharedlayers
    return hidden_layers(widths, activation), widths[-1]


def own_layers(head: GraphHead | NodeHead, width: int, activation: str, dim: int) -> nn.Sequential:
    """Layers of one head, from ``width`` to ``dim`` components."""
    widths = [width, *head.dim_headlayers[: head.num_headlayers]]
    return nn.Sequential(hidden_layers(widths, activation), nn.Linear(widths[-1], dim))


class Standardised(nn.Module):
    """A head that learns a target at mean 0 and deviation 1 and returns it in the data's units.

    Graph targets come in float64: a total energy of -9391 eV has a float32 spacing of 1 meV.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, layers: nn.Module, output: Output) -> None:
        super().__init__()
        self.layers = layers
        self.exact = output.level == "graph"
        self.register_buffer("mean", pack_exact(output.mean))
        self.register_buffer("std", pack_exact(output.std))

    def forward(self, features: Tensor) -> Tensor:
        """Target [n, d] from features [n, width]."""
        raw: Tensor = self.layers(features)
        mean, std = unpack_exact(self.mean), unpack_exact(self.std)
        if self.exact:
            return raw.double() * std + mean
        return raw * std.to(raw.dtype) + mean.to(raw.dtype)


class Heads(nn.Module):
    """All heads of one level, by output name.

    Parameters
    ----------
    head
        HydraGNN's description; a graph head brings shared layers.
    outputs
        What to predict at this level.
    width
        Width of the features that come in.
    activation
        HydraGNN's name of it.
    """

    def __init__(
        self, head: GraphHead | NodeHead, outputs: Sequence[Output], width: int, activation: str
    ) -> None:
        super().__init__()
        self.shared: nn.Module = nn.Identity()
        if isinstance(head, GraphHead):
            self.shared, width = shared_layers(head, width, activation)
        self.names = [output.name for output in outputs]
        # A list: a target may bear a name, such as "type", that a ModuleDict refuses.
        self.heads = nn.ModuleList(
            Standardised(own_layers(head, width, activation, len(output.mean)), output)
            for output in outputs
        )

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        """Targets [n, d] by name, in the data's units."""
        shared = self.shared(features)
        return {name: head(shared) for name, head in zip(self.names, self.heads, strict=True)}
