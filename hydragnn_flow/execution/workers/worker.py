"""Parsl tasks: segments, parts of gangs, a store's preparation."""

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
from hydragnn_flow.execution.workers.lane import Lane
from hydragnn_flow.execution.workers.part import Job, Part
from hydragnn_flow.processes import ProcessDied, end_with_parent
from hydragnn_flow.segment import Place, SegmentResult, SegmentSpec, TrainingOutcome

# Lanes live as long as the Parsl worker, so a segment finds torch imported and the store read.
_lanes: dict[tuple[int, int], Lane] = {}
_lock = threading.Lock()
_watches_manager = False


class Prepared(NamedTuple):
    """End of a task of a store's preparation."""

    node: str
    status: Literal["ok", "failed", "refused"]
    """Refused where the node cannot do any work."""
    reason: str = ""


def run_jobs(node: Node, jobs: Sequence[Job]) -> list[SegmentResult]:
    """Run segments, or parts of gangs, side by side; a task of either pool.

    Parameters
    ----------
    node
        What the site's nodes have.
    jobs
        What to run; those on the same GCD share it.

    Returns
    -------
    list of SegmentResult
        In the order of ``jobs``; a segment whose process dies has a result that says so, and one
        that the node could not begin: without the store, a device, or room for processes.
    """
    try:
        return _run_side_by_side(node, jobs)
    except InputError as error:
        outcome = TrainingOutcome.cut_short("refused", str(error))
    except OSError as error:
        # A node without room for files or processes spoils whatever it is sent, and must be known.
        outcome = TrainingOutcome.cut_short("error", f"{type(error).__name__}: {error}")
    place = Place(node=socket.gethostname())
    return [SegmentResult.of(job.spec, outcome, place) for job in jobs]


def _run_side_by_side(node: Node, jobs: Sequence[Job]) -> list[SegmentResult]:
    taken: Counter[int] = Counter()
    parts = []
    places = [(_own_gcd(node),) if job.gcds is None else job.gcds for job in jobs]
    together = Counter(chain.from_iterable(places))
    for job, positions in zip(jobs, places, strict=True):
        lanes = []
        for position in positions:
            lanes.append(lane_for(node, position, taken[position]))
            taken[position] += 1
        shares = [_energy_share(node, together[position]) for position in positions]
        parts.append(Part(node, replace(job, spec=_in_time(job.spec)), positions, lanes, shares))
    with ThreadPoolExecutor(len(parts)) as pool:
        results = list(pool.map(Part.run, parts))
    # Lanes that have died import torch while the driver decides what comes next; the other ranks
    # of a gang would have to wait for that. What keeps one from coming back is told by whoever
    # needs it, and takes nothing from the results.
    for position, n in taken.items():
        for slot in range(n):
            with suppress(OSError, InputError):
                lane_for(node, position, slot)
    return results


def _energy_share(node: Node, segments: int) -> float:
    """Share of a GCD's energy counters that each of its segments is charged with.

    The sockets' counters see all CPU slots. A slot is charged with its part of them whatever runs
    on the others, so that what a trial costs does not depend on its neighbours.
    """
    slots = len(node.gcds) if node.device == "cpu" else 1
    return 1 / (slots * segments)


def run_preparation(node: Node, request: dict[str, Any]) -> Prepared:
    """Run a task of a store's preparation in this worker's lane; a task of the `gcd` pool.

    Raises
    ------
    InputError, StoreError
        If the input, or the place that is written to, is at fault.
    """
    here = socket.gethostname()
    try:
        lane = lane_for(node, _own_gcd(node))
        answer = lane.run("hydragnn_flow.data:run_task", request)
    except InputError as error:
        return Prepared(here, "refused", str(error))
    except (ProcessDied, OSError) as error:
        return Prepared(here, "failed", str(error))
    if "refused" in answer:
        refusal = StoreError if answer["refused"] == StoreError.__name__ else InputError
        raise refusal(answer["reason"])
    if "error" in answer:
        return Prepared(here, "failed", str(answer["error"]))
    return Prepared(here, "ok")


def lane_for(node: Node, gcd_position: int, slot: int = 0) -> Lane:
    """A lane of this worker; started now where there is none, or the last one died.

    Parameters
    ----------
    node
        What the site's nodes have.
    gcd_position
        The GCD, by its position on the node.
    slot
        Which of the lanes that share the GCD.

    Raises
    ------
    InputError
        If the batch job was given fewer devices than the site's nodes have.
    """
    with _lock:
        _end_with_manager()
        lane = _lanes.get((gcd_position, slot))
        if lane is None or not lane.alive:
            lane = Lane(environment(node, gcd_position), cores_of(node, gcd_position))
            _lanes[gcd_position, slot] = lane
        return lane


def _own_gcd(node: Node) -> int:
    """Position of the GCD that this worker of the `gcd` pool stands for."""
    return int(os.environ.get("PARSL_WORKER_RANK", "0")) % len(node.gcds)


def _in_time(spec: SegmentSpec) -> SegmentSpec:
    """The segment with the end of this worker's batch job as its deadline, where that is known."""
    for variable in ("HYDRAGNN_FLOW_JOB_END", "SLURM_JOB_END_TIME"):
        end = os.environ.get(variable, "")
        if end.isdigit() and int(end) > 0:
            return replace(spec, deadline=min(float(end), spec.deadline or float("inf")))
    return spec


def _end_with_manager() -> None:
    """Have this process end when Parsl's manager, its parent, does; its lanes end with it.

    A manager that is killed leaves its workers waiting, and their lanes computing, for nobody.
    """
    global _watches_manager
    manager = multiprocessing.parent_process()
    if manager is not None and manager.pid is not None and not _watches_manager:
        _watches_manager = True
        end_with_parent(manager.pid)
