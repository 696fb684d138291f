"""Edges for layers that are tested by themselves."""

from __future__ import annotations

import ase
import numpy as np

from hydragnn_flow.models.geometry import Geometry, edge_vectors, padding
from hydragnn_flow.testing.networks import CUTOFF, as_batch


def clusters() -> Geometry:
    """Of two clusters of 12 and 6 atoms, in float64; no edge leads to an atom's own image."""
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
