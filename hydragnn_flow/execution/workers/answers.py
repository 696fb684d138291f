"""Answers of a trainer process to the requests of its node's agent (process that controls it)."""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from setproctitle import setproctitle

from hydragnn_flow.data.reading.node_cache import release_all
from hydragnn_flow.errors import InputError, JobLost, StoreError
from hydragnn_flow.execution.workers.rendezvous import RanksMissing, rendezvous
from hydragnn_flow.execution.workers.trainer_process import (
    ALIVE,
    EPOCH,
    LAST,
    RELEASE,
    SECONDS_BETWEEN_SIGNS,
    SECONDS_TO_SAVE,
    SHARE,
)
from hydragnn_flow.files import passing, patiently
from hydragnn_flow.log import LastEpoch
from hydragnn_flow.processes import keep_stdout, kill_below
from hydragnn_flow.segment import Call, SegmentSpec, Status, TrainingOutcome, read_job
from hydragnn_flow.training.checkpoints.checkpoint import SECONDS_TO_RECOVER
from hydragnn_flow.training.distributed import join, keep_forever, lost_a_rank
from hydragnn_flow.training.memory import give_back_memory, keep_freed_memory, limit_memory
from hydragnn_flow.training.monitor import Stopped
from hydragnn_flow.training.profile import profile_segment
from hydragnn_flow.training.runner import run_segment

IDLE = "hydragnn_flow: trainer"
"""Title of an idle trainer process in lists of processes."""
_leaving = threading.Lock()


class _Asked:
    """Messages of the agent to this trainer process, read by a thread."""

    def __init__(self) -> None:
        self.requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.stop = threading.Event()
        """Event that is set when the running segment has to end."""
        self.is_idle = threading.Event()
        """Event that is set while no segment runs, so that the process can end without a loss."""
        self.is_idle.set()
        self.released = ""
        """Identifier of the attempt at a segment that was last asked to stop."""
        self.share = 1.0
        """Fraction of the GCD's measured energy that belongs to this process, 0 to 1."""
        self.memory_gib: float | None = None
        """Most memory that this process may reserve on its GCD [GiB]; None for all of it."""

    def read(self) -> None:
        """Read messages until the agent closes the pipe or dies; then end this process."""
        for line in sys.stdin:
            message = json.loads(line)
            if SHARE in message:
                self.share, self.memory_gib = message[SHARE]
                with suppress(RuntimeError):  # this thread has to hear of the end
                    limit_memory(self.memory_gib)
            elif RELEASE in message:
                self.released = message[RELEASE]
            else:
                self.requests.put(message)
        self.stop.set()
        self.is_idle.wait(SECONDS_TO_SAVE)
        _leave()

    def terminate(self, *_: object) -> None:
        """Handle the signal SIGTERM: end the process after the running segment has stopped."""
        self.stop.set()
        self.requests.put({})  # wakes an idle process


def serve() -> None:
    """Run the jobs that this node's agent requests until it closes the pipe; then end the process.

    The agent is the process that controls the node's trainer processes.

    The process also ends after SIGTERM, or after an answer with the key :data:`.LAST`.
    """
    setproctitle(IDLE)
    keep_freed_memory()
    send, asked = keep_stdout(), _Asked()
    threading.Thread(target=asked.read, daemon=True).start()
    signal.signal(signal.SIGTERM, asked.terminate)
    while not asked.stop.is_set():
        if request := asked.requests.get():
            answer = _answer(request, asked, send)
            send(answer)
            if LAST in answer:
                break
            # Done before the next request comes: an idle process shares its GCD with others.
            give_back_memory()
    _leave()


def _leave() -> None:
    """End this process at once, after deleting the node's copy of the store."""
    with _leaving:  # never released: two threads may come here
        try:
            release_all()
            kill_below(os.getpid())
        finally:
            os._exit(0)


def _answer(
    request: dict[str, Any], asked: _Asked, send: Callable[[Mapping[str, Any]], None]
) -> dict[str, Any]:
    try:
        job = read_job(request["spec"])
    except InputError as error:  # the node lacks a user's module
        return vars(TrainingOutcome.cut_short("refused", str(error)))
    if not isinstance(job, Call):  # a call has no checkpoint to wait for
        asked.is_idle.clear()
    setproctitle(f"hydragnn_flow: {job.kind} {job.number} of {job.driver.run_directory}")
    try:
        return _done(job, request, asked, _Signs(send))
    finally:
        setproctitle(IDLE)
        with suppress(OSError):  # a full disk costs lines of the log, not the answer
            sys.stdout.flush()  # into the file of standard error
        asked.is_idle.set()


