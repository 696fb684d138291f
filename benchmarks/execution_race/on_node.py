"""Functions that nodes run for the benchmarks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from hydragnn_flow.execution import Node, Rank
from hydragnn_flow.execution.workers.worker import run_ranks
from hydragnn_flow.segment import Call, SegmentResult, SegmentSpec, read_segment


def end_at_once(node: Node, groups: Sequence[Rank]) -> list[SegmentResult]:
    """Stand in for `run_ranks`: results of segments that did nothing; the best rate is 1e-3."""
    found, now = [], time.time()
    for spec in (group.segment for group in groups):
        rate = spec.network.Training.Optimizer.learning_rate
        loss = abs(rate - 1e-3) + 1.0 / spec.epochs.until_epoch
        epochs = range(spec.epochs.after_epoch + 1, spec.epochs.until_epoch + 1)
        result = SegmentResult(
            kind=spec.kind,
            number=spec.number,
            rung=spec.rung,
            from_epoch=spec.epochs.after_epoch,
            to_epoch=spec.epochs.until_epoch,
            status="ok",
            best_val_error=loss,
            best_epoch=spec.epochs.until_epoch,
            history=[[epoch, loss, loss, loss] for epoch in epochs],
            seconds=600.0,
            started=now,
            ended=now,
            node="here",
            gcds=[node.gcds[0]],
        )
        found.append(result)
    return found


def to_first_step(node: Node, spec: SegmentSpec) -> float:
    """Have a trainer process do all of a segment before its first step; Unix time then [s]."""
    function = f"{__name__}:stop_at_first_step"
    call = Call(kind="check", number=0, directory="", function=function, argument=spec.to_dict())
    (end,) = run_ranks(node, [Rank(call, gcd=0)])
    return float(end.answer["ended"])


def stop_at_first_step(values: dict[str, Any]) -> dict[str, Any]:
    """Function that a trainer process runs for :func:`to_first_step`."""
    from hydragnn_flow.training.runner import run_segment

    outcome = run_segment(read_segment(values), should_stop=lambda: True)
    assert outcome.status == "interrupted", outcome.reason
    return {"ended": outcome.ended}
