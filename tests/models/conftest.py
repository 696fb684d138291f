"""The manifest of a store the small structures could come from, and networks built for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hydragnn_flow.config.network import MPNN_TYPES
from hydragnn_flow.data import Manifest
from hydragnn_flow.models import HydraModel, build_model
from hydragnn_flow.testing import networks
from hydragnn_flow.testing.networks import lively, network


@pytest.fixture(params=sorted(MPNN_TYPES))
def mpnn(request: pytest.FixtureRequest) -> str:
    """Each message-passing type in turn."""
    return str(request.param)


@pytest.fixture
def manifest() -> Manifest:
    """Of a Cu-Au store with an energy, forces and two more targets."""
    return networks.manifest()


@pytest.fixture
def make(manifest: Manifest) -> Callable[..., HydraModel]:
    """Builds a network from seed 0; keywords are those of ``networks.network``."""

    def build(mpnn_type: str, **options: Any) -> HydraModel:
        torch.manual_seed(0)
        return build_model(network(mpnn_type, **options), manifest)

    return build


@pytest.fixture(
    params=[name for name in sorted(MPNN_TYPES) if MPNN_TYPES[name].properties.lengths != "never"]
)
def potential_type(request: pytest.FixtureRequest) -> str:
    """Each type that can be a potential in turn."""
    return str(request.param)


@pytest.fixture
def potential(potential_type: str, make: Callable[..., HydraModel]) -> HydraModel:
    """A potential of each type in float64, ready to predict."""
    return lively(make(potential_type))


@pytest.fixture
def model(mpnn: str, make: Callable[..., HydraModel]) -> HydraModel:
    """A network of each type for other targets, in float64, ready to predict."""
    return lively(make(mpnn, potential=False))
