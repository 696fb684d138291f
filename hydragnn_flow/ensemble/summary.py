"""Summary of a finished ensemble, its failed members and checksums, without loading the models."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from hydragnn_flow.ensemble.uncertainty.distribution import Calibration
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import open_regular, write_text
from hydragnn_flow.plain_files import FROM_A_COPY, from_json, read_json, read_yaml, sound

FOLDER = "ensemble"
"""Folder of the ensemble in a run directory."""
SUMMARY = "ensemble.json"
VERSION = 7
ENSEMBLE = "ensemble"
"""Name of the ensemble among the models whose test errors are compared."""
CLASS_MEASURES = ("accuracy", "auc", "ece")
"""Names of the measures of targets of classes."""


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


def per_atom(unit: str) -> tuple[str, float]:
    """Return the unit of a quantity per atom, and the factor that its values are multiplied by.

    An ``eV`` becomes meV/atom with factor 1000, since errors per atom of a useful model are that
    small. Other units keep their size.
    """
    return ("meV/atom", 1000.0) if unit == "eV" else (f"{unit}/atom", 1.0)


def member_name(member: int) -> str:
    """Return the path of a member's folder relative to the folder of the ensemble.

    ``member`` is the number of the member.
    """
    return f"members/{member}"


def member_folder(folder: str | Path, member: int) -> Path:
    """Return the path of the folder with an ensemble member's files.

    ``folder`` is the folder of the ensemble, and ``member`` the number of the member.
    """
    return Path(folder) / member_name(member)


def ensemble_folder(path: str | Path) -> Path:
    """Return the folder with the ensemble of a finished run, or of an exported ensemble.

    The folder is a subfolder of the run's directory ``path``, or the export's ``path`` itself.

    Raises
    ------
    InputError
        If there is no ensemble; the message says what is missing.
    """
    path = Path(path)
    for folder in (path / FOLDER, path):
        if (folder / SUMMARY).exists():
            return folder
    raise InputError(_without_ensemble(path))


def inside(path: Path, file: Path) -> Path:
    """Return ``file``, and raise an error if it is a link that leads out of the directory ``path``.

    Raises
    ------
    InputError
        If the file lies outside once links are followed, possibly among somebody's own files.
    """
    if not file.resolve().is_relative_to(path.resolve()):
        raise InputError(f"{file}: is a link out of {path}; put there what it leads to")
    return file


def read_summary(path: str | Path) -> dict[str, Any]:
    """Read the file `ensemble.json` of a finished run or of an exported ensemble.

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
            f"{file}: has version {summary.get('version')}, this package reads {VERSION}; in the "
            f"directory of a run, delete it and start the run again, which trains nothing"
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
        return f"{path}: was a search without an ensemble; name another run"
    return f"{path}: holds no finished ensemble yet; run the campaign to its end first"


SELECTION = "selection.json"
"""Name of the file with the choice of members, in the ensemble's folder."""


@dataclass(frozen=True)
class FailedMember:
    """Record of an ensemble member whose training was given up, with its trial and the reason."""

    member: int
    trial: int
    reason: str


def failed_members(folder: Path) -> list[FailedMember]:
    """Return the members whose training was given up, in the order in which that happened.

    They are read from `selection.json` in the ensemble's ``folder``; without that file, or if it is
    damaged, the result is empty.
    """
    try:
        return [FailedMember(**values) for values in read_json(folder / SELECTION, "")["failed"]]
    except (InputError, KeyError, TypeError):
        return []


def failed_sentences(summary: Mapping[str, Any]) -> list[str]:
    """Return a sentence with the reason for each member that failed or was not trained to its end.

    Parameters
    ----------
    summary
        Content of the file `ensemble.json`.
    """
    members: Sequence[Mapping[str, Any]] = summary["members"]
    kept = {member["member"] for member in members}
    return [
        f"member {member['member']} (trial {member['trial']}) was not trained to its end: "
        f"{member['reason']}"
        for member in members
        if member.get("reason")
    ] + [
        f"member {failed['member']} (trial {failed['trial']}) failed, and another trial took its "
        f"place: {failed['reason']}"
        for failed in summary.get("failed", ())
        if failed["member"] not in kept
    ]


CHECKSUMS = "checksums.json"
_VERSION = 1
_MOST_BYTES = 1 << 26
# All files of an ensemble. Other names are refused: in a stranger's file they may lead anywhere.
_NAME = re.compile(
    r"(ensemble|manifest|applicability)\.json|README\.md|members/[0-9]+/(config\.json|checkpoint\.pt)"
)
_BLOCK = 1 << 20


def write_checksums(
    folder: Path, names: Iterable[str], to_be_written: Mapping[str, str] | None = None
) -> None:
    """Write the SHA-256 checksums of an ensemble's files to `checksums.json`.

    Parameters
    ----------
    folder
        Folder of the ensemble.
    names
        Paths of the files relative to ``folder``.
    to_be_written
        Text of files that will be written later, by path. The file that marks an ensemble as
        complete is written last.
    """
    digests = {name: _sha256(folder / name) for name in names}
    for name, text in (to_be_written or {}).items():
        digests[name] = hashlib.sha256(text.encode()).hexdigest()
    write_text(folder / CHECKSUMS, _content(digests))


def verify_checksums(folder: Path, but: Collection[str] = ()) -> list[str]:
    """Check the files of an ensemble against the SHA-256 checksums in `checksums.json`.

    Parameters
    ----------
    folder
        Folder of the ensemble.
    but
        Subfolders, relative to ``folder``, whose files are not checked.

    Returns
    -------
    list of str
        Paths of the checked files, relative to ``folder``.

    Raises
    ------
    InputError
        If a file is missing or differs; the message names the first such file.
    """
    file = folder / CHECKSUMS
    try:
        with open_regular(file) as opened:
            text = opened.read(_MOST_BYTES).decode()
        digests = from_json(text)["sha256"]
        # Only this module writes the file, so each of its bytes is known.
        sound = text == _content(digests)
    except FileNotFoundError:
        raise _damaged(file, "is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise _damaged(file, "is damaged")
    if strange := [name for name in digests if not _NAME.fullmatch(name)]:
        raise _damaged(file, f"is damaged (an ensemble has no file {strange[0]!r})")
    names = [name for name in digests if not name.startswith(tuple(f"{other}/" for other in but))]
    for name in names:
        try:
            found = _sha256(folder / name)
        except FileNotFoundError:
            raise _damaged(folder / name, "is missing") from None
        except OSError as error:
            raise _damaged(folder / name, f"cannot be read ({error.strerror})") from None
        if found != digests[name]:
            raise _damaged(folder / name, f"has changed since {CHECKSUMS} was written")
    return names


def _content(digests: Mapping[str, str]) -> str:
    values = {"version": _VERSION, "sha256": dict(sorted(digests.items()))}
    return json.dumps(values, indent=1) + "\n"


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with open_regular(file) as opened:
        while block := opened.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _damaged(file: Path, what: str) -> InputError:
    remedy = "take it from a copy"
    if file.parent.parent.name == "members":
        remedy += f", or leave the member out with --without {file.parent.name}"
    else:
        remedy += ", or, in the directory of a run, delete ensemble.json and start the run again"
    return InputError(f"{file}: {what}; {remedy}")
