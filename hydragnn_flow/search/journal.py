"""The study's file: an Optuna journal with one writer."""

from __future__ import annotations

from pathlib import Path

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from hydragnn_flow.errors import InputError
from hydragnn_flow.files import drop_torn_record


class _SoleWriter(JournalFileOpenLock):
    """No lock: the driver holds the run directory's lock, and nobody else writes.

    Optuna's own lock files outlive a killed driver and make the next one wait half a minute.
    """

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        return None


def open_journal(path: Path) -> JournalStorage:
    """Open, and where needed repair, the journal at ``path``.

    Raises
    ------
    InputError
        If a complete record cannot be read.
    """
    drop_torn_record(path)
    try:
        return JournalStorage(JournalFileBackend(str(path), lock_obj=_SoleWriter(str(path))))
    except (ValueError, KeyError) as error:
        raise InputError(
            f"{path}: holds a damaged record ({error}); restore the file from a copy"
        ) from None
