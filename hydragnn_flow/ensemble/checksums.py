"""Checksums of an ensemble's files, which detect files that have changed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from hydragnn_flow.errors import InputError
from hydragnn_flow.files import open_regular, write_text
from hydragnn_flow.plain_files import from_json

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
    """Write the SHA-256 of an ensemble's files to `checksums.json`.

    Parameters
    ----------
    folder
        Folder of the ensemble.
    names
        Paths of files in it, relative to it.
    to_be_written
        Text of files that will be written later, by name. The file that marks an ensemble as
        complete is written last.
    """
    digests = {name: _sha256(folder / name) for name in names}
    for name, text in (to_be_written or {}).items():
        digests[name] = hashlib.sha256(text.encode()).hexdigest()
    write_text(folder / CHECKSUMS, _content(digests))


def verify_checksums(folder: Path, but: Collection[str] = ()) -> list[str]:
    """Check the files of an ensemble against `checksums.json`.

    Parameters
    ----------
    folder
        Folder of the ensemble.
    but
        Folders in it whose files are not checked.

    Returns
    -------
    list of str
        Names of the files that were read, relative to the folder.

    Raises
    ------
    InputError
        If a file is missing or differs; the message names the first.
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
