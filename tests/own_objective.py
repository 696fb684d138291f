"""Objectives as users write them."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any


def quadratic(job: Any) -> float:
    """Falls with the budget; goes on from where an earlier call has stopped."""
    file = job.directory / "state.json"
    state = json.loads(file.read_text()) if file.exists() else {"done": 0, "calls": 0}
    state["calls"] += 1
    while state["done"] < job.budget:
        time.sleep(job.parameters.get("pause", 0.0))
        state["done"] += 1
        (new := file.with_suffix(".new")).write_text(json.dumps(state))
        new.replace(file)  # of a full disk nothing may be left but the whole
    return float((job.parameters["x"] - 0.3) ** 2 + 1 / state["done"])


def several(job: Any) -> dict[str, float]:
    return {"error": job.parameters["x"] ** 2, "size": 1 - job.parameters["x"]}


def fails(job: Any) -> float:
    if job.number == 1:
        raise KeyError("depth")
    if job.number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if job.number == 3:
        return float("nan")
    if job.number == 4:
        return "much"  # type: ignore[return-value]
    return quadratic(job)


def short_of_room(job: Any) -> float:
    """Writes to a disk that is full at first, or misses a file of its own."""
    calls = job.directory / "calls"
    calls.write_text(before := calls.read_text() + "x" if calls.exists() else "x")
    if len(before) < job.parameters.get("times", 3):
        number = getattr(errno, job.parameters.get("errno", "ENOSPC"))
        raise OSError(number, os.strerror(number), *job.parameters.get("files", []))
    return quadratic(job)


def hangs(job: Any) -> float:
    """Never returns for the first two trials, nor does the program that it has started."""
    if job.number < 2:
        sleeper = subprocess.Popen(["sleep", "600"])
        (job.directory / "sleeper").write_text(str(sleeper.pid))
        sleeper.wait()
    return quadratic(job)


def hangs_request(request: dict[str, Any]) -> None:
    """A task that never returns: tells the number of the program that it waits for."""
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        Path(request["told"]).write_text(f"{sleeper.pid}\n", encoding="utf-8")
        sleeper.wait()
