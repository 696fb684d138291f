"""Fixtures every room's tests share."""

from __future__ import annotations

import os

# The two or so cores of a laptop belong to the processes under test, one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import pytest
import torch

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import GraphStore, prepare_store

torch.set_num_threads(1)

REPOSITORY = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--hydragnn",
        type=Path,
        metavar="PATH",
        help="checkout of HydraGNN, whose own reader is then to open our stores",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hydragnn") and config.rootpath != REPOSITORY:
        # Before it knows this option, pytest takes a path after a blank for one with tests.
        raise pytest.UsageError("write --hydragnn=PATH, with the sign, for the settings to be ours")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The public data sets kept beside a development checkout; not part of the repository."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the data sets in {folder}, which this machine does not have")
    return folder


@pytest.fixture(scope="session")
def alloy_store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    data = DataConfig.model_validate(
        {
            "source": {"format": "emt_alloys", "structures": 24, "atoms": [8, 16]},
            "split": {"val": 0.2, "test": 0.2},
        }
    )
    return prepare_store(data, 4.0, None, 0, tmp_path_factory.mktemp("data") / "store.gs")
