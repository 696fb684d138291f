"""The engine ``hydragnn`` from a checkout, where MPI and pyg-lib are not installed.

``network: {engine: "hydragnn_engine:build"}``; the variable HYDRAGNN_CHECKOUT names the
checkout.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peers.hydragnn_package import edges, hand_over_edges, make_importable
from torch import nn

from hydragnn_flow.data import Manifest
from hydragnn_flow.engines import hydragnn

make_importable(Path(os.environ["HYDRAGNN_CHECKOUT"]))


def build(network: Mapping[str, Any], manifest: Manifest) -> nn.Module:
    """As `hydragnn_flow.engines.hydragnn` does, with neighbours for a SchNet."""
    hand_over_edges()
    module = hydragnn.build(network, manifest)
    module.register_forward_pre_hook(_hand_over)
    return module


build.options = hydragnn.HydragnnKeys  # type: ignore[attr-defined]  # as the protocol says


def _hand_over(module: nn.Module, arguments: tuple[Any, ...]) -> None:
    edges[0] = arguments[0].edge_index
