"""Tasks of a node's agent: ranks of jobs, and ranks that are called off or stopped."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.fence import DriverFile
from hydragnn_flow.execution.site import Node
from hydragnn_flow.execution.workers.rank import Rank, RankRun
from hydragnn_flow.execution.workers.trainer_process import SECONDS_TO_SAVE
from hydragnn_flow.execution.workers.trainers import Trainers
from hydragnn_flow.files import passing
from hydragnn_flow.segment import (
    AGREED,
    Call,
    JobSpec,
    Place,
    SegmentResult,
    TrainingOutcome,
)

# Attempts that were called off, or are to stop, before they came; of the last only.
_MOST_REMEMBERED = 1000
# Times between two looks for another driver [s], and most looks of all nodes in a second: they have
# one file system. A node that hears nothing of its driver ends in any case.
_SECONDS_BETWEEN_LOOKS, _LOOKS_PER_SECOND = 5.0, 20.0
# Time for trainer processes to write their checkpoints when the agent ends [s].
_SECONDS_TO_LEAVE = SECONDS_TO_SAVE + 5.0
_lock = threading.Lock()
_running: dict[str, list[RankRun]] = {}
_called_off: dict[str, str] = {}
_released: dict[str, str] = {}
_watch: list[threading.Thread] = []


@cache
def trainers_of(node: Node) -> Trainers:
    """The trainer processes of this node, which live as long as this process."""
    return Trainers(node)


def run_ranks(node: Node, ranks: Sequence[Rank]) -> list[SegmentResult]:
    """Run a job, or those ranks of a gang that are on this node.

    Parameters
    ----------
    node
        What the site's nodes have.
    ranks
        Of one job.

    Returns
    -------
    list of SegmentResult
        In the order of ``ranks``, of each segment that is fused with others behind them its own; a
        rank whose process dies has a result that says so, and one that
        the node could not begin: without the store, a device, or room for processes.
    """
    spec = ranks[0].spec
    _watch_driver(spec, len(node.gcds))
    with ExitStack() as stack:
        here = ""
        try:
            if ranks[0].in_gang:
                here = stack.enter_context(tempfile.TemporaryDirectory(prefix="hydragnn_flow-"))
        except OSError as error:
            return [result for rank in ranks for result in _not_begun(rank, error)]
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
        return [*chain.from_iterable(pool.map(_run, repeat(node), ranks, runs))]


def _forget(attempt: str) -> None:
    with _lock:
        _running.pop(attempt, None)


def call_off(attempt: str, reason: str) -> None:
    """End the ranks of a job on this node, begun or still to come.

    A rank that ends badly leaves the others waiting in a collective operation. The driver learns of
    it, and tells the nodes of the others. A function that hangs is killed.

    Parameters
    ----------
    attempt
        Of the job, as it was sent.
    reason
        Why, in a few words.
    """
    for run in _remembered(_called_off, attempt, reason):
        run.call_off(reason, "killed" if isinstance(run.spec, Call) else "interrupted")


def release(attempt: str) -> None:
    """Have a segment of this node end by itself, with a checkpoint; at once if it is still to come.

    The ranks of a gang agree to stop, so it is enough to ask those of one node.

    Parameters
    ----------
    attempt
        Of the segment, as it was sent.
    """
    for run in _remembered(_released, attempt):
        run.release()


def _remembered(of_these: dict[str, str], attempt: str, reason: str = "") -> list[RankRun]:
    """Remember an attempt that may be still to come; returns its ranks at work here."""
    with _lock:
        of_these[attempt] = reason
        while len(of_these) > _MOST_REMEMBERED:
            of_these.pop(next(iter(of_these)))
        return _running.get(attempt, [])


def _run(node: Node, rank: Rank, run: RankRun) -> list[SegmentResult]:
    """Run a rank; where it ends badly, those of its gang on this node do too."""
    try:
        with trainers_of(node).lend(rank.gcd, rank.memory_gib) as (trainer, gcd):
            results = run.run(trainer, gcd)
    except (InputError, OSError) as error:
        results = _not_begun(rank, error)
    if rank.in_gang and results[0].status not in AGREED:
        call_off(rank.spec.attempt, results[0].reason)
    return results


def leave() -> None:
    """End what runs here, each segment with a checkpoint; for an agent that ends."""
    with _lock:
        runs = [run for ranks in _running.values() for run in ranks]
    for run in runs:
        run.stop()
    give_up = time.monotonic() + _SECONDS_TO_LEAVE
    while _running and time.monotonic() < give_up:
        time.sleep(0.1)
    for run in runs:
        run.call_off("its node ended")


def _watch_driver(spec: JobSpec, gcds: int) -> None:
    """From now on, end segments of a driver that another has replaced, each with a checkpoint."""
    nodes = spec.site_gcds / gcds
    seconds = max(_SECONDS_BETWEEN_LOOKS, nodes / _LOOKS_PER_SECOND)

    def watch() -> None:
        watched, token = DriverFile(Path(spec.run_directory)), None
        while True:
            time.sleep(seconds)
            with suppress(OSError):  # a disk that does not answer says nothing
                token = watched.token()
            with _lock:
                runs = [run for ranks in _running.values() for run in ranks]
            for run in runs:
                is_ours = run.spec.run_directory == spec.run_directory
                if is_ours and token not in (None, run.spec.token):
                    run.stop()

    with _lock:
        if spec.run_directory and not _watch:
            _watch.append(threading.Thread(target=watch, daemon=True, name="driver-watch"))
            _watch[0].start()


def _meeting(node: Node, ranks: Sequence[Rank], rank: Rank, here: str) -> dict[str, Any] | None:
    """Where a rank of a gang meets the others, as :func:`.rendezvous` takes it.

    ``ranks`` are those on this node, ``here`` is a directory of it.
    """
    if not rank.in_gang:
        return None
    is_here = rank.nodes == 1
    return {
        "folder": None if is_here else rank.spec.directory,
        "here": here,
        "leads": rank is ranks[0],
        "key": rank.spec.attempt,
        "interface": None if is_here else node.interface,
    }


def _is_nodes(error: Exception) -> bool:
    return isinstance(error, InputError) or passing(error) is not None


def _not_begun(rank: Rank, error: Exception) -> list[SegmentResult]:
    """Results of a rank for which a node has no device, or no room for files or processes.

    The node spoils whatever it is sent, and must be known.
    """
    reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    outcome = TrainingOutcome.cut_short("refused" if _is_nodes(error) else "error", reason)
    place = Place(node=socket.gethostname())
    return [SegmentResult.of(spec, outcome, place) for spec in rank.specs]
