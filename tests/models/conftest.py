"""The manifest of a store the small structures could come from, and networks built for it."""

import ase
import numpy as np
import pytest
import torch

from hydragnn_flow.config.network import MPNN_TYPES
from hydragnn_flow.models.geometry import Geometry, edge_vectors, padding
from hydragnn_flow.testing import networks
from hydragnn_flow.testing.networks import CUTOFF, as_batch


@pytest.fixture(params=sorted(MPNN_TYPES))
def mpnn(request):
    """Each message-passing type in turn."""
    return request.param


@pytest.fixture(
    params=[name for name in sorted(MPNN_TYPES) if MPNN_TYPES[name].properties.lengths != "never"]
)
def potential_type(request):
    """Each type that can be a potential in turn."""
    return request.param


@pytest.fixture
def manifest():
    """Of a Cu-Au store with an energy, forces and two more targets."""
    return networks.manifest()


@pytest.fixture
def make():
    """Builds a network from seed 0; keywords are those of ``networks.network``."""
    return networks.build


@pytest.fixture
def clusters():
    """Edges of two clusters of 12 and 6 atoms, in float64; torch begins from seed 0."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    batch = as_batch(*(ase.Atoms(["Cu"] * n, rng.uniform(0, 5, (n, 3))) for n in (12, 6)))
    return Geometry(
        sender=batch.edge_index[0],
        receiver=batch.edge_index[1],
        vectors=edge_vectors(batch, batch.pos.double()),
        cutoff=CUTOFF,
        graph=batch.batch,
        n_graphs=2,
        padding=padding(batch.batch, 2, 12),
    )
