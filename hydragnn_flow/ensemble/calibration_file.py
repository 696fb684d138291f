"""Calibration file of a finished ensemble, which replaces the run's own calibration."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from hydragnn_flow.ensemble.summary import SUMMARY
from hydragnn_flow.ensemble.uncertainty.distribution import Calibration
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


def load_calibrations(folder: Path, summary: Mapping[str, Any]) -> dict[str, Calibration]:
    """Return the calibrations of an ensemble by target.

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
    of_all = msgspec.convert(found["calibration"], dict[str, Calibration])
    own = msgspec.convert(
        found.get("calibration_by_data_set") or {}, dict[str, dict[str, Calibration]]
    )
    return {
        target: replace(one, by_data_set={k: of[target] for k, of in own.items() if target in of})
        for target, one in of_all.items()
    }


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
    folder: Path, calibrations: Mapping[str, Calibration], calibrated_on: Mapping[str, Any]
) -> None:
    """Write calibrations on other data, and which data, whole or not at all."""
    content = {
        "ensemble": _digest(folder),
        "calibrated_on": dict(calibrated_on),
        **plain_calibrations(calibrations),
    }
    write_json(folder / FILE, _sealed(content))


def plain_calibrations(calibrations: Mapping[str, Calibration]) -> dict[str, Any]:
    """Convert calibrations by target to the keys that files have of them."""
    names = dict.fromkeys(name for one in calibrations.values() for name in one.by_data_set)
    return {
        "calibration": {target: one.to_dict() for target, one in calibrations.items()},
        "calibration_by_data_set": {
            name: {
                target: one.by_data_set[name].to_dict()
                for target, one in calibrations.items()
                if name in one.by_data_set
            }
            for name in names
        },
    }


def _digest(folder: Path) -> str:
    return hashlib.sha256((folder / SUMMARY).read_bytes()).hexdigest()


def _sealed(content: Any) -> dict[str, Any]:
    digest = hashlib.sha256(json_text(content).encode()).hexdigest()
    return {"version": _VERSION, "sha256": digest, "content": content}
