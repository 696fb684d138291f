"""Task: a segment to run, and its estimated cost."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from hydragnn_flow.execution.jobs import Task
from hydragnn_flow.files import is_there, patiently
from hydragnn_flow.retries import Retries
from hydragnn_flow.segment import Forecast, SegmentResult, SegmentSpec

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SegmentTask(Task):
    """A segment to run, and its estimated cost."""

    spec: SegmentSpec
    epochs: int
    """Epochs it is expected to train."""
    parameters: dict[str, Any]
    """Values of the trial by path."""
    trial: int
    """Number of the trial, which for a member is that it comes from."""
    micro_batches: int = 1
    """Micro-batches of a step that the trial asks for; it may be sent with more."""
    is_flexible: bool = False
    """Whether the placer may give it more GCDs."""
    is_batch_per_gcd: bool = False
    """Whether a step has a batch of each of its GCDs, however many they are."""
    fused: tuple[SegmentTask, ...] = ()
    """Segments that are trained fused, in one process, where this stands for several."""

    @property
    def members(self) -> tuple[SegmentTask, ...]:
        """The segments that it stands for; itself, if it is one."""
        return self.fused or (self,)

    def sent(self) -> SegmentTask:
        """The segment as it goes out, with an attempt of its own."""
        if self.fused:
            fused = tuple(task.sent() for task in self.fused)
            return replace(self, spec=fused[0].spec, fused=fused)
        return super().sent()

    def forecast(self, together: float) -> Forecast:
        """Plan and estimate of the segment, which shared its GCD with others or not."""
        estimate = self.estimate
        return Forecast(
            together=together,
            parameters=self.parameters,
            accumulation_steps=self.spec.network.Training.accumulation_steps,
            batches=self.spec.batches,
            planned_epochs=self.epochs,
            predicted_seconds=self.seconds,
            predicted_low=estimate.low / self.width,
            predicted_high=estimate.high / self.width,
            busy=estimate.busy,
            step_work=list(estimate.step_work),
            uncorrected_seconds=estimate.uncorrected_seconds,
            predicted_memory_gib=estimate.memory_gib,
            uncorrected_memory_gib=estimate.uncorrected_memory_gib,
        )

    def again(self, end: SegmentResult, nodes: int = 1) -> SegmentTask:
        """The segment, as it was sent, once more after a bad end or to be placed anew.

        One that got further, and so has left a checkpoint, has its failures forgotten. Waits for a
        disk that is gone for a while.
        """
        got_further = patiently(lambda: is_there(self.spec.checkpoint))
        before = Retries() if got_further else self.retries
        return replace(
            self,
            spec=replace(self.spec, may_have_begun=True),
            epochs=min(self.epochs, self.spec.until_epoch - end.to_epoch),
            retries=before if self.is_released else before.after(end.status, end.node, nodes),
            is_urgent=True,
            wider=(),
            keeps_gcd=False,
            is_released=False,
        )

    def __str__(self) -> str:
        if self.fused:
            numbers = ", ".join(str(task.spec.number) for task in self.fused)
            return f"{self.spec.kind}s {numbers}, fused"
        return super().__str__()


def log_retry(task: SegmentTask, end: SegmentResult) -> None:
    """Log that a segment is sent once more after a bad end."""
    _logger.info(
        "%s is sent again (%s): %s%s: %s",
        *(task, task.retries, end.status, f" on {end.node}" if end.node else "", end.reason),
    )
