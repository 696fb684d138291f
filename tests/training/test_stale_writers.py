"""A writer whose disk was away while another got further leaves the other's file alone."""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from segment_cases import make_spec

from hydragnn_flow import files
from hydragnn_flow.data import GraphStore
from hydragnn_flow.execution.fence import ATTEMPT_FILE, Fence
from hydragnn_flow.training.checkpoint import FILE, load_checkpoint, save_checkpoint
from hydragnn_flow.training.predictions import (
    FILES,
    load_predictions,
    made_by,
    save_predictions,
)
from hydragnn_flow.training.runner import run_segment

BY = made_by({"best_epoch": 3, "best_val_error": 0.1})


@pytest.fixture
def fence(tmp_path: Path) -> Fence:
    (tmp_path / ATTEMPT_FILE).write_text("old")
    return Fence(make_spec(tmp_path, None, 1, token="token", attempt="old"))


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, Callable[[], object]], None]:
    """Makes a function fail once as a disk that is away does; another sending begins meanwhile."""
    monkeypatch.setattr(files, "SECONDS_BETWEEN_TRIES", 0.0)

    def fail_once(module: Any, name: str, meanwhile: Callable[[], object]) -> None:
        real, failed = getattr(module, name), []

        def function(*arguments: Any, **options: Any) -> Any:
            if not failed:
                failed.append(True)
                meanwhile()
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return real(*arguments, **options)

        monkeypatch.setattr(module, name, function)

    return fail_once


def test_a_stale_checkpoint_replaces_no_newer_one(tmp_path: Path, fence: Fence, away: Any) -> None:
    save_checkpoint(tmp_path / FILE, {"epoch": 9})  # where the newer sending has got to by then
    away(torch, "save", lambda: (tmp_path / ATTEMPT_FILE).write_text("new"))
    save_checkpoint(tmp_path / FILE, {"epoch": 3}, fence.may_write)
    assert load_checkpoint(tmp_path / FILE)["epoch"] == 9
    assert {entry.name for entry in tmp_path.iterdir()} == {FILE, ATTEMPT_FILE}


def test_predictions_of_stale_weights_replace_none_of_newer_ones(
    tmp_path: Path, alloy_store: GraphStore, fence: Fence, away: Any
) -> None:
    val = alloy_store["valset"]
    newer, older = ({"energy": np.full((len(val), 1), value)} for value in (1.0, 0.0))
    save_predictions(tmp_path, val, newer, BY)
    away(zipfile, "ZipFile", lambda: (tmp_path / ATTEMPT_FILE).write_text("new"))
    save_predictions(tmp_path, val, older, BY, fence.may_write)
    found = load_predictions(tmp_path, "valset", BY)
    assert found is not None
    np.testing.assert_array_equal(found["energy"], newer["energy"])
    assert {entry.name for entry in tmp_path.iterdir()} == {FILES["valset"], ATTEMPT_FILE}


def test_a_segment_that_was_sent_again_writes_nothing(
    tmp_path: Path, alloy_store: GraphStore
) -> None:
    spec = make_spec(tmp_path, alloy_store, 1, kind="member")
    assert run_segment(spec, may_write=lambda: False).status == "ok"
    assert not {FILE, *FILES.values()} & {entry.name for entry in tmp_path.iterdir()}


def test_a_checkpoint_that_a_disk_does_not_show_is_not_begun_anew(
    tmp_path: Path, alloy_store: GraphStore, unseen: Callable[[Path], None]
) -> None:
    spec = make_spec(tmp_path, alloy_store, 1)
    assert run_segment(spec).status == "ok"
    unseen(tmp_path / FILE)
    with pytest.raises(OSError, match="Stale"):
        run_segment(replace(spec, until_epoch=2))
