"""One cluster for all tests of a process, as good as new for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster import Cluster, missing


@pytest.fixture(scope="session")
def machine() -> Iterator[Cluster]:
    lacking = missing()
    if lacking:
        pytest.skip(lacking)
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(machine: Cluster) -> Iterator[Cluster]:
    yield machine
    machine.clear()
