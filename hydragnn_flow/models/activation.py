"""Activation functions by HydraGNN's names, and multi-layer perceptrons with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "lrelu_01": lambda: nn.LeakyReLU(0.1),
    "lrelu_025": lambda: nn.LeakyReLU(0.25),
    "lrelu_05": lambda: nn.LeakyReLU(0.5),
    "sigmoid": nn.Sigmoid,
}


def activation(name: str) -> nn.Module:
    """Return a new activation module; each `prelu` has a parameter of its own."""
    return ACTIVATIONS[name]()


def hidden_layers(widths: Sequence[int], name: str) -> nn.Sequential:
    """Return linear layers, each followed by the activation; the identity for a single width.

    Parameters
    ----------
    widths
        Input width, then the width of each layer.
    name
        HydraGNN's name of the activation.
    """
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), activation(name)]
    return nn.Sequential(*layers)
