"""Tasks of a node's agent: run ranks of jobs, end them, or stop them at a checkpoint."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.fence import DriverFile
from hydragnn_flow.execution.site import Node
from hydragnn_flow.execution.workers.rank import Rank, RankRun
from hydragnn_flow.execution.workers.trainer_process import SECONDS_TO_SAVE, Trainers
from hydragnn_flow.files import passing
from hydragnn_flow.segment import (
    AGREED,
    Call,
    JobSpec,
    Place,
    SegmentResult,
    TrainingOutcome,
)

# Least time between two looks for another driver [s].
_SECONDS_BETWEEN_LOOKS = 5.0
_lock = threading.Lock()
_running: dict[str, list[RankRun]] = {}
_called_off: dict[str, str] = {}
_released: dict[str, str] = {}
_watched: set[str] = set()


@cache
def trainers_of(node: Node) -> Trainers:
    """Return the trainer processes of this node, which live as long as this process."""
    return Trainers(node)


def run_ranks(node: Node, ranks: Sequence[Rank]) -> list[SegmentResult]:
    """Run those ranks (processes) of a job that are on this node; wait for their results.

    Parameters
    ----------
    node
        Description of the site's nodes.
    ranks
        Ranks of one job on this node.

    Returns
    -------
    list of SegmentResult
        Results in the order of ``ranks``. If a rank's process dies, its result says so; likewise if
        the node could not start it for lack of a store, a device, or room for processes.
    """
    spec = ranks[0].spec
    _watch_driver(spec, len(node.gcds))
    with ExitStack() as stack:
        here = ""
        try:
            if ranks[0].in_gang:
                here = stack.enter_context(tempfile.TemporaryDirectory(prefix="hydragnn_flow-"))
        except OSError as error:
            return [_not_begun(rank, error) for rank in ranks]
        runs = [RankRun(node, rank, _meeting(node, ranks, rank, here)) for rank in ranks]
        with _lock:
            _running[spec.attempt] = runs
            called_off, is_released = _called_off.get(spec.attempt), spec.attempt in _released
        stack.callback(_forget, spec.attempt)
        if called_off is not None:
            call_off(spec.attempt, called_off)
        elif is_released:
            release(spec.attempt)
        pool = stack.enter_context(ThreadPoolExecutor(len(runs)))
        return [*pool.map(_run, repeat(node), ranks, runs)]


def _forget(attempt: str) -> None:
    with _lock:
        _running.pop(attempt, None)


def call_off(attempt: str, reason: str) -> None:
    """End the ranks (processes) of a job on this node at once, or as soon as they arrive.

    A failed rank leaves the others waiting in a collective operation. The driver learns of the
    failure, and calls this on the nodes of the other ranks. It also ends function calls that hang.

    Parameters
    ----------
    attempt
        Identifier of the attempt at the job.
    reason
        Reason in a few words.
    """
    for run in _remembered(_called_off, attempt, reason):
        run.call_off(reason, "killed" if isinstance(run.spec, Call) else "interrupted")


def release(attempt: str) -> None:
    """Stop a segment (job of training) on this node at a checkpoint, now or when it arrives.

    All ranks of a segment agree to stop, so it is enough to ask those on one node.

    Parameters
    ----------
    attempt
        Identifier of the attempt at the segment.
    """
    for run in _remembered(_released, attempt):
        run.release()


def _remembered(of_these: dict[str, str], attempt: str, reason: str = "") -> list[RankRun]:
    """Add an attempt and a reason to ``of_these``; return the attempt's ranks that run here.

    Further ranks of the attempt may still arrive, and then find it in the dict.
    """
    with _lock:
        of_these[attempt] = reason
        while len(of_these) > 1000:
            of_these.pop(next(iter(of_these)))
        return _running.get(attempt, [])


def _run(node: Node, rank: Rank, run: RankRun) -> SegmentResult:
    """Run a rank and return its result; if it fails, end the job's other ranks on this node."""
    try:
        runs_apps = rank.spec.kind == "call"
        with trainers_of(node).lend(rank.gcd, rank.memory_gib, runs_apps=runs_apps) as trainer:
            result = run.run(trainer)
    except (InputError, OSError) as error:
        result = _not_begun(rank, error)
    if rank.in_gang and result.status not in AGREED:
        call_off(rank.spec.attempt, result.reason)
    return result


def last_epochs() -> dict[str, list[float]]:
    """Return the last epoch of each running training on this node, by its attempt.

    An epoch is given by the fields of :class:`~hydragnn_flow.log.LastEpoch`.
    """
    with _lock:
        runs = [run for ranks in _running.values() for run in ranks]
    return {run.spec.attempt: run.last_epoch for run in runs if run.last_epoch}


def leave() -> None:
    """Stop all jobs on this node before its agent, the process that receives them, ends.

    Segments (jobs of training) stop at a checkpoint, function calls at once.
    """
    with _lock:
        runs = [run for ranks in _running.values() for run in ranks]
    for run in runs:
        run.stop()
    give_up = time.monotonic() + SECONDS_TO_SAVE + 5.0
    while _running and time.monotonic() < give_up:
        time.sleep(0.1)
    for run in runs:
        run.call_off("its node ended")


def _watch_driver(spec: JobSpec, gcds: int) -> None:
    """Start a thread that stops this run's jobs once a newer driver has replaced their driver.

    Only a run directory's first call starts a thread. ``gcds`` is the number of GCDs on a node.
    """
    # All nodes share a file system, and look at most 20 times a second. A node that loses contact
    # with its driver ends in any case.
    seconds = max(_SECONDS_BETWEEN_LOOKS, spec.driver.site_gcds / gcds / 20)

    def watch() -> None:
        watched, token = DriverFile(Path(spec.driver.run_directory)), None
        while True:
            time.sleep(seconds)
            with suppress(OSError):  # if the disk does not answer, the last token counts
                token = watched.token()
            with _lock:
                runs = [run for ranks in _running.values() for run in ranks]
            for run in runs:
                is_ours = run.spec.driver.run_directory == spec.driver.run_directory
                if is_ours and token not in (None, run.spec.driver.token):
                    run.stop()

    with _lock:
        if spec.driver.run_directory in {"", *_watched}:
            return
        _watched.add(spec.driver.run_directory)
    threading.Thread(target=watch, daemon=True, name="driver-watch").start()


def _meeting(node: Node, ranks: Sequence[Rank], rank: Rank, here: str) -> dict[str, Any] | None:
    """Return arguments for :func:`.rendezvous` of a rank with the job's others; None if alone.

    ``ranks`` are the job's ranks on this node, and ``here`` is a directory on this node.
    """
    if not rank.in_gang:
        return None
    is_here = rank.nodes == 1
    return {
        "folder": rank.spec.directory if rank is ranks[0] and not is_here else None,
        "here": here,
        "key": rank.spec.attempt,
        "interface": None if is_here else node.interface,
    }


def _is_nodes(error: Exception) -> bool:
    return isinstance(error, InputError) or passing(error) is not None


def _not_begun(rank: Rank, error: Exception) -> SegmentResult:
    """Return the result of a rank that this node could not start because of ``error``.

    It contains the node's name, as the node may fail every job that it gets.
    """
    reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    outcome = TrainingOutcome.cut_short("refused" if _is_nodes(error) else "error", reason)
    place = Place(node=socket.gethostname())
    return SegmentResult.of(rank.spec, outcome, place)
