"""A store and a configuration for simulated campaigns."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaign_cases import CONFIG
from work_counts import _count_once, counted  # noqa: F401 -- fixtures of the room

from hydragnn_flow.config import RunConfig
from hydragnn_flow.data import prepare_store


@pytest.fixture(scope="session")
def config() -> RunConfig:
    return RunConfig.model_validate(CONFIG)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, config: RunConfig) -> Path:
    path = tmp_path_factory.mktemp("simulated") / "store.gs"
    with prepare_store(config.data, 4.0, None, 3, path):
        return path
