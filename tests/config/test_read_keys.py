"""The keys a message-passing type reads are those the configuration says it reads."""

from __future__ import annotations

from typing import Any, cast

import pytest

from hydragnn_flow.config.network import Architecture, GraphHead, OutputHeads
from hydragnn_flow.config.network.architecture import READ_BY
from hydragnn_flow.models.mpnn import MPNN_TYPES, TrainingFacts

FACTS = TrainingFacts(
    cutoff=5.0, average_neighbours=8.0, degree_histogram=(0, 2, 5, 3), elements=(1, 6, 8)
)


class Watched:
    """An `Architecture` that remembers which keys were asked for."""

    def __init__(self, architecture: Architecture) -> None:
        self._architecture = architecture
        self.read: set[str] = set()

    def __getattr__(self, key: str) -> Any:
        self.read.add(key)
        return getattr(self._architecture, key)


@pytest.mark.parametrize("mpnn_type", sorted(MPNN_TYPES))
def test_a_type_reads_its_keys_and_no_other(mpnn_type: str) -> None:
    blind = mpnn_type in ("GIN", "SAGE", "MFC")
    architecture = Architecture.model_validate(
        {
            "mpnn_type": mpnn_type,
            "hidden_dim": 8,
            "num_conv_layers": 2,
            "edge_features": None if blind else ["lengths"],
            "equivariance": True,
            "output_heads": OutputHeads(graph=(GraphHead(),)),
        }
    )
    watched = Watched(architecture)
    MPNN_TYPES[mpnn_type](cast(Architecture, watched), FACTS, 8, 2)
    its_own = {key for key, types in READ_BY.items() if mpnn_type in types}
    assert watched.read & set(READ_BY) == its_own
    assert not watched.read & architecture.unread()
