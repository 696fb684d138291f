"""Early members: trained on GCDs that would idle while the last trials of a search run."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.dispatch import Dispatch
from hydragnn_flow.campaign.member_task import member_task, record_begun, trained_epochs
from hydragnn_flow.campaign.on_site.selecting import (
    begun_early,
    choice_so_far,
    numbered,
    write_selection,
)
from hydragnn_flow.campaign.task import SegmentTask
from hydragnn_flow.ensemble.selection import Early, Selection
from hydragnn_flow.search import Search, TrialRecord

# Largest fraction of all trials that may still run when members start: as many may yet replace a
# member that was chosen without them.
MOST_UNDECIDED = 0.1
# Least time to the expected end of the last trial for early members to be worth while [s].
LEAST_TIME = 60.0
# Least time between two looks [s], also as a multiple of the duration of the last one, which may
# have read the predictions of the best trials.
SECONDS_BETWEEN_LOOKS, BETWEEN_LOOKS = 10.0, 20.0
_logger = logging.getLogger(__name__)


class EarlyMembers:
    """Trains, on idle GCDs, the members that would be chosen if the search ended now.

    A member that is not chosen in the end has used only idle GCDs. If a trial continued since,
    its member does not count as the same. Trials have precedence: where one waits for GCDs, or
    would run on more of them, early members stop at a checkpoint. They do not share GCDs with
    trials.

    Parameters
    ----------
    context
        Context of the campaign.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._begun = begun_early(context)
        self._gcds = context.site.nodes * len(context.site.node.gcds)
        self._selection = Selection([], [])
        self._ended: set[int] = set()
        self._next_look = -math.inf

    def begin(self, dispatch: Dispatch, search: Search) -> None:
        """Start members on idle GCDs, and stop those that would not be chosen any more.

        Call it only if no segment of a trial is ready.
        """
        now = self._context.clock.monotonic()
        if now < self._next_look or not self._is_time(dispatch, search):
            return
        self._look(dispatch, search.records)
        after = self._context.clock.monotonic()
        self._next_look = after + max(SECONDS_BETWEEN_LOOKS, BETWEEN_LOOKS * (after - now))

    def _look(self, dispatch: Dispatch, records: Sequence[TrialRecord]) -> None:
        selection = self._choose(records)
        wanted = numbered(self._context, selection)
        wanted = {number: wanted[number] for number in [*wanted][: len(selection.chosen)]}
        at_work = {task.spec.number: task for task in dispatch.tasks("member")}
        dispatch.stop([task for number, task in at_work.items() if number not in wanted])
        last = {one.number: one.status for one in self._context.ledger.members}
        # A failed one is dealt with after the search.
        ended = {number for number, status in last.items() if status != "interrupted"}
        trials = {record.number: record for record in records}
        ready = [
            member_task(self._context, number, choice, trials[choice.trial])
            for number, choice in wanted.items()
            if number not in at_work.keys() | ended
        ]
        if ready and not dispatch.is_stopping:
            self._send(dispatch, ready)

    def _is_time(self, dispatch: Dispatch, search: Search) -> bool:
        """True if GCDs idle, few trials are undecided, and the last of them takes a while."""
        undecided = dispatch.number("trial")
        return (
            not self._context.to_come(search.asked)
            and 0 < undecided <= MOST_UNDECIDED * search.asked
            and min(dispatch.fleet.free, self._gcds - dispatch.running) > 0
            and not dispatch.is_stopping
            and dispatch.longest("trial") >= LEAST_TIME
        )

    def _choose(self, records: Sequence[TrialRecord]) -> Selection:
        """Choose members as if the search ended now; reserve their numbers on disk."""
        ended = {record.number for record in records if record.state in ("complete", "pruned")}
        if ended == self._ended:
            return self._selection
        self._ended = ended
        self._selection, is_final = choice_so_far(self._context, records)
        if is_final:
            return self._selection
        for choice in self._selection.chosen:
            key = Early(choice.trial, choice.repeat, trained_epochs(self._context, choice.trial))
            if key not in self._begun:
                self._begun.append(key)
        self._selection = replace(self._selection, early=[*self._begun])
        write_selection(self._context, Selection([], [], self._selection.early), [])
        return self._selection

    def _send(self, dispatch: Dispatch, ready: Sequence[SegmentTask]) -> None:
        rest = dispatch.begin(ready, self._gcds - dispatch.running, may_join=False)
        waiting = {task.spec.number for task in rest}
        for task in ready:
            if task.spec.number not in waiting:
                _logger.info("member %d, of trial %d, begins early", task.spec.number, task.trial)
                record_begun(self._context, task)
