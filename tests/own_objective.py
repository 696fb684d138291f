"""Objectives as users write them."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any


def quadratic(job: Any) -> float:
    """Falls with the budget; goes on from where an earlier call has stopped."""
    file = job.directory / "state.json"
    state = json.loads(file.read_text()) if file.exists() else {"done": 0, "calls": 0}
    state["calls"] += 1
    while state["done"] < job.budget:
        time.sleep(job.parameters.get("pause", 0.0))
        state["done"] += 1
        file.write_text(json.dumps(state))
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
