"""Checkpoints of ended trials: those of trials that cannot become members are deleted."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.ensemble.selection import candidate_of, most_of_a_type
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.segment import SegmentResult
from hydragnn_flow.training.checkpoints.checkpoint import checkpoints
from hydragnn_flow.training.checkpoints.checkpoint_parts import remove_checkpoint

_Rank = tuple[bool, float, int]
"""Rank of an ended trial: feasible, -criterion, -number; a heap thus has the worst trial first."""


class KeptCheckpoints:
    """Keeps the checkpoints of the best trials of each message-passing type.

    Parameters
    ----------
    context
        Context of the campaign.
    """

    def __init__(self, context: Context) -> None:
        self._directory, config = context.directory, context.config
        self._architecture = config.network.get("Architecture", {})
        self._has_members = config.ensemble is not None
        self._deletes = config.search.keep_checkpoints == "best" or not self._has_members
        self._most = most_of_a_type(config.ensemble_size)
        self._best: defaultdict[str, list[_Rank]] = defaultdict(list)
        self._needless: list[int] = []

    def restore(
        self, records: Iterable[TrialRecord], results: Mapping[int, Sequence[SegmentResult]]
    ) -> None:
        """Register trials that ended under an earlier driver, which deleted checkpoints itself."""
        for record in records:
            if record.state in ("complete", "pruned"):
                self._keep(record, results.get(record.number, ()))

    def ended(self, record: TrialRecord, results: Sequence[SegmentResult]) -> None:
        """Register a trial that has ended, which may replace a worse one."""
        worst = record.number if record.state == "failed" else self._keep(record, results)
        if self._deletes and worst is not None:
            self._needless.append(worst)

    def delete(self) -> None:
        """Delete checkpoints not needed any more; only once the study on disk has the results."""
        for number in self._needless:
            with suppress(OSError):  # a remaining file does no harm
                for file in checkpoints(self._directory.trial(number)):
                    remove_checkpoint(file)
        self._needless.clear()

    def _keep(self, record: TrialRecord, results: Sequence[SegmentResult]) -> int | None:
        """Insert a trial among the best; return the number of the trial that drops out."""
        judged = [result for result in results if result.best_val_error is not None]
        if not (self._deletes and judged):
            return None
        if not self._has_members:
            return record.number
        found = candidate_of(self._architecture, record, judged[-1])
        best = self._best[found.mpnn_type]
        rank = found.feasible, -found.value, -found.trial
        if len(best) < self._most:
            heapq.heappush(best, rank)
            return None
        return -heapq.heappushpop(best, rank)[-1]
