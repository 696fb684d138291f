"""Parsl tasks: segments, rank groups of gangs, functions."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any, Literal, NamedTuple

from hydragnn_flow.errors import InputError, StoreError
from hydragnn_flow.execution.binding import cores_of, environment
from hydragnn_flow.execution.site import Node
from hydragnn_flow.execution.workers.local_ranks import LocalRanks, RankGroup
from hydragnn_flow.execution.workers.trainer_process import TrainerProcess
from hydragnn_flow.processes import ProcessDied, end_with_parent
from hydragnn_flow.segment import Place, SegmentResult, SegmentSpec, TrainingOutcome

# They live as long as the Parsl worker, so that a segment finds torch imported and the store read.
_trainers: dict[tuple[int, int], TrainerProcess] = {}
_lock = threading.Lock()
_watches_manager = False


class TaskEnd(NamedTuple):
    """How a function's call ended."""

    node: str
    status: Literal["ok", "failed", "refused"]
    """Refused where the node cannot do any work."""
    reason: str = ""


def run_rank_groups(node: Node, groups: Sequence[RankGroup]) -> list[SegmentResult]:
    """Run segments, or rank groups of gangs, side by side; a task of either pool.

    Parameters
    ----------
    node
        What the site's nodes have.
    groups
        Rank groups to run; those on the same GCD run side by side.

    Returns
    -------
    list of SegmentResult
        In the order of ``groups``; a segment whose process dies has a result that says so, and one
        that the node could not begin: without the store, a device, or room for processes.
    """
    try:
        return _run_side_by_side(node, groups)
    except InputError as error:
        outcome = TrainingOutcome.cut_short("refused", str(error))
    except OSError as error:
        # A node without room for files or processes spoils whatever it is sent, and must be known.
        outcome = TrainingOutcome.cut_short("error", f"{type(error).__name__}: {error}")
    place = Place(node=socket.gethostname())
    return [SegmentResult.of(group.spec, outcome, place) for group in groups]


def _run_side_by_side(node: Node, groups: Sequence[RankGroup]) -> list[SegmentResult]:
    taken: Counter[int] = Counter()
    local = []
    places = [(_own_gcd(node),) if group.gcds is None else group.gcds for group in groups]
    together = Counter(chain.from_iterable(places))
    for group, positions in zip(groups, places, strict=True):
        trainers = []
        for position in positions:
            trainers.append(trainer_for(node, position, taken[position]))
            taken[position] += 1
        fractions = [_energy_fraction(node, together[position]) for position in positions]
        local.append(
            LocalRanks(
                node, replace(group, spec=_in_time(group.spec)), positions, trainers, fractions
            )
        )
    with ThreadPoolExecutor(len(local)) as pool:
        results = list(pool.map(LocalRanks.run, local))
    # Processes that have died start again while the driver decides what comes next; the other ranks
    # of a gang would have to wait for that. An error in it is reported by the next segment that
    # needs the process, and takes nothing from these results.
    for position, n in taken.items():
        for slot in range(n):
            with suppress(OSError, InputError):
                trainer_for(node, position, slot)
    return results


def _energy_fraction(node: Node, segments: int) -> float:
    """Fraction of a GCD's energy counters that each of its segments is charged with.

    The sockets' counters see all CPU slots. Each slot is charged with the same fraction whatever
    runs on the others, so that what a trial costs does not depend on its neighbours.
    """
    slots = len(node.gcds) if node.device == "cpu" else 1
    return 1 / (slots * segments)


def run_function(node: Node, function: str, argument: dict[str, Any]) -> TaskEnd:
    """Call a function in the trainer process; a task of the `gcd` pool.

    Parameters
    ----------
    node
        What the site's nodes have.
    function
        Its name, `module:function`.
    argument
        What it is called with, as JSON.

    Raises
    ------
    InputError, StoreError
        If the input, or the place that is written to, is at fault.
    """
    here = socket.gethostname()
    try:
        trainer = trainer_for(node, _own_gcd(node))
        answer = trainer.run(function, argument)
    except InputError as error:
        return TaskEnd(here, "refused", str(error))
    except (ProcessDied, OSError) as error:
        return TaskEnd(here, "failed", str(error))
    if "refused" in answer:
        refusal = StoreError if answer["refused"] == StoreError.__name__ else InputError
        raise refusal(answer["reason"])
    if "error" in answer:
        return TaskEnd(here, "failed", str(answer["error"]))
    return TaskEnd(here, "ok")


def trainer_for(node: Node, gcd_position: int, slot: int = 0) -> TrainerProcess:
    """A trainer process of this worker; started now if there is none, or the last one died.

    Parameters
    ----------
    node
        What the site's nodes have.
    gcd_position
        The GCD, by its position on the node.
    slot
        Which of the trainer processes on the GCD.

    Raises
    ------
    InputError
        If the batch job was given fewer devices than the site's nodes have.
    """
    with _lock:
        _end_with_manager()
        trainer = _trainers.get((gcd_position, slot))
        if trainer is None or not trainer.alive:
            trainer = TrainerProcess(environment(node, gcd_position), cores_of(node, gcd_position))
            _trainers[gcd_position, slot] = trainer
        return trainer


def _own_gcd(node: Node) -> int:
    """Position of the GCD of this worker of the `gcd` pool."""
    return int(os.environ.get("PARSL_WORKER_RANK", "0")) % len(node.gcds)


def _in_time(spec: SegmentSpec) -> SegmentSpec:
    """The segment with the end of this worker's batch job as its deadline, if that is known."""
    for variable in ("HYDRAGNN_FLOW_JOB_END", "SLURM_JOB_END_TIME"):
        end = os.environ.get(variable, "")
        if end.isdigit() and int(end) > 0:
            return replace(spec, deadline=min(float(end), spec.deadline or float("inf")))
    return spec


def _end_with_manager() -> None:
    """Have this worker, and with it its trainers, end when its parent does: Parsl's manager.

    A manager that is killed leaves its workers waiting, and their trainers computing, for no
    purpose.
    """
    global _watches_manager
    manager = multiprocessing.parent_process()
    if manager is not None and manager.pid is not None and not _watches_manager:
        _watches_manager = True
        end_with_parent(manager.pid)
