"""The study's file: an Optuna journal with one writer and any number of readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import (
    BaseJournalBackend,
    JournalFileBackend,
    JournalFileOpenLock,
)

from hydragnn_flow.errors import InputError
from hydragnn_flow.files import drop_torn_record


def open_journal(path: Path) -> JournalStorage:
    """Open, and where needed repair, the journal at ``path``.

    Raises
    ------
    InputError
        If a complete record cannot be read.
    """
    drop_torn_record(path)
    if path.exists():
        read_journal(path)  # Optuna would take a damaged last record for one still being written
    return JournalStorage(JournalFileBackend(str(path), lock_obj=_SoleWriter(str(path))))


def read_journal(path: Path) -> JournalStorage:
    """Look at a journal that somebody else may be appending to at this moment.

    Raises
    ------
    InputError
        If a complete record cannot be read.
    """
    try:
        return JournalStorage(_ReadOnly(path))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: holds a damaged record ({error}); restore the file from a copy"
        ) from None


class _SoleWriter(JournalFileOpenLock):
    """No lock: the driver holds the run directory's lock, and nobody else writes.

    Optuna's own lock files outlive a killed driver and make the next one wait half a minute.
    """

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        return None


class _ReadOnly(BaseJournalBackend):
    """The whole records of a journal; never written to."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read_logs(self, log_number_from: int) -> Any:
        whole = self._path.read_bytes().rpartition(b"\n")[0]
        return [json.loads(line) for line in whole.splitlines()[log_number_from:]]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        raise RuntimeError("this view of the study is read-only")
