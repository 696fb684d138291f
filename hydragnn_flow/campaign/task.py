"""Task: a segment to run, with its predicted cost, and the consequences of its failures."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from hydragnn_flow.config import NetworkConfig
from hydragnn_flow.execution.jobs import Retries, Task
from hydragnn_flow.files import is_there, patiently
from hydragnn_flow.segment import Forecast, SegmentResult, SegmentSpec

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SegmentTask(Task):
    """Segment (stretch of a trial's or member's training) to run, with its predicted cost."""

    spec: SegmentSpec
    epochs: int
    """Number of epochs that the segment is expected to train."""
    parameters: dict[str, Any]
    """Hyper-parameters of the trial by dotted path."""
    trial: int
    """Number of the trial; for a member, number of the trial that the member comes from."""
    micro_batches: int = 1
    """Number of micro-batches per step that the trial asks for; memory may require more."""
    is_flexible: bool = False
    """True if the placer may give the segment more GCDs; False if their number is fixed."""
    is_batch_per_gcd: bool = False
    """True if a step has one batch per GCD of the segment, however many GCDs it gets."""

    def forecast(self, together: float) -> Forecast:
        """Return the plan and predicted cost of the segment, to record with its result.

        ``together`` is the mean number of segments on its GCD while it ran, this one included.
        """
        estimate = self.estimate
        return Forecast(
            together=together,
            parameters=self.parameters,
            accumulation_steps=self.spec.network.Training.accumulation_steps,
            batches=self.spec.epochs.batches,
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
        """Return a copy of the task for another attempt, after a failure or a stop at a checkpoint.

        A task is stopped to continue on other GCDs. If the last attempt left a checkpoint, and so
        made progress, earlier failures are forgotten. The call waits while the disk is unreachable.

        Parameters
        ----------
        end
            Result of the last attempt.
        nodes
            Number of nodes of the site, which limits how many of them the next attempt avoids.
        """
        got_further = patiently(lambda: is_there(self.spec.checkpoint))
        before = Retries() if got_further else self.retries
        return replace(
            self,
            spec=replace(self.spec, start=replace(self.spec.start, may_have_begun=True)),
            epochs=min(self.epochs, self.spec.epochs.until_epoch - end.to_epoch),
            retries=before if self.is_released else before.after(end.status, end.node, nodes),
            is_urgent=True,
            wider=(),
            keeps_gcd=False,
            is_released=False,
        )


def log_retry(task: SegmentTask, end: SegmentResult) -> None:
    """Log that a failed segment is sent again, and why it failed."""
    _logger.info(
        "%s is sent again (%s): %s%s: %s",
        *(task, task.retries, end.status, f" on {end.node}" if end.node else "", end.reason),
    )


def is_final(resizes: bool, network: NetworkConfig, end: SegmentResult) -> bool:
    """Return True if a segment failed because of its trial, so that it must not be sent again.

    Parameters
    ----------
    resizes
        True if a segment that lacks memory continues with more micro-batches, `RunConfig.resizes`.
    network
        Network of the trial.
    end
        Result of the trial's last segment.
    """
    if end.status == "out_of_memory":
        return not takes_more(resizes, network, end.accumulation_steps, end.batches)
    # An interrupted, refused or lost segment says nothing about its trial.
    return end.status == "diverged"


def takes_more(resizes: bool, network: NetworkConfig, steps: int, batches: int = 1) -> bool:
    """Return True if a training step may be divided into more than ``steps`` micro-batches.

    A step has ``batches`` batches. More micro-batches (parts that a GCD computes one after the
    other) give the same gradient with less memory. ``resizes`` is `RunConfig.resizes`, ``network``
    the network of the trial.
    """
    training = network.Training
    by_graphs = training.Batching is None or training.Batching.mode == "fixed"
    # A step that is limited by atoms or edges has no number of graphs to divide.
    most = batches * (training.batch_size if by_graphs else 64)
    # RMSE does not add over micro-batches, so it cannot be accumulated.
    is_sum = training.loss_function_type != "rmse"
    return resizes and is_sum and steps < most


def fewest_micro_batches(
    resizes: bool, results: Sequence[SegmentResult], width: int, batches: int = 1
) -> int:
    """Return the fewest micro-batches of a training step to try next, after lack of memory.

    Each of ``width`` GCDs divides its graphs of a step into this number of micro-batches. A
    micro-batch then has half as many graphs as the smallest one that did not fit in ``results``.
    The number is 1 if all fitted, or if ``resizes`` (`RunConfig.resizes`) is False. A step has
    ``batches`` batches.
    """
    too_few = [
        Fraction(result.accumulation_steps * max(1, len(result.gcds)), result.batches)
        for result in results
        if result.status == "out_of_memory"
    ]
    if not (resizes and too_few):
        return 1
    return math.ceil(2 * max(too_few) * batches / width)
