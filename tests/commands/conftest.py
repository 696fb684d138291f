"""Commands that may start no workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from console_cases import Console

from hydragnn_flow.campaign import driver


@pytest.fixture(autouse=True)
def _nothing_may_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: Any) -> None:
        raise AssertionError("workers were started")

    monkeypatch.setattr(driver.Pool, "__enter__", started)


@pytest.fixture
def console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Console:
    return Console(tmp_path, monkeypatch, capsys)
