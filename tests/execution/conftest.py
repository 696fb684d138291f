"""Lanes of the test process: warm from one test of a file to the next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hydragnn_flow.execution.workers import worker
from hydragnn_flow.execution.workers.lane import Lane


def _end(lanes: dict[tuple[int, int], Lane]) -> None:
    for lane in lanes.values():
        lane.kill()
    lanes.clear()


@pytest.fixture(scope="module", autouse=True)
def _end_lanes() -> Iterator[None]:
    """A lane takes five seconds to start, so a test ends only those that it damages."""
    yield
    _end(worker._lanes)


@pytest.fixture
def own_lanes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For a test whose lanes are cold at first, or bound as no other test wants them."""
    lanes: dict[tuple[int, int], Lane] = {}
    monkeypatch.setattr(worker, "_lanes", lanes)
    yield
    _end(lanes)
