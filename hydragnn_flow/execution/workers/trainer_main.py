"""Main module of a trainer process: it answers the requests of its worker."""

from __future__ import annotations

import gc
import importlib
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from torch.distributed.distributed_c10d import Store

from hydragnn_flow.config.network import write_network
from hydragnn_flow.data.reading.node_cache import release_all
from hydragnn_flow.errors import InputError, StoreError
from hydragnn_flow.execution.fence import Busy, Fence, sole_writer
from hydragnn_flow.execution.workers.gang import forget_earlier_aborts
from hydragnn_flow.execution.workers.rendezvous import RanksMissing, rendezvous
from hydragnn_flow.execution.workers.trainer_process import (
    ALIVE,
    ARGUMENT,
    CALL,
    LAST,
    SECONDS_BETWEEN_SIGNS,
)
from hydragnn_flow.files import PASSING, sweep
from hydragnn_flow.processes import keep_stdout
from hydragnn_flow.segment import SegmentSpec, Status, TrainingOutcome
from hydragnn_flow.training import checkpoint, predictions
from hydragnn_flow.training.distributed import join, keep_forever, lost_a_rank
from hydragnn_flow.training.memory import give_back_memory, keep_freed_memory
from hydragnn_flow.training.monitor import Stopped
from hydragnn_flow.training.runner import run_segment

# Time to write a checkpoint once the worker is gone [s]; schedulers kill 30 s after their warning.
SECONDS_TO_SAVE = 20.0


def _serve() -> None:
    """Answer requests until the worker closes the pipe."""
    keep_freed_memory()
    gc.freeze()  # what is imported stays, and would take a quarter of a second to search
    send = keep_stdout()
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
            os._exit(0)  # the worker is gone, and with it the reader of any answer

    threading.Thread(target=read, daemon=True).start()

    def terminate(*_: object) -> None:
        stop.set()
        requests.put("")  # wakes an idle trainer process

    signal.signal(signal.SIGTERM, terminate)
    while not stop.is_set():
        request = requests.get()
        if request:
            answer = _answer(json.loads(request), stop, safe, send)
            send(answer)
            if LAST in answer:
                release_all()
                os._exit(0)
            # Now, while no request waits: other segments may run on the GCD of an idle process.
            give_back_memory()


def _answer(
    request: dict[str, Any],
    stop: threading.Event,
    safe: threading.Event,
    send: Callable[[Mapping[str, Any]], None],
) -> dict[str, Any]:
    if CALL in request:
        return _outcome(request[CALL], request[ARGUMENT])
    safe.clear()  # what the segment has done is not in its checkpoint yet
    try:
        return _train(request, stop, _signs(send))
    finally:
        safe.set()


def _signs(send: Callable[[Mapping[str, Any]], None]) -> Callable[[float], None]:
    """Tells the worker, at most about every second, that this process does not hang."""
    sent = 0.0

    def sign(longest_step: float) -> None:
        nonlocal sent
        now = time.monotonic()
        if now - sent >= SECONDS_BETWEEN_SIGNS:
            sent = now
            with suppress(OSError):  # the worker is gone, which is seen to elsewhere
                send({ALIVE: longest_step})

    return sign


def _outcome(name: str, argument: dict[str, Any]) -> dict[str, Any]:
    """Answer of the function `module:function`, or the reason why there is no answer."""
    module, _, function = name.partition(":")
    try:
        answer: dict[str, Any] = getattr(importlib.import_module(module), function)(argument) or {}
        return answer
    except InputError as error:
        return {"refused": type(error).__name__, "reason": str(error)}
    except Exception as error:
        traceback.print_exc()
        # On an accelerator some errors last as long as the process.
        return {"error": _one_line(error), LAST: True}


def _train(
    request: dict[str, Any],
    stop: threading.Event,
    alive: Callable[[float], None] = lambda longest_step: None,
) -> dict[str, Any]:
    try:
        spec = SegmentSpec.from_dict(request["spec"])
    except InputError as error:  # this node lacks a module of the user's
        return vars(TrainingOutcome.cut_short("refused", str(error)))
    rank, size, device = request["rank"], request["world"], request["device"]
    fence = Fence(spec)
    started = time.time()

    # Other ranks do not come to know by themselves, as they do when all agree to stop.
    cut_short: Status = "interrupted" if size == 1 else "lost"

    def should_stop() -> bool:
        return stop.is_set() or fence.deposed()

    def ended(status: Status, reason: str) -> dict[str, Any]:
        return vars(TrainingOutcome.cut_short(status, reason, started))

    try:
        with (
            _logging_to(spec.folder / "log"),
            _written_by(spec) if rank == 0 else nullcontext(),
            _rendezvous(request, should_stop) as store,
        ):
            world = join(rank, size, store, device)
            outcome = run_segment(
                spec,
                device=device,
                world=world,
                should_stop=should_stop,
                may_write=fence.may_write,
                energy_fraction=request["energy_fraction"],
                alive=alive,
            )
        return vars(outcome) | ({LAST: True} if world.is_joined else {})
    except (Busy, RanksMissing, Stopped) as error:
        return ended(cut_short, str(error))
    except StoreError as error:
        return ended("refused", str(error)) | ({LAST: True} if size > 1 else {})
    except Exception as error:
        with suppress(OSError), (spec.folder / "log").open("a") as log:
            traceback.print_exc(file=log)
        if isinstance(error, OSError) and error.errno in PASSING:
            answer = ended(cut_short, f"the disk failed ({_one_line(error)})")
        elif size > 1 and lost_a_rank(error):
            answer = ended("lost", f"the connection to another rank broke ({_one_line(error)})")
        else:
            answer = ended("error", _one_line(error))
        if size == 1 and device == "cpu":
            return answer
        # On an accelerator some errors last as long as the process; and other ranks are still
        # joined to it, with what the error refers to.
        if size > 1:
            keep_forever(error)
        return answer | {LAST: True}


@contextmanager
def _written_by(spec: SegmentSpec) -> Iterator[None]:
    """Be the rank that writes into the segment's folder."""
    with sole_writer(spec.folder, spec.attempt):
        forget_earlier_aborts(spec)
        for name in (checkpoint.FILE, *predictions.FILES.values()):
            sweep(spec.folder / name)
        write_network(spec.folder, spec.network.to_json())
        yield


def _rendezvous(
    request: dict[str, Any], should_stop: Callable[[], bool]
) -> AbstractContextManager[Store | None]:
    if request["rendezvous"] is None:
        return nullcontext()
    rank, size = request["rank"], request["world"]
    return rendezvous(**request["rendezvous"], rank=rank, size=size, should_stop=should_stop)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Send everything the process prints to a file, whose folder is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with path.open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        with suppress(OSError):  # a full disk costs the log its end, not the segment its result
            sys.stdout.flush()
            sys.stderr.flush()
        for number, copy in enumerate(saved, start=1):
            os.dup2(copy, number)
            os.close(copy)


if __name__ == "__main__":
    _serve()
