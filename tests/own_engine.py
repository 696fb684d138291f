"""An engine as a user would write one: distances to the neighbours, without other packages."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hydragnn_flow.config.base import Section


class Keys(Section):
    """Keys of `Architecture` that this engine reads."""

    width: int = 8


class Neighbours(nn.Module):
    """A sum over neighbours of functions of their distance, for graph and node targets."""

    head_names = ("heads",)

    def __init__(self, outputs: dict[str, tuple[str, int]], width: int, cutoff: float) -> None:
        super().__init__()
        self.outputs, self.cutoff = outputs, cutoff
        self.element = nn.Embedding(100, width)
        self.radial = nn.Sequential(nn.Linear(8, width), nn.SiLU(), nn.Linear(width, width))
        self.heads = nn.ModuleList(nn.Linear(width, dim) for _, dim in outputs.values())

    def node_features(self, batch: Any) -> Tensor:
        sender, receiver = batch.edge_index
        vectors = batch.pos[receiver] - batch.pos[sender] + batch.edge_shifts
        lengths = vectors.square().sum(1, keepdim=True).add(1e-12).sqrt() / self.cutoff
        centres = torch.linspace(0, 1, 8, device=lengths.device, dtype=lengths.dtype)
        radial = self.radial(torch.exp(-50 * (lengths - centres) ** 2)) * (1 - lengths).relu() ** 2
        elements = self.element(batch.x[:, 0].long())
        return elements + torch.zeros_like(elements).index_add(
            0, receiver, radial * elements[sender]
        )

    def read_weights(self, file: Path) -> Any:
        return torch.load(file, weights_only=True)

    def forward(self, batch: Any) -> dict[str, Tensor]:
        nodes, found = self.node_features(batch).tanh(), {}
        for (name, (level, _)), head in zip(self.outputs.items(), self.heads, strict=True):
            found[name] = head(nodes)
            if level == "graph":
                sums = found[name].new_zeros(batch.num_graphs, found[name].shape[1])
                found[name] = sums.index_add(0, batch.batch, found[name])
        return found


def build(network: dict[str, Any], manifest: Any) -> nn.Module:
    """See :mod:`hydragnn_flow.engines`."""
    asked = network["Variables_of_interest"]["output_names"]
    targets = {name: (manifest.targets[name].level, manifest.targets[name].dim) for name in asked}
    architecture = network["Architecture"]
    return Neighbours(targets, architecture.get("width", 8), architecture["radius"])


build.options = Keys


def wrong_name(network: dict[str, Any], manifest: Any) -> nn.Module:
    module = build(network, manifest)
    assert isinstance(module, Neighbours)
    module.outputs = {f"{name}s": shape for name, shape in module.outputs.items()}
    return module


def fails(network: dict[str, Any], manifest: Any) -> nn.Module:
    return nn.Linear(1, network["Architecture"]["depth"])


def no_module(network: dict[str, Any], manifest: Any) -> Any:
    return {}


def nothing_to_train(network: dict[str, Any], manifest: Any) -> nn.Module:
    return nn.Identity()


def not_thirteen(network: dict[str, Any], manifest: Any) -> nn.Module:
    if network["Architecture"]["width"] == 13:
        raise RuntimeError("thirteen is unlucky")
    return build(network, manifest)


class _Crash(nn.Linear):
    def forward(self, batch: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSEGV)


def crashes(network: dict[str, Any], manifest: Any) -> nn.Module:
    return _Crash(1, 1)
