"""Earlier searches that a search learns from: `search.warm_start`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydragnn_flow.errors import InputError
from hydragnn_flow.files import open_regular
from hydragnn_flow.plain_files import from_json

JOURNAL = "study.journal"
"""File name of the Optuna journal in a run directory."""


def absolute(names: Sequence[Any], source: Path) -> list[Any]:
    """Return the paths of earlier searches as absolute paths.

    Parameters
    ----------
    names
        Value of ``search.warm_start``; anything but text is left for the schema to refuse.
    source
        Configuration file that the paths are relative to.
    """
    return [
        str((source.parent / name).resolve()) if isinstance(name, str) else name for name in names
    ]


def check_earlier(paths: Sequence[Path]) -> None:
    """Raise an error if a search cannot learn from one of the paths.

    Parameters
    ----------
    paths
        Absolute paths of ``search.warm_start``.

    Raises
    ------
    InputError
        If one is neither a run directory whose search has begun nor an Optuna journal.
    """
    for i, path in enumerate(paths):
        place = f"search.warm_start.{i}: {path}"
        if not path.exists():
            raise InputError(f"{place} does not exist; correct the path or remove it")
        if path.is_dir() and not (path / JOURNAL).is_file():
            raise InputError(
                f"{place} has no {JOURNAL}; name the directory of a run whose search has begun, "
                f"or an Optuna journal"
            )
        if not path.is_dir() and not _is_journal(path):
            raise InputError(
                f"{place} is not an Optuna journal; name one, or the directory of a run"
            )


def _is_journal(path: Path) -> bool:
    """Check that the first line of a file is a record of Optuna's journal storage."""
    try:
        with open_regular(path) as file:
            record = from_json(file.readline(1_000_000))
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and "op_code" in record
