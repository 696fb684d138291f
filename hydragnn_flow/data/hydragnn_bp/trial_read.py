"""Trial read of a BP5 file in another process, as ADIOS2 may crash or hang there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

import psutil

from hydragnn_flow.errors import StoreError

_CHILD = Path(__file__).with_name("child.py")
_FILES = ("md.idx", "md.0", "mmd.0", "data.0")
# Limits without progress, as the time for all of a file depends on its size and the disk. CPU time
# does not pass while the process waits for a slow disk.
_IDLE_SECONDS, _IDLE_CPU_SECONDS = 120.0, 10.0


def trial_read(path: Path) -> None:
    """Read all of a HydraGNN file in another process, before ADIOS2 opens it in this one.

    A damaged BP5 file can crash ADIOS2 or make it wait forever. The child process also compares
    each variable with the Min and Max stored when it was written. Damage is not detected if ADIOS2
    reads it and all values are finite and within those limits, such as zeros among forces.

    Parameters
    ----------
    path
        Directory with the suffix ``.bp``.

    Raises
    ------
    StoreError
        If a file in the directory is missing or damaged; the message names that file.
    """
    for name in _FILES:
        file = path / name
        try:
            if file.is_file() and file.stat().st_size:
                file.open("rb").close()
                continue
        except OSError as error:
            raise StoreError(
                f"{file} cannot be read ({error.strerror}); correct its permissions or restore it "
                "from a copy"
            ) from error
        raise StoreError(
            f"{file} is missing or empty: {path} is no HydraGNN .bp or damaged; restore it from a "
            "copy or write it again"
        )
    _ask_child(path, _IDLE_SECONDS)


def trial_of_shards(store: Path, shards: Sequence[str]) -> None:
    """Open a store's shards in another process, before ADIOS2 opens them in this one.

    A shard is a BP5 file of the store. Checksums that match do not prove who wrote the files.
    ``shards`` are paths relative to ``store``.

    Raises
    ------
    StoreError
        If ADIOS2 crashes, hangs or fails in the other process, or finds damage.
    """
    for first in range(0, len(shards), 1000):  # limits the length of the command line
        paths = (store / shard for shard in shards[first : first + 1000])
        _ask_child(store, _IDLE_SECONDS, *paths)


def damaged(place: Path | str, what: str) -> StoreError:
    """Return the StoreError for a damaged BP5 file.

    Its message begins with ``place``, the name of the file, and ``what``, the damage.
    """
    return StoreError(
        f"{place} {what}: the file is damaged or was written so; restore it from a copy or write "
        "it again"
    )


def _data_name(path: Path) -> str:
    return "data.*" if (path / "data.1").exists() else "data.0"


def _ask_child(path: Path, idle: float, *shards: Path) -> None:
    """Run the child process on the file ``path``, or on ``shards``.

    ``idle`` is the time without progress after which the child is killed [s]. StoreError is raised
    for damage that the child finds, and if it crashes, hangs or fails.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            [sys.executable, str(_CHILD), path, *shards],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=complaints,
        )
        try:
            trouble = _watch(process, output, idle)
        finally:
            process.kill()
            process.wait()
        if trouble == "fail":
            complaints.seek(0)
            trouble += f" ({_last_line(complaints.read())})"
        if trouble:
            if shards:  # the child prints a space for each shard that it begins
                path = shards[max(0, os.fstat(output.fileno()).st_size - 1)]
            raise StoreError(
                f"{path} makes ADIOS2 {trouble}: md.idx, md.0, mmd.0 or {_data_name(path)} is "
                "damaged; restore the files from a copy or write them again"
            )
        output.seek(0)
        answer = json.load(output)
    if "fault" in answer:
        place, what = answer["fault"]
        name = f"{_data_name(path)} (or md.0)" if place == "data" else place
        raise damaged(Path(answer["file"]) / name, what)


def _last_line(text: bytes) -> str:
    lines = [line.strip(" :") for line in text.decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "without a word")[:300]


def _watch(process: subprocess.Popen[bytes], output: IO[bytes], idle: float) -> str | None:
    """Wait for the child; return what it did instead of answering, None if it answered.

    ``output`` is the file with the child's answer; ``idle`` is the longest time without progress
    [s].
    """
    since, last = time.monotonic(), _progress(process.pid, output)
    while True:
        try:
            code = process.wait(0.05)
        except subprocess.TimeoutExpired:
            pass
        else:
            if code < 0:
                return f"crash ({signal.strsignal(-code)})"
            return "fail" if code else None
        now, progress = time.monotonic(), _progress(process.pid, output)
        if progress.bytes != last.bytes:
            last, since = progress, now
        elif now - since > idle:
            return f"read nothing for {idle:.0f} s"
        elif progress.cpu_seconds - last.cpu_seconds > _IDLE_CPU_SECONDS:
            return f"compute for {_IDLE_CPU_SECONDS:.0f} s without reading"
        # ADIOS2 repeats a read that returns nothing after 20 ns, and each further time after twice
        # as long: 25 times in the first half second. A slow disk returns fewer, each with bytes.
        elif now - since > 0.5 and progress.reads - last.reads >= 3:
            return "wait for bytes that are not there"


class _Progress(NamedTuple):
    bytes: int
    """Number of bytes read; a slice that no block of the file covers is read without any."""
    reads: int
    """Number of read calls."""
    cpu_seconds: float


def _progress(pid: int, output: IO[bytes]) -> _Progress:
    """Return the child's progress.

    If the system does not count the bytes read, slices that the child reports in ``output`` count
    instead.
    """
    slices = os.fstat(output.fileno()).st_size
    try:
        child = psutil.Process(pid)
        times = child.cpu_times()
    except psutil.Error:  # it has ended
        return _Progress(slices, 0, 0.0)
    cpu_seconds = times.user + times.system
    try:
        found = child.io_counters()
        return _Progress(found.read_chars, found.read_count, cpu_seconds)
    # Outside Linux, or in a sandbox, psutil has no such method or finds its file empty.
    except (psutil.Error, AttributeError, RuntimeError, ValueError):
        return _Progress(slices, 0, cpu_seconds)
