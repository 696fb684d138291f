"""The manifest of a store the small structures could come from, and networks built for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from model_cases import COPPER, CUTOFF, GOLD, lively, network

from hydragnn_flow.data import Manifest
from hydragnn_flow.models import PROPERTIES, HydraModel, build_model


@pytest.fixture(params=sorted(PROPERTIES))
def mpnn(request: pytest.FixtureRequest) -> str:
    """Each message-passing type in turn."""
    return str(request.param)


@pytest.fixture
def manifest() -> Manifest:
    """Of a Cu-Au store with an energy, forces and two more targets."""
    targets = {
        "energy": {"level": "graph", "dim": 1, "unit": "eV"},
        "forces": {"level": "node", "dim": 3, "unit": "eV/Å"},
        "gap": {"level": "graph", "dim": 2, "unit": "eV"},
        "charge": {"level": "node", "dim": 1, "unit": "e"},
    }
    described = {"dtype": "float32", "dim": 0, "shape": [1], "node": True, "edge": False}
    return Manifest.model_validate(
        {
            "targets": targets,
            "units": {},
            "cutoff": CUTOFF,
            "max_neighbours": None,
            "elements": [COPPER, GOLD],
            "node_features": ["atomic_number", "magnetic_moment"],
            "keys": {
                **{key: {**described, "rows": None} for key in ("x", "pos", "edge_index")},
                "edge_attr": {**described, "shape": [2], "edge": True, "rows": None},
            },
            "splits": {},
            "statistics": {
                "degree_histogram": [0] * 12 + [1, 4, 5, 4, 1],
                "avg_num_neighbors": 14.0,
                "element_energies": {COPPER: -3.5, GOLD: -3.2},
                "energy_per_atom_std": 0.1,
                "forces_rms": 0.8,
                "targets": {
                    "energy": {"mean": [-9391.0], "std": [0.2]},
                    "forces": {"mean": [0.0] * 3, "std": [0.8] * 3},
                    "gap": {"mean": [1.0, -2.0], "std": [0.5, 3.0]},
                    "charge": {"mean": [0.1], "std": [0.02]},
                },
            },
            "provenance": {},
            "shards": [{"path": "shard-00000.bp", "files": {}, "splits": {}}],
        }
    )


@pytest.fixture
def make(manifest: Manifest) -> Callable[..., HydraModel]:
    """Builds a network from seed 0; keywords are those of ``model_cases.network``."""

    def build(mpnn_type: str, **options: Any) -> HydraModel:
        torch.manual_seed(0)
        return build_model(network(mpnn_type, **options), manifest)

    return build


@pytest.fixture(params=[name for name in sorted(PROPERTIES) if PROPERTIES[name].lengths != "never"])
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
