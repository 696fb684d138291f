"""Fixtures of rooms whose tests estimate networks: each is counted once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hydragnn_flow.placement import Work, WorkInterpolation


@pytest.fixture(scope="session")
def counted() -> dict[str, Work]:
    """Work of the networks that any test of the room has counted."""
    return {}


@pytest.fixture(autouse=True)
def _count_once(counted: dict[str, Work], monkeypatch: pytest.MonkeyPatch) -> None:
    """Count networks of one shape once: that takes longer than all else tests do here."""
    of_one_search = WorkInterpolation.work

    def work(self: WorkInterpolation, shape: Any, count: Callable[[], Work]) -> Work:
        key = json.dumps(shape, sort_keys=True)

        def once() -> Work:
            if key not in counted:
                counted[key] = count()
            return counted[key]

        return of_one_search(self, shape, once)

    monkeypatch.setattr(WorkInterpolation, "work", work)
