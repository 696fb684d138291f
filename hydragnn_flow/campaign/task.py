"""Task: a segment to run, and its estimated cost."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hydragnn_flow.files import modified, patiently
from hydragnn_flow.placement import Placeable
from hydragnn_flow.retries import Retries
from hydragnn_flow.segment import Forecast, SegmentResult, SegmentSpec
from hydragnn_flow.training.checkpoint import FILE

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Task(Placeable):
    """A segment to run, and its estimated cost."""

    spec: SegmentSpec
    epochs: int
    """Epochs it is expected to train."""
    parameters: dict[str, Any]
    """Values of the trial by path."""
    checkpoint_seen: float
    """Time of the checkpoint it begins with; see :func:`checkpoint_time`."""
    retries: Retries = field(default_factory=Retries)
    """Failures without progress; losses are those of its node or batch job."""

    def sent(self) -> SegmentSpec:
        """The segment as it goes out, with an attempt of its own."""
        return replace(self.spec, attempt=uuid.uuid4().hex)

    def forecast(self, bundle: str) -> Forecast:
        """Plan and estimate of the segment, sent with a bundle."""
        estimate = self.estimate
        return Forecast(
            bundle=bundle,
            parameters=self.parameters,
            accumulation_steps=self.spec.network.Training.accumulation_steps,
            planned_epochs=self.epochs,
            predicted_seconds=self.seconds,
            uncorrected_seconds=estimate.uncorrected_seconds,
            predicted_memory_gib=estimate.memory_gib,
            uncorrected_memory_gib=estimate.uncorrected_memory_gib,
        )

    def again(self, end: SegmentResult) -> Task:
        """The segment once more after a bad end; getting further starts the count anew."""
        seen = checkpoint_time(self.spec.folder)
        before = self.retries if seen == self.checkpoint_seen else Retries()
        is_lost = end.status in ("lost", "refused", "interrupted")
        retries = before.lost() if is_lost else before.failed()
        return replace(self, retries=retries, checkpoint_seen=seen, is_urgent=True)

    def __str__(self) -> str:
        return f"{self.spec.kind} {self.spec.number}"


def log_retry(task: Task, end: SegmentResult) -> None:
    """Log that a segment is sent once more after a bad end."""
    _logger.info(
        "%s is sent again (%s): %s%s: %s",
        *(task, task.retries, end.status, f" on {end.node}" if end.node else "", end.reason),
    )


def checkpoint_time(folder: Path) -> float:
    """Unix time of the checkpoint in a folder [s]; 0 if there is none.

    Waits for a disk that is gone for a while.
    """
    return patiently(lambda: modified(folder / FILE))
