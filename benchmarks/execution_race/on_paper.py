"""Segments that do nothing, with a loss that a search can learn from."""

from __future__ import annotations

import time
from typing import Any

from hydragnn_flow.segment import SegmentResult, SegmentSpec


def nothing_done(spec: SegmentSpec, **place: Any) -> SegmentResult:
    """Result of a segment that ends at once; the best learning rate is 1e-3."""
    rate, now = spec.network.Training.Optimizer.learning_rate, time.time()
    loss = abs(rate - 1e-3) + 1.0 / spec.until_epoch
    return SegmentResult(
        kind=spec.kind,
        number=spec.number,
        rung=spec.rung,
        from_epoch=spec.after_epoch,
        to_epoch=spec.until_epoch,
        status="ok",
        best_val_error=loss,
        best_epoch=spec.until_epoch,
        history=[[e, loss, loss, loss] for e in range(spec.after_epoch + 1, spec.until_epoch + 1)],
        seconds=600.0,
        started=now,
        ended=now,
        **place,
    )
