"""Trying out a file nothing is known about, in a process that may die of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hydragnn_flow.errors import InputError

_FILES = ("md.idx", "md.0", "mmd.0", "data.0")
# A damaged file makes ADIOS2 wait for ever for bytes that will not come.
BASE_SECONDS = 60.0
_BYTES_PER_SECOND = 50e6

# adios2 imports torch when it can, which takes seconds and is not needed to read.
_SCRIPT = """
import sys
sys.modules["torch"] = None
import numpy
import adios2
with adios2.FileReader(sys.argv[1]) as file:
    variables = file.available_variables()
    if not variables:
        sys.exit(1)
    for name, variable in variables.items():
        if all(int(extent) for extent in variable["Shape"].split(",") if extent.strip()):
            file.read(name)
"""


def probe(path: Path) -> None:
    """Let another process read all of a BP5 file, before this one opens it.

    Raises
    ------
    InputError
        Where a part of the file is missing, or the process fails, crashes or does not end.
    """
    for name in _FILES:
        part = path / name
        if not part.is_file() or part.stat().st_size == 0:
            raise InputError(f"{part} is missing or empty; restore {path} from a copy")
    size = sum(part.stat().st_size for part in path.iterdir() if part.is_file())
    try:
        result = subprocess.run(
            [sys.executable, "-c", _SCRIPT, str(path)],
            capture_output=True,
            timeout=BASE_SECONDS + size / _BYTES_PER_SECOND,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _unreadable(path, "ADIOS2 does not finish reading it") from None
    if result.returncode != 0:
        raise _unreadable(path, "ADIOS2 fails to read it")


def _unreadable(path: Path, what: str) -> InputError:
    return InputError(f"{path} is damaged ({what}); restore it from a copy")
