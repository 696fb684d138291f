"""Stores that several files of this room train from."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydragnn_flow.data import GraphStore, write_store


@pytest.fixture(scope="session")
def blocks(tmp_path_factory: pytest.TempPathFactory, alloy_store: GraphStore) -> Path:
    """The graphs of the small store in blocks of few graphs each, for a stream of several."""
    path = tmp_path_factory.mktemp("blocks") / "store"
    splits = {name: list(alloy_store[name]) for name in alloy_store.splits}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hydragnn_flow.data.writer.BLOCK_BYTES", 20_000)
        write_store(path, splits, targets=alloy_store.manifest.targets, cutoff=4.0)
    assert len(GraphStore.open(path, "stream")["trainset"].block_bounds) > 4
    return path
