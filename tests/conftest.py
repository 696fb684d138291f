"""Fixtures every room's tests share."""

from __future__ import annotations

import os

# The two or so cores of a laptop belong to the processes under test, one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The public data sets kept beside a development checkout; not part of the repository."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the data sets in {folder}, which this machine does not have")
    return folder
