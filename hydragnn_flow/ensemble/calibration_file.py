"""Calibration of a finished ensemble: the run's own, or that on a user's data in its place."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydragnn_flow.config.network import read_json
from hydragnn_flow.ensemble.uncertainty import Calibration
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import json_text, write_json

FILE = "calibration.json"
"""A calibration that replaces the one in `ensemble.json`, which stays; without it, that counts."""
_VERSION = 1


def load_calibrations(folder: Path, summary: Mapping[str, Any]) -> dict[str, Calibration]:
    """The calibrations of an ensemble's targets.

    Parameters
    ----------
    folder
        Of the ensemble.
    summary
        Content of its `ensemble.json`.

    Raises
    ------
    InputError
        If there is a calibration on other data, but its file is damaged.
    """
    found = dict(summary["calibration"])
    file = folder / FILE
    if file.exists():
        try:
            values = read_json(file)
            content = values["content"]
            sound = values == _sealed(content) and content["calibration"].keys() == found.keys()
        except (InputError, KeyError, TypeError):
            sound = False
        if not sound:
            raise InputError(
                f"{file}: is damaged; recalibrate again, or delete it to return to the "
                f"calibration of the run"
            )
        found = content["calibration"]
    return {name: Calibration.from_dict(values) for name, values in found.items()}


def save_calibrations(
    folder: Path, calibrations: Mapping[str, Calibration], calibrated_on: Mapping[str, Any]
) -> None:
    """Write calibrations on other data, whole or not at all, and say which data."""
    content = {
        "calibrated_on": dict(calibrated_on),
        "calibration": {name: one.to_dict() for name, one in calibrations.items()},
    }
    write_json(folder / FILE, _sealed(content))


def _sealed(content: Any) -> dict[str, Any]:
    digest = hashlib.sha256(json_text(content).encode()).hexdigest()
    return {"version": _VERSION, "sha256": digest, "content": content}
