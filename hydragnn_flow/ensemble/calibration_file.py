"""Calibration file of a finished ensemble, which replaces the run's own calibration."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hydragnn_flow.ensemble.summary import SUMMARY
from hydragnn_flow.ensemble.uncertainty import Calibration
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import json_text, write_json
from hydragnn_flow.plain_files import read_json, sound

FILE = "calibration.json"
"""File with a calibration that replaces the one in `ensemble.json`, which is kept."""
_VERSION = 2
_REMEDY = "delete it to return to the calibration of the run, then recalibrate again if you need to"


class _CalibratedOn(msgspec.Struct):
    structures: dict[str, int]


class _Content(msgspec.Struct):
    ensemble: str
    calibrated_on: _CalibratedOn
    calibration: dict[str, Calibration]
    calibration_by_data_set: dict[str, dict[str, Calibration]] = {}


def load_calibrations(
    folder: Path, summary: Mapping[str, Any]
) -> tuple[dict[str, Calibration], dict[str, dict[str, Calibration]]]:
    """Return the calibrations of an ensemble by target, and by data set and target.

    Parameters
    ----------
    folder
        Folder of the ensemble.
    summary
        Content of its file `ensemble.json`.

    Raises
    ------
    InputError
        If the calibration file is damaged or of another version or ensemble.
    """
    found = recalibration_of(folder) or summary
    own = found.get("calibration_by_data_set") or {}
    return (
        msgspec.convert(found["calibration"], dict[str, Calibration]),
        msgspec.convert(own, dict[str, dict[str, Calibration]]),
    )


def recalibration_of(folder: Path) -> dict[str, Any] | None:
    """Return the content of an ensemble's `calibration.json`, as saved; None without one.

    Raises
    ------
    InputError
        If the file is damaged, of another version, or was made for another ensemble.
    """
    file = folder / FILE
    if not file.exists():
        return None
    values = read_json(file, _REMEDY)
    with sound(file, _REMEDY):
        content: dict[str, Any] = values["content"]
        if values != _sealed(content):
            raise ValueError("or of another version")
        msgspec.convert(content, _Content)
    if content["ensemble"] != _digest(folder):
        raise InputError(f"{file}: belongs to another {SUMMARY} than the one beside it; {_REMEDY}")
    return content


def save_calibrations(
    folder: Path,
    calibrations: Mapping[str, Calibration],
    by_data_set: Mapping[str, Mapping[str, Calibration]],
    calibrated_on: Mapping[str, Any],
) -> None:
    """Write calibrations on other data, and which data, whole or not at all."""
    content = {
        "ensemble": _digest(folder),
        "calibrated_on": dict(calibrated_on),
        "calibration": plain_calibrations(calibrations),
        "calibration_by_data_set": {
            data_set: plain_calibrations(found) for data_set, found in by_data_set.items()
        },
    }
    write_json(folder / FILE, _sealed(content))


def plain_calibrations(calibrations: Mapping[str, Calibration]) -> dict[str, dict[str, Any]]:
    """Convert calibrations by target to plain values for JSON."""
    return {name: one.to_dict() for name, one in calibrations.items()}


def _digest(folder: Path) -> str:
    return hashlib.sha256((folder / SUMMARY).read_bytes()).hexdigest()


def _sealed(content: Any) -> dict[str, Any]:
    digest = hashlib.sha256(json_text(content).encode()).hexdigest()
    return {"version": _VERSION, "sha256": digest, "content": content}
