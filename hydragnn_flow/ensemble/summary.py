"""Summary of a finished ensemble in its run directory, read without loading the models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from hydragnn_flow.ensemble.uncertainty import Calibration
from hydragnn_flow.errors import InputError
from hydragnn_flow.plain_files import FROM_A_COPY, read_json, read_yaml, sound

FOLDER = "ensemble"
SUMMARY = "ensemble.json"
VERSION = 6
ENSEMBLE = "ensemble"
"""Name of the ensemble among the models whose test errors are compared."""


class _Member(msgspec.Struct):
    member: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    trial: int
    weight: Annotated[float, msgspec.Meta(ge=0, le=1.001)]


class _Summary(msgspec.Struct):
    """Content of `ensemble.json` that predictions need; other keys are for reports."""

    coverage: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    members: list[_Member]
    calibration: dict[str, Calibration]
    calibration_by_data_set: dict[str, dict[str, Calibration]] = {}
    aggregation: Literal["weighted", "uniform", "median"] = "weighted"


def per_atom(unit: str) -> tuple[str, float]:
    """Return the unit of a quantity divided by the number of atoms, and its conversion factor.

    Errors per atom of a useful model are thousandths of an electronvolt.
    """
    return ("meV/atom", 1000.0) if unit == "eV" else (f"{unit}/atom", 1.0)


def member_name(member: int) -> str:
    """The folder of a member's files, within that of the ensemble."""
    return f"members/{member}"


def member_folder(folder: str | Path, member: int) -> Path:
    """The folder of a member's files."""
    return Path(folder) / member_name(member)


def ensemble_folder(path: str | Path) -> Path:
    """Return the folder of an ensemble: in a finished run, or an export itself.

    Raises
    ------
    InputError
        If there is none; the message says what is missing.
    """
    path = Path(path)
    for folder in (path / FOLDER, path):
        if (folder / SUMMARY).exists():
            return folder
    raise InputError(_without_ensemble(path))


def inside(path: Path, file: Path) -> Path:
    """Return a file of a run or ensemble, refusing links that lead out of it.

    Raises
    ------
    InputError
        If the file is a link to outside, possibly to somebody's own files.
    """
    if not file.resolve().is_relative_to(path.resolve()):
        raise InputError(f"{file}: is a link out of {path}; put there what it leads to")
    return file


def read_summary(path: str | Path) -> dict[str, Any]:
    """Read the `ensemble.json` of a finished run or of an exported ensemble.

    Raises
    ------
    InputError
        If there is no ensemble yet, or the file is damaged or of another version.
    """
    file = ensemble_folder(path) / SUMMARY
    remedy = f"{FROM_A_COPY}, or, in the directory of a run, delete it and start the run again"
    summary: dict[str, Any] = read_json(file, remedy)
    if summary.get("version") != VERSION:
        raise InputError(
            f"{file}: has version {summary.get('version')}, this package reads {VERSION}; run the "
            f"campaign again in another directory"
        )
    with sound(file, remedy):
        msgspec.convert(summary, _Summary)
    return summary


def _without_ensemble(path: Path) -> str:
    if not path.exists():
        return f"{path}: does not exist; correct the path of the run or of the exported ensemble"
    if (path / "members").is_dir():
        return f"{path / SUMMARY}: is missing; take it from a copy"
    if not (path / "run.yaml").exists():
        return (
            f"{path}: is neither the directory of a run (no run.yaml) nor an exported ensemble (no "
            f"{SUMMARY}); correct the path"
        )
    if read_yaml(path / "run.yaml").get("ensemble", "") is None:
        return (
            f"{path}: was a search for the fastest training, which has no ensemble; name "
            f"another run"
        )
    begun = _folders(path / FOLDER / "members")
    if begun:
        missing = f"its {begun} members are not all trained, or not weighed and calibrated yet"
    elif trials := _folders(path / "trials"):
        missing = f"its search has begun {trials} trials, and no member is trained yet"
    else:
        missing = "its search has not begun"
    return f"{path}: holds no finished ensemble: {missing}; run the campaign to its end first"


def _folders(path: Path) -> int:
    return sum(entry.is_dir() for entry in path.iterdir()) if path.is_dir() else 0
