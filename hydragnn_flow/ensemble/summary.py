"""Summary of a finished ensemble in its run directory, without loading the models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydragnn_flow.config.network import read_json
from hydragnn_flow.errors import InputError

FOLDER = "ensemble"
SUMMARY = "ensemble.json"
VERSION = 2


def read_summary(run_directory: str | Path) -> dict[str, Any]:
    """The content of a finished run's `ensemble.json`.

    Raises
    ------
    InputError
        If the run has no ensemble yet, or the file is damaged or of another version.
    """
    file = Path(run_directory) / FOLDER / SUMMARY
    if not file.exists():
        raise InputError(
            f"{run_directory}: holds no finished ensemble; run the campaign to its end first"
        )
    summary: dict[str, Any] = read_json(file)
    if summary.get("version") != VERSION:
        raise InputError(
            f"{file}: has version {summary.get('version')}, this package reads {VERSION}; run the "
            f"campaign again in another directory"
        )
    return summary
