"""Functions that nodes run for the benchmark."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from execution_race.on_paper import nothing_done
from execution_race.processes import start_of
from hydragnn_flow.execution import Node, Rank
from hydragnn_flow.execution.workers.worker import ask_trainer
from hydragnn_flow.segment import SegmentResult, SegmentSpec


class FirstStep(NamedTuple):
    """Unix times on the way of a segment to its first step [s]."""

    agent: float
    """When the node's agent was started."""
    task: float
    """When it began the task."""
    segment: float
    """When the trainer process began the segment."""
    first_step: float


def end_at_once(node: Node, groups: Sequence[Rank]) -> list[SegmentResult]:
    """In place of `run_ranks`: results of segments that did nothing."""
    return [nothing_done(group.spec, node="here", gcds=[node.gcds[0]]) for group in groups]


def to_first_step(node: Node, spec: SegmentSpec) -> FirstStep:
    """Have a trainer process do all of a segment that comes before its first step."""
    task = time.time()
    answer = ask_trainer(node, f"{__name__}:stop_at_first_step", spec.to_dict(), gcd=0)
    return FirstStep(start_of(os.getpid()), task, answer["started"], answer["ended"])


def stop_at_first_step(values: dict[str, Any]) -> dict[str, Any]:
    """What a trainer process runs for :func:`to_first_step`."""
    from hydragnn_flow.training.runner import run_segment

    outcome = run_segment(SegmentSpec.from_dict(values), should_stop=lambda: True)
    assert outcome.status == "interrupted", outcome.reason
    return {"started": outcome.started, "ended": outcome.ended}
