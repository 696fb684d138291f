"""What a Parsl task runs: a store's preparation, bundles of segments, waves of members."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hydragnn_flow.errors import InputError, StoreError
from hydragnn_flow.execution.lane import Lane, LaneDied
from hydragnn_flow.execution.site import Node
from hydragnn_flow.training.segment import SegmentResult, SegmentSpec, Status


@dataclass(frozen=True)
class Job:
    """One segment and the GCDs of its ranks, by position on the node."""

    spec: SegmentSpec
    gcds: tuple[int, ...] = field(default=(0,))


# Lanes live as long as the Parsl worker, so a segment finds torch imported and the store read.
_lanes: dict[tuple[str, int], Lane] = {}
_lock = threading.Lock()


def run_bundle(node: Node, bundle: str, specs: Sequence[SegmentSpec]) -> list[SegmentResult]:
    """Run segments side by side on this worker's GCD; a task of the `gcd` pool.

    Parameters
    ----------
    node
        What the site's nodes have.
    bundle
        Name of the bundle, for the records.
    specs
        The segments.

    Returns
    -------
    list of SegmentResult
        In the order of ``specs``; a segment whose process dies has a result that says so.

    Raises
    ------
    StoreError
        If a segment cannot read the store, which is no fault of its own. What the others have
        done is in their checkpoints.
    """
    gcd = int(os.environ.get("PARSL_WORKER_RANK", "0")) % len(node.gcds)
    return _run_all(node, bundle, [Job(spec, (gcd,)) for spec in specs])


def run_wave(node: Node, bundle: str, jobs: Sequence[Job]) -> list[SegmentResult]:
    """Run DDP jobs side by side on this node's GCDs; a task of the `node` pool."""
    return _run_all(node, bundle, jobs)


def run_preparation(node: Node, request: dict[str, Any]) -> None:
    """Run a task of a store's preparation in this worker's lane; a task of the `gcd` pool.

    Raises
    ------
    InputError, StoreError
        What the lane refused, and why.
    LaneDied, RuntimeError
        Where its process ended, or met anything else.
    """
    gcd = int(os.environ.get("PARSL_WORKER_RANK", "0")) % len(node.gcds)
    answer = _lane(node, node.gcds[gcd], 0).call({"prepare": request})
    if "refused" in answer:
        refusal = StoreError if answer["refused"] == StoreError.__name__ else InputError
        raise refusal(answer["reason"])
    if "error" in answer:
        raise RuntimeError(answer["error"])


def _run_all(node: Node, bundle: str, jobs: Sequence[Job]) -> list[SegmentResult]:
    slots: dict[int, int] = {}
    lanes: list[list[Lane]] = []
    for job in jobs:
        lanes.append([])
        for gcd in job.gcds:
            slot = slots[gcd] = slots.get(gcd, -1) + 1
            lanes[-1].append(_lane(node, node.gcds[gcd], slot))
    with ThreadPoolExecutor(len(jobs)) as pool:
        results = list(pool.map(lambda pair: _run_job(node, *pair), zip(jobs, lanes, strict=True)))
    for job, result in zip(jobs, results, strict=True):
        result.node, result.bundle = socket.gethostname(), bundle
        result.gcds = [node.gcds[gcd] for gcd in job.gcds]
    return results


def _run_job(node: Node, job: Job, lanes: Sequence[Lane]) -> SegmentResult:
    """Run the ranks of one segment; when one ends badly the others are ended, not left waiting."""
    started = time.time()
    spec = _in_time(job.spec)
    ends: list[SegmentResult] = []
    ending = threading.Lock()

    def end_all() -> None:
        # What the others say from here on is the consequence.
        if len(lanes) > 1:
            for lane in lanes:
                lane.kill()

    def run_rank(rank: int) -> SegmentResult | None:
        request = {
            "spec": spec.to_dict(),
            "rank": rank,
            "world": len(lanes),
            "rendezvous": rendezvous,
            "device": "cuda" if node.device == "hip" else node.device,
        }
        try:
            result = _ask(lanes[rank], request, spec, started)
        except StoreError:
            end_all()
            raise
        if result.status == "ok":
            return result
        with ending:
            ends.append(result)
            if len(ends) == 1:
                end_all()
        return None

    with tempfile.TemporaryDirectory() as meeting, ThreadPoolExecutor(len(lanes)) as pool:
        rendezvous = str(Path(meeting) / "rendezvous")
        ranks = [result for result in pool.map(run_rank, range(len(lanes))) if result is not None]
    if ends:
        # A rank that met another's death first reports a broken connection; the death says more.
        return min(ends, key=lambda result: result.status == "error")
    first = ranks[0]
    first.cpu_seconds = sum(rank.cpu_seconds for rank in ranks)
    first.peak_memory_gib = max(rank.peak_memory_gib for rank in ranks)
    return first


def _ask(lane: Lane, request: dict[str, Any], spec: SegmentSpec, started: float) -> SegmentResult:
    """Have a lane run its rank; however that ends is a result, unless the store is at fault."""
    status: Status
    try:
        answer = lane.call(request)
        if "refused" in answer:
            raise StoreError(answer["reason"])
        if "error" not in answer:
            return SegmentResult(**answer)
        status, reason = "error", str(answer["error"])
    except LaneDied as death:
        status, reason = "killed", str(death)
    now = time.time()
    return SegmentResult(
        spec.kind,
        spec.number,
        spec.rung,
        from_epoch=0,
        to_epoch=0,
        status=status,
        reason=reason,
        started=started,
        ended=now,
        seconds=now - started,
    )


def _in_time(spec: SegmentSpec) -> SegmentSpec:
    """The segment with the end of this worker's batch job as its deadline, where Slurm says it."""
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    if spec.deadline is not None or not end.isdigit() or int(end) == 0:
        return spec
    return replace(spec, deadline=float(end))


def _lane(node: Node, gcd: str, slot: int) -> Lane:
    with _lock:
        lane = _lanes.get((gcd, slot))
        if lane is None or not lane.alive:
            lane = _lanes[gcd, slot] = Lane(_environment(node, gcd))
        return lane


def _environment(node: Node, gcd: str) -> dict[str, str | None]:
    """What a process must find in its environment to see its GCD and no other."""
    variables: dict[str, str | None] = {"OMP_NUM_THREADS": str(node.cores_per_gcd)}
    if node.device == "hip":
        # ROCR_VISIBLE_DEVICES filters first; CUDA_ and HIP_VISIBLE_DEVICES would then index what
        # is left and hide every GCD but the first (parsl issue 3858).
        variables |= {
            "ROCR_VISIBLE_DEVICES": gcd,
            "CUDA_VISIBLE_DEVICES": None,
            "HIP_VISIBLE_DEVICES": None,
        }
    elif node.device == "cuda":
        variables |= {"CUDA_VISIBLE_DEVICES": gcd, "ROCR_VISIBLE_DEVICES": None}
    elif node.device == "xpu":
        variables |= {"ZE_AFFINITY_MASK": gcd}
    else:
        loopback = "lo" if sys.platform == "linux" else "lo0"
        variables |= {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": loopback}
    return variables
