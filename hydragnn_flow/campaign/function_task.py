"""Call of a user's objective function, in a trainer process."""

from __future__ import annotations

import errno
import json
import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydragnn_flow.config.base import import_class, one_line, with_place
from hydragnn_flow.errors import JobLost
from hydragnn_flow.files import DISKS, is_there, passing, patiently, write_json
from hydragnn_flow.locks import Held, locked
from hydragnn_flow.plain_files import from_json
from hydragnn_flow.search.records import Job
from hydragnn_flow.segment import Status
from hydragnn_flow.training.distributed import this_device
from hydragnn_flow.training.memory import forget_peak_memory, out_of_memory, peak_memory_gib

SECONDS_TO_WAIT = 120.0
"""Time for an earlier call of the same trial, taken for lost, to end [s]."""


def answer_file(folder: Path, budget: int) -> Path:
    """Return the path of the file with a user function's answer to one call, in a trial's folder.

    Parameters
    ----------
    folder
        Directory of the trial.
    budget
        Total length of the trial after the call, in the unit of `search.epochs`.
    """
    return folder / f"budget-{budget}.json"


def run(request: Mapping[str, Any]) -> dict[str, Any]:
    """Call the user's objective function for a trial; write its answer to a file and return it.

    An answer is a dict with the status, the values of the objectives and the time. An error of the
    function is an answer too. If an earlier attempt has written an answer, it is returned at once.
    If the process dies or the disk fails, there is no answer.

    Parameters
    ----------
    request
        ``objective`` (name of the function), ``number``, ``parameters``, ``seed`` and ``directory``
        of the trial, ``budget`` (total length of the trial after the call), ``objectives`` (names
        of the values that the function returns), and ``pause`` (time to wait before the call [s]).

    Raises
    ------
    JobLost
        If the disk fails after the call, so that the function is not called again at once.
    OSError
        If the disk fails before the call, or an earlier call of the trial does not end.
    """
    time.sleep(request["pause"])
    folder = Path(request["directory"])
    folder.mkdir(parents=True, exist_ok=True)
    file = answer_file(folder, request["budget"])
    try:
        # Two calls of a trial would corrupt each other's files.
        with locked(folder / "lock", SECONDS_TO_WAIT):
            if (before := _before(file)) is not None:
                return before
            (folder / "lock").touch()  # its time is the start that `hydragnn-flow status` shows
            try:
                answer = _answer(request, folder)
                patiently(lambda: write_json(file, answer))
            except OSError as error:
                raise JobLost(f"the disk failed ({one_line(error)})") from None
            return answer
    except Held:
        raise TimeoutError(
            errno.ETIMEDOUT, f"an earlier call of trial {request['number']} still holds {folder}"
        ) from None


def _before(file: Path) -> dict[str, Any] | None:
    """Return the answer of an earlier call from ``file``; None if it is missing or damaged."""
    if not is_there(file):
        return None
    content = patiently(file.read_bytes)  # a disk that is away for a while has damaged nothing
    with suppress(ValueError):
        found = from_json(content)
        if isinstance(found, dict) and "status" in found:
            return found
    print(f"{file}: is damaged; the function is called again")
    return None


def _answer(request: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    device = this_device()
    forget_peak_memory(device)
    started, wall, cpu = time.time(), time.perf_counter(), time.process_time()
    status, reason, values = _called(request, folder)
    return {
        "status": status,
        "reason": reason,
        "values": values,
        "node": socket.gethostname(),
        "started": started,
        "ended": time.time(),
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "peak_memory_gib": peak_memory_gib(device),
    }


def _called(request: Mapping[str, Any], folder: Path) -> tuple[Status, str, dict[str, float]]:
    job = Job(request["number"], request["parameters"], request["budget"], folder, request["seed"])
    try:
        returned = import_class(request["objective"])(job)
    except (Exception, SystemExit) as error:  # a user's function may raise anything
        if (cause := _of_disk(error, folder)) is not None:
            raise cause from None
        reason = out_of_memory(error) if isinstance(error, Exception) else None
        if reason is not None:
            return "out_of_memory", reason, {}
        return "error", with_place(error), {}
    return _checked(returned, request["objectives"])


def _of_disk(error: BaseException, folder: Path) -> OSError | None:
    """Return the error, or its cause, if it says that the disk of the run has failed; else None.

    ``folder`` is the directory of the trial.
    """
    cause = passing(error)
    if cause is None or cause.errno not in DISKS:
        return None
    if not isinstance(cause.filename, str | bytes):
        return cause
    named = Path(os.path.realpath(os.fsdecode(cause.filename)))
    return cause if named.is_relative_to(os.path.realpath(folder.parents[1])) else None


def _checked(returned: Any, objectives: Sequence[str]) -> tuple[Status, str, dict[str, float]]:
    """Return status, reason and values by name, for what the objective function returned.

    ``objectives`` are the names of the values; `seconds` may be missing in ``returned``.
    """
    wanted = [name for name in objectives if name != "seconds"]
    if not isinstance(returned, Mapping):
        returned = dict.fromkeys(wanted[:1], returned)
    if isinstance(returned, Mapping) and "seconds" in returned and "seconds" in objectives:
        wanted.append("seconds")
    values = {}
    for name in wanted:
        if name not in returned:
            said = ", ".join(map(str, returned)) or "nothing"
            return "error", f"the objective returned {said}, and no {name!r}; return it", {}
        try:
            if isinstance(value := returned[name], str | bytes | bool):
                raise TypeError(repr(value))
            values[name] = float(value)
        except Exception as error:
            return "error", f"the objective returned no number for {name!r}: {one_line(error)}", {}
    if not all(map(math.isfinite, values.values())):
        return "diverged", f"the objective returned {json.dumps(values)}", {}
    return "ok", "", values
