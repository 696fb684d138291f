"""The process at the far end of a lane: `python -m hydragnn_flow.execution.lane_process`."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from hydragnn_flow.config.network import write_network
from hydragnn_flow.data import run_task
from hydragnn_flow.data.reading.node_cache import release_all
from hydragnn_flow.errors import InputError, StoreError
from hydragnn_flow.execution.lease import Busy, Fence, sole_writer
from hydragnn_flow.training.distributed import joined
from hydragnn_flow.training.memory import keep_freed_memory
from hydragnn_flow.training.runner import run_segment
from hydragnn_flow.training.segment import SegmentResult, SegmentSpec

# Without its worker a lane may take so long to write a checkpoint; schedulers kill 30 s after their
# warning.
SECONDS_TO_SAVE = 20.0


def _serve() -> None:
    """Answer requests until the worker closes the pipe."""
    keep_freed_memory()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints to standard output must not be taken for a reply
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    stop, safe = threading.Event(), threading.Event()
    safe.set()

    def read() -> None:
        for line in sys.stdin:
            requests.put(line)
        stop.set()
        safe.wait(SECONDS_TO_SAVE)
        try:
            release_all()  # the node's copy of the store, which the exit below would leave there
        finally:
            os._exit(0)  # the worker is gone, so nobody wants the rest

    threading.Thread(target=read, daemon=True).start()

    def terminate(*_: object) -> None:
        stop.set()
        requests.put("")  # wakes an idle lane

    signal.signal(signal.SIGTERM, terminate)
    while not stop.is_set():
        request = requests.get()
        if request:
            replies.write(json.dumps(_answer(json.loads(request), stop, safe)) + "\n")
            replies.flush()


def _answer(
    request: dict[str, Any], stop: threading.Event, safe: threading.Event
) -> dict[str, Any]:
    if "prepare" in request:
        return _prepare(request["prepare"])
    safe.clear()  # what the segment has done is not in its checkpoint yet
    try:
        return _train(request, stop)
    finally:
        safe.set()


def _prepare(request: dict[str, Any]) -> dict[str, Any]:
    try:
        run_task(request)
    except InputError as error:
        return _refusal(error)
    except Exception as error:
        traceback.print_exc()
        return {"error": _one_line(error)}
    return {}


def _train(request: dict[str, Any], stop: threading.Event) -> dict[str, Any]:
    spec = SegmentSpec(**request["spec"])
    fence = Fence(Path(spec.run_directory), spec.token, spec.folder, spec.claim)
    rank = request["rank"]

    def should_stop() -> bool:
        return stop.is_set() or fence.deposed()

    folder = spec.folder
    try:
        write_network(folder, spec.network)
    except OSError as error:
        return {"error": _one_line(error)}
    try:
        with (
            _logging_to(folder / "log"),
            sole_writer(folder, spec.claim) if rank == 0 else nullcontext(),
            joined(rank, request["world"], request["rendezvous"], request["device"]) as world,
        ):
            return run_segment(
                spec, device=request["device"], world=world, should_stop=should_stop
            ).to_dict()
    except Busy as busy:
        result = SegmentResult(spec.kind, spec.number, spec.rung, 0, 0, "interrupted", str(busy))
        return result.to_dict()
    except StoreError as error:
        return _refusal(error)
    except Exception as error:
        with (folder / "log").open("a") as log:
            traceback.print_exc(file=log)
        return {"error": _one_line(error)}


def _refusal(error: InputError) -> dict[str, Any]:
    return {"refused": type(error).__name__, "reason": str(error)}


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Send everything the process prints to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with path.open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in enumerate(saved, start=1):
            os.dup2(copy, number)
            os.close(copy)


if __name__ == "__main__":
    _serve()
