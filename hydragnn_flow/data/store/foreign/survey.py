"""Whether a HydraGNN file can be trusted, and what is in it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from hydragnn_flow.data.splits import TEST, TRAIN, VALIDATION
from hydragnn_flow.data.store.foreign.container import check_container
from hydragnn_flow.data.store.foreign.damage import damaged
from hydragnn_flow.errors import StoreError

_CHILD = Path(__file__).with_name("child.py")
_POLL_SECONDS = 0.05
# ADIOS2 repeats a read that returns nothing after 20 ns, and each further time after twice as long:
# 25 reads in the first half second.
_WAITING_SECONDS, _WAITING_READS = 0.5, 3
# What a good file may take where nothing can be seen of the reads.
_BASE_SECONDS, _BYTES_PER_SECOND = 60.0, 50e6


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KeySurvey(_Record):
    """One key of a split."""

    dtype: str
    """numpy's name of the type."""
    shape: tuple[int, ...]
    """Shape of the values of all graphs."""
    dim: int
    """Dimension along which the graphs follow one another."""


class SplitSurvey(_Record):
    """One split."""

    graphs: int
    atoms: int
    edges: int
    keys: dict[str, KeySurvey | None]
    """The keys in their order, of a split with graphs; None for a key of which no graph has rows
    and for which nothing is stored."""


class Survey(_Record):
    """What is in a file."""

    splits: dict[str, SplitSurvey]
    """Training, validation and test split first."""


def survey(path: Path) -> Survey:
    """Look a HydraGNN file through, all of it, before ADIOS2 opens it in this process.

    The files of the directory are compared with one another first. Then another process reads
    everything through ADIOS2, since changed bytes in ``md.0`` can make that crash or wait for
    ever, and compares each variable with the Min and Max that were stored when it was written, the
    numbers of rows with one another, and the edges with the atoms.

    Changed bytes in ``data.N`` stay unseen where the values are as possible as the right ones: in
    the range of their variable, finite, and, in ``edge_index``, atoms of the same graph. Zeros
    among forces or positions are such a case. So are, in ``md.0``, attributes other than those
    that describe the layout, such as ``pna_deg``.

    Parameters
    ----------
    path
        The ``.bp`` directory.

    Raises
    ------
    StoreError
        Naming the file that is missing or damaged, or what is not as HydraGNN writes it.
    """
    try:
        check_container(path)
        size = sum(part.stat().st_size for part in path.iterdir() if part.is_file())
    except OSError as error:
        raise StoreError(
            f"{error.filename} cannot be read ({error.strerror}); correct its permissions or "
            "restore it from a copy"
        ) from error
    answer = _ask_child(path, _BASE_SECONDS + size / _BYTES_PER_SECOND)
    if "fault" in answer:
        place, what = answer["fault"]
        raise _damaged(path, place, what)
    found = Survey.model_validate(answer)
    if TRAIN not in found.splits:
        raise StoreError(
            f"{path}/md.0 names no {TRAIN}; it is not in HydraGNN's layout or damaged, so write "
            "the file with HydraGNN or restore it from a copy"
        )
    usual = (TRAIN, VALIDATION, TEST)
    order = sorted(found.splits, key=lambda name: usual.index(name) if name in usual else 3)
    return Survey(splits={name: found.splits[name] for name in order})


def _damaged(path: Path, place: str, what: str) -> StoreError:
    """The error for what reading has shown; wrong values have their cause in one of two files."""
    file = f"{_data_name(path)} (or md.0)" if place == "data" else place
    return StoreError(
        f"{path}/{file} {what}: the file is damaged or was written so; restore it from a copy or "
        "write it again"
    )


def _data_name(path: Path) -> str:
    return "data.*" if (path / "data.1").exists() else "data.0"


def _ask_child(path: Path, limit: float) -> dict[str, Any]:
    """Let the child read the file; returns its answer."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, str(_CHILD), str(path)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
        )
        try:
            trouble = _watch(process, limit)
        finally:
            process.kill()
            process.wait()
        if trouble:
            raise damaged(path / "md.0", f"(or {_data_name(path)}) makes ADIOS2 {trouble}")
        output.seek(0)
        answer: dict[str, Any] = json.load(output)
        return answer


def _watch(process: subprocess.Popen[bytes], limit: float) -> str | None:
    """Wait for the child; returns what it did instead of answering, None where it answered."""
    now = time.monotonic()
    deadline, since, seen = now + limit, now, (-1, 0)
    while now < deadline:
        try:
            code = process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        else:
            if code < 0:
                return f"crash ({signal.strsignal(-code)})"
            return "fail" if code else None
        now = time.monotonic()
        counts = _reads(process.pid)
        if counts is None:
            continue
        if counts[0] != seen[0]:
            seen, since = counts, now
        elif now - since > _WAITING_SECONDS and counts[1] - seen[1] >= _WAITING_READS:
            return "wait for bytes that are not there"
    return f"read for longer than {limit:.0f} s"


def _reads(pid: int) -> tuple[int, int] | None:
    """Bytes a process has read and calls it has made to read; None where Linux does not say."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        counts = dict(line.split(": ") for line in lines)
        return int(counts["rchar"]), int(counts["syscr"])
    except (OSError, ValueError, KeyError):
        return None