class _Signs:
    """Heartbeats of a training to the agent, at most about one every second."""

    def __init__(self, send: Callable[[Mapping[str, Any]], None]) -> None:
        self._send, self._sent = send, 0.0
        self._news: dict[str, LastEpoch] = {}

    def alive(self, longest_step: float) -> None:
        """Send a heartbeat, with the last epoch if it is new, unless the last one was just now."""
        now = time.monotonic()
        if now - self._sent >= SECONDS_BETWEEN_SIGNS:
            self._sent = now
            with suppress(OSError):  # the agent has died, which the reading thread notices
                self._send({ALIVE: longest_step, **self._news})
            self._news = {}

    def epoch_ended(self, epoch: LastEpoch) -> None:
        """Add an epoch that has ended to the next heartbeat."""
        self._news = {EPOCH: epoch}


def _called(job: Call) -> TrainingOutcome:
    """Call a function and return its outcome; repeat the call for a while if the disk fails."""
    module, _, function = job.function.partition(":")
    began, started, cpu = time.perf_counter(), time.time(), time.process_time()

    def call() -> dict[str, Any]:
        return getattr(importlib.import_module(module), function)(job.argument) or {}

    try:
        answer = patiently(call, print, SECONDS_TO_RECOVER)
    except InputError as error:
        if passing(error) is not None:
            raise JobLost(_one_line(error)) from error
        outcome = TrainingOutcome.cut_short("wrong_input", str(error), began)
        return replace(outcome, answer={"is_store": isinstance(error, StoreError)})
    return TrainingOutcome(
        status="ok",
        answer=answer,
        started=started,
        ended=time.time(),
        seconds=time.perf_counter() - began,
        cpu_seconds=time.process_time() - cpu,
    )


def _done(
    job: Call | SegmentSpec,
    request: Mapping[str, Any],
    asked: _Asked,
    signs: _Signs,
) -> dict[str, Any]:
    """Run this process's rank of a job; return the outcome as values for JSON."""
    rank, size, device = request["rank"], request["world"], request["device"]
    began = time.perf_counter()

    # Other ranks do not notice on their own, unlike when all agree to stop.
    cut_short: Status = "interrupted" if size == 1 else "lost"

    def should_stop() -> bool:
        return asked.stop.is_set() or asked.released == job.attempt != ""

    def ended(status: Status, reason: str) -> dict[str, Any]:
        return vars(TrainingOutcome.cut_short(status, reason, began))

    try:
        limit_memory(asked.memory_gib, device)
        place = request["rendezvous"]
        with (
            nullcontext()
            if place is None
            else rendezvous(**place, rank=rank, size=size, should_stop=should_stop) as store
        ):
            world = join(rank, size, store, device)
            if isinstance(job, Call):
                outcome = _called(job)
            else:
                run: Callable[..., TrainingOutcome] = profile_segment
                if not job.profile.seconds:
                    run = partial(run_segment, epoch_ended=signs.epoch_ended)
                outcome = run(
                    job,
                    device=device,
                    world=world,
                    should_stop=should_stop,
                    energy_fraction=lambda: asked.share,
                    alive=signs.alive,
                )
        # What a recording that failed leaves behind is not known.
        ends = world.is_joined or bool(outcome.not_replayed) or "raised" in outcome.answer
        return vars(outcome) | ({LAST: True} if ends else {})
    except (RanksMissing, Stopped) as error:
        return ended(cut_short, str(error))
    except StoreError as error:
        return ended("refused", str(error)) | ({LAST: True} if size > 1 else {})
    except Exception as error:
        traceback.print_exc()
        cause = passing(error)
        if isinstance(error, JobLost):
            answer = ended("lost", str(error))
        elif cause is not None and isinstance(job, Call):
            answer = ended("lost", _one_line(error))
        elif cause is not None:
            answer = ended(cut_short, f"the disk failed ({_one_line(cause)})")
        elif size > 1 and lost_a_rank(error):
            answer = ended("lost", f"the connection to another rank broke ({_one_line(error)})")
        else:
            answer = ended("error", _one_line(error))
        if size == 1 and device == "cpu" and not isinstance(job, Call):
            return answer
        # Some errors of an accelerator persist until the process ends. Other ranks are still joined
        # to this process, with objects that the error refers to.
        if size > 1:
            keep_forever(error)
        return answer | {LAST: True}


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
