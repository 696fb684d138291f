"""Search phase: trials are requested, placed, run and judged; poor checkpoints are deleted."""

from __future__ import annotations

import heapq
import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.dispatch import Dispatch
from hydragnn_flow.campaign.objectives import (
    TooShort,
    check_counted,
    check_earlier_errors,
    costs_of,
    outcome_of,
)
from hydragnn_flow.campaign.rebuild import rebuild_study
from hydragnn_flow.campaign.task import SegmentTask, is_final, log_retry
from hydragnn_flow.config.domain import satisfying
from hydragnn_flow.config.search import PARAMETERS
from hydragnn_flow.ensemble.selection import candidate_of, most_of_a_type
from hydragnn_flow.errors import CampaignStopped, InputError, StoreError
from hydragnn_flow.garbage import collection_of_new
from hydragnn_flow.log import tell
from hydragnn_flow.placement import too_large
from hydragnn_flow.search import Search, TrialRecord
from hydragnn_flow.search.records import PASSED
from hydragnn_flow.search.rungs import Verdict
from hydragnn_flow.segment import EpochPlan, SegmentResult, Start
from hydragnn_flow.training.checkpoints.checkpoint import checkpoints, remove_checkpoint

_Rank = tuple[bool, float, int]
"""Rank of an ended trial: (is feasible, -criterion, -number); a heap thus has the worst trial
first."""


class KeptCheckpoints:
    """Deletion of the checkpoints of ended trials that no ensemble member can need.

    With an ensemble and `search.keep_checkpoints: best`, the best trials of each message-passing
    type keep theirs; with `all` every trial does. Without an ensemble no trial does.

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
        """Register trials that ended under an earlier driver; mark no checkpoints for deletion.

        ``results`` are the results of the segments of each trial, by its number.
        """
        for record in records:
            if record.state in ("complete", "pruned"):
                self._keep(record, results.get(record.number, ()))

    def ended(self, record: TrialRecord, results: Sequence[SegmentResult]) -> None:
        """Register a trial that has ended; mark checkpoints that are not needed any more.

        ``results`` are those of the trial's segments.
        """
        worst = record.number if record.state == "failed" else self._keep(record, results)
        if self._deletes and worst is not None:
            self._needless.append(worst)

    def delete(self) -> None:
        """Delete the marked checkpoints; call it only once the study on disk has the results."""
        for number in self._needless:
            with suppress(OSError):  # a remaining file does no harm
                for file in checkpoints(self._directory.trial(number)):
                    remove_checkpoint(file)
        self._needless.clear()

    def _keep(self, record: TrialRecord, results: Sequence[SegmentResult]) -> int | None:
        """Insert a trial among the best of its type, and drop the worst if there are too many.

        Returns the number of the trial whose checkpoints are needless, or None.
        """
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


# Most GCDs that get work in one round. Requesting a trial takes a millisecond or more, and the
# first of thousands must not wait for the last.
_MOST_AT_ONCE = 512
# Number of segments to prepare per free GCD, while the first of them wait for several GCDs.
_CANDIDATES = 4
_logger = logging.getLogger(__name__)


class _Search(Search):
    """Search that repeats decisions of an earlier driver, where the ledger shows them."""

    def go_on(self, number: int, rung: int, value: float) -> Verdict:
        """Record that a trial reported a value at a rung (by index) and continued."""
        trial, epoch = self._trial(number), self.rungs.epochs[rung]
        if trial.user_attrs.get(PASSED, -1) < rung:
            self._storage.set_trial_intermediate_value(trial._trial_id, epoch, value)
            self._storage.set_trial_user_attr(trial._trial_id, PASSED, rung)
            self.rungs.restore(number, rung, value, True)
        return "goes_on"


def _check_parameters(context: Context, draws: int = 200) -> None:
    """Refuse a limit of ``parameters`` that no network drawn from the space keeps."""
    search = context.config.search
    if (most := search.constraints.get(PARAMETERS)) is None:
        return
    for i, given in enumerate(({}, *search.enqueue)):
        least = math.inf
        for values in islice(satisfying(search.space, search.rules, given), draws):
            least = min(least, context.parameters(values) or math.inf)
            if least <= most:
                break
        else:
            where = f"enqueue.{i - 1}" if i else "space"
            raise InputError(
                f"search.constraints.parameters = {most:g}: of {draws} networks drawn from "
                f"search.{where} the smallest has {least:g} parameters; raise the limit, or allow "
                f"smaller networks"
            )


class TrialPhase:
    """First phase of a campaign: the search, whose trials run on the GCDs of a site.

    Parameters
    ----------
    context
        Context of the campaign. Results in the run directory that are missing in the study are
        reported first, so that a restart continues where the last driver stopped.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        config = context.config
        check_earlier_errors(config.search, context.store.manifest, context.validation.criterion)
        _check_parameters(context)
        remade = rebuild_study(context.directory, config.search, context.foreseen)
        if remade:
            study, ledger = context.directory.journal, context.directory.segments
            tell(
                _logger, "%s: was missing; made anew from %s, %d trials", study, ledger.name, remade
            )
        self.search = _Search(
            context.directory.journal,
            config.search,
            config.num_epoch,
            config.seed,
            config.ensemble_size,
            context.foreseen,
        )
        self._ready: list[SegmentTask] = []
        site = context.site
        self._gcds = site.gcds
        # Co-located segments slow each other down, so timed ones stay alone.
        self._times_steps = config.search.times_steps
        self._has_room = self._is_used_up = False
        self._troubled: set[int] = set()
        self._impossible = 0
        self._results = context.ledger.trials
        self._succeeded = any(
            result.status == "ok" for results in self._results.values() for result in results
        )
        self._kept = KeptCheckpoints(context)
        self._kept.restore(self.search.records, self._results)
        self._check_records()
        self._take_up()

    def run(self, dispatch: Dispatch) -> list[TrialRecord]:
        """Request, train and judge trials until all have ended; return all their records."""
        with self.search as search, collection_of_new() as collect:
            while self._fill(dispatch):
                collect()
                if not self._has_room and not (self._ready and self._to_come):
                    dispatch.reshape()
                self._show()
                for task, result in dispatch.wait(at_once=self._has_room):
                    self._judge(task, result)
            self.context.ledger.write(search.commit)
            self._kept.delete()
            self._show()
            return search.records

    @property
    def _to_come(self) -> int:
        return self.context.to_come(self.search.asked)

    def _tell_of_energy(self) -> None:
        """Tell the user, once, that `search.energy_kwh` did not suffice for all trials."""
        search, asked = self.context.config.search, self.search.asked
        if not self._is_used_up and not self._to_come and asked < search.trials:
            self._is_used_up = True
            tell(
                _logger,
                "search.energy_kwh = %g is used up (%.3g kWh): no more trials after %d of %d",
                *(search.energy_kwh, self.context.ledger.trial_kwh),
                *(asked, search.trials),
            )

    def _fill(self, dispatch: Dispatch) -> bool:
        """Send segments to free GCDs; return False if nothing runs or is left to send.

        Trials are written to the study on disk before they run, all trials sent together at once.
        """
        self._tell_of_energy()
        left = self._to_come
        # Future trials are assumed to use as many GCDs as the first ready ones can.
        of_some = [self.context.shapes(task)[-1].width for task in self._ready[:_CANDIDATES]]
        each = max(of_some, default=self.context.config.gcds({}) or 1)
        more = (left + len(self._ready)) * each
        dispatch.request_workers(min(more, self._gcds - dispatch.running))
        # On thousands of GCDs the rest follows in the next round: results are recorded in between.
        self._has_room = self._fill_some(dispatch)
        return bool(dispatch.segments or self._ready)

    def _fill_some(self, dispatch: Dispatch) -> bool:
        """Send segments to free GCDs; return True if more might fit after this round.

        A round sends about :data:`_MOST_AT_ONCE` segments. A trial is requested only once there is
        a GCD for it, so that its parameters are chosen from as many results as possible. Segments
        that fit nowhere stay ready.
        """
        begun = 0
        self._ready = self._send(dispatch)
        while begun < _MOST_AT_ONCE:
            if not self._gather(self._wanted(dispatch)):
                return False
            gathered = len(self._ready)
            self._ready = self._send(dispatch)
            begun += gathered - len(self._ready)
            if gathered == len(self._ready):
                return False
        return True

    def _send(self, dispatch: Dispatch) -> list[SegmentTask]:
        """Write new trials to disk, then send the ready segments that fit; return the others."""
        self.context.ledger.write(self.search.commit)
        self._kept.delete()
        if not self._ready:
            return []
        free, apart = self._gcds - dispatch.running, self._times_steps
        return dispatch.begin(self._ready, free, self._to_come, may_join=not apart)

    def _wanted(self, dispatch: Dispatch) -> int:
        """Return the number of GCDs to prepare further segments for.

        If GCDs are free although segments are ready, these wait for several GCDs, or would delay
        segments that do; a few further segments may fit. If all GCDs are busy, some segments are
        prepared that might share a GCD. If nothing runs, one segment is kept ready, so that workers
        are requested.
        """
        fleet = dispatch.fleet
        free = min(fleet.free, self._gcds - dispatch.running)
        if free > 0:
            return min(free, _CANDIDATES * free - len(self._ready), _MOST_AT_ONCE)
        is_first = not dispatch.segments
        if fleet.may_share and not self._times_steps:
            # With only a few, those that fit nowhere would keep out others that fit.
            looked_at = min(max(1, dispatch.running // 8), 64)
            small = sum(task.width == 1 for task in self._ready)
            return min(looked_at - small, _CANDIDATES * looked_at - len(self._ready))
        return int(is_first and not self._ready)

    def _gather(self, wanted: int, seconds: float = 5.0) -> bool:
        """Prepare segments for ``wanted`` GCDs; return whether any were prepared.

        It ends after some ``seconds`` if there is one: until they are sent, nobody else can enqueue
        trials.
        """
        before = seen = len(self._ready)
        end = self.context.clock.monotonic() + seconds
        while wanted > 0 and self._ask():
            wanted -= sum(task.width for task in self._ready[seen:])
            seen = len(self._ready)
            if seen > before and self.context.clock.monotonic() > end:
                break
        return seen > before

    def _ask(self) -> bool:
        """Request a new trial and prepare its first segment; return False if none is left."""
        if not self._to_come:
            return False
        trial = self.search.ask()
        self._queue(trial, rung=0)
        # After twenty impossible networks, and no other, the space is to blame.
        if self._impossible >= 20 and self.search.states.get("failed") == self.search.asked:
            raise InputError(
                f"search.space: none of the {self.search.asked} trials asked for has a possible "
                f"network ({self.search.record(trial.number).reason}); correct the space and "
                f"search in another run directory"
            )
        return True

    def _queue(self, trial: TrialRecord, rung: int, *, may_have_begun: bool = False) -> None:
        """Prepare the next segment of a trial, or fail the trial if that is impossible.

        ``may_have_begun`` is True if an earlier driver, or a failed attempt, may have started this
        segment.
        """
        try:
            task = self._task(trial, rung, may_have_begun)
        except StoreError:
            raise
        except InputError as error:  # values that are valid in pairs need not be so all together
            self._impossible += 1
            self._fail(trial.number, f"error: {error}")
            return
        gcd = self.context.gcd
        if too_large(task.estimate, gcd):
            needs = f"{task.estimate.memory_gib:.1f} GiB, a GCD has {gcd.memory_gib:.1f} GiB"
            self._fail(trial.number, f"out_of_memory: needs about {needs}")
        elif not (rung or may_have_begun) and (count := self._above_limit(trial)):
            limit = "more than search.constraints.parameters allows"
            self._fail(trial.number, f"error: has {count:,} parameters, {limit}")
        else:
            self._ready.append(task)

    def _above_limit(self, trial: TrialRecord) -> int:
        """Return the number of parameters of an enqueued network if they are too many, else 0."""
        most = self.context.config.search.constraints.get(PARAMETERS, math.inf)
        count = self.context.parameters(trial.parameters)
        return count if count > most else 0

    def _task(self, trial: TrialRecord, rung: int, may_have_begun: bool) -> SegmentTask:
        epochs, results = self.search.rungs.epochs, self._results[trial.number]
        gcds = self.context.config.gcds(trial.parameters)
        return self.context.task(
            *("trial", trial.number, trial),
            rung=rung,
            start=Start(
                begin_with=results[-1].checkpoint if results else "",
                may_have_begun=may_have_begun,
            ),
            epochs=EpochPlan(until_epoch=epochs[rung], after_epoch=epochs[rung - 1] if rung else 0),
            width=None if gcds is None else min(gcds, self._gcds),
        )

    def _judge(self, task: SegmentTask, result: SegmentResult) -> None:
        number, rung, config = task.spec.number, task.spec.rung, self.context.config
        if result.status == "ok" and result.best_val_error is not None:
            self._succeeded = True
            if self._report(number, rung, self._results[number]) == "goes_on":
                self._queue(self.search.record(number), rung + 1)
        elif is_final(config.resizes, task.spec.network, result):
            self._fail(number, f"{result.status}: {result.reason}")
        elif result.status == "out_of_memory":
            self._queue(self.search.record(number), rung, may_have_begun=True)
        else:
            self._repeat(task.again(result), result)

    def _report(
        self, number: int, rung: int, results: Sequence[SegmentResult], *, went_on: bool = False
    ) -> Verdict:
        try:
            search, ledger = self.context.config.search, self.context.ledger
            if search.energy_kwh is not None and not ledger.counts_energy:
                check_counted("search.energy_kwh", results[-1])
            parameters = self.context.parameters(self.search.record(number).parameters)
            outcome = outcome_of(search, results, parameters)
        except TooShort as error:
            self._fail(number, f"error: {error}")
            return "stops"
        except InputError as error:
            if not ledger.counts_energy:
                raise  # before the search spends anything on a quantity that cannot be measured
            self._fail(number, f"error: {error}")
            return "stops"
        if not all(math.isfinite(value) for value in outcome.objectives):
            self._fail(number, f"diverged: objectives are {outcome.objectives}")
            return "stops"
        if went_on:
            return self.search.go_on(number, rung, outcome.objectives[0])
        verdict = self.search.report(number, rung, outcome)
        rule = search.rungs if search.pruner is None else search.pruner["type"]
        _logger.info(
            "trial %d, rung %d: %s by the rule '%s': %s = %.6g after %d epochs",
            *(number, rung, verdict.replace("_", " "), rule),
            *(search.objectives[0], outcome.objectives[0]),
            results[-1].to_epoch,
        )
        if verdict in ("stops", "complete"):
            self._settle(number)
        return verdict

    def _settle(self, number: int) -> None:
        """Mark needless checkpoints of ended trials; drop needless results of this trial."""
        self._kept.ended(self.search.record(number), self._results[number])
        self.context.ledger.settle(number)

    def _fail(self, number: int, reason: str) -> None:
        _logger.info("trial %d has failed: %s", number, reason)
        self.search.fail(number, reason, costs_of(self._results[number]))
        self._settle(number)

    def _repeat(self, task: SegmentTask, result: SegmentResult) -> None:
        """Queue a failed segment again; after too many failures fail its trial or the campaign."""
        if task.retries.total:
            self._troubled.add(task.spec.number)
        if not task.retries.is_hopeless:
            log_retry(task, result)
            self._ready.append(self.context.sized(task))
        elif not self._succeeded and len(self._troubled) > 1:
            # No segment has ever worked, so the trials are not to blame and may run again.
            raise CampaignStopped(
                f"no segment of any trial has worked ({result.status}: {result.reason}); see "
                f"{task.spec.folder / 'log'}, cure the cause and give the same command again"
            )
        else:
            times = task.retries.total
            reason = f"{result.status} {times} times without getting further: {result.reason}"
            self._fail(task.spec.number, reason)

    def _check_records(self) -> None:
        """Raise an error if study or ledger has lost trials, which would be trained again."""
        directory = self.context.directory
        study, ledger = directory.journal, directory.segments
        directory.check_study((trial.number for trial in self.search.records), self._results)
        if not self._results and self.search.best is not None:
            raise InputError(
                f"{ledger}: has lost the trials that {study.name} records; restore it from a copy, "
                f"or name {directory.path} in search.warm_start of another run"
            )

    def _take_up(self) -> None:
        """Report recorded results to the study after a restart, and prepare the next segments.

        Results are reported in the order in which they came. A trial with a result of a later rung
        went on, as a study that was lost has to be told.
        """
        config = self.context.config
        running = {trial.number for trial in self.search.records if trial.state == "running"}
        results = self.context.ledger.load_whole(running)
        last = {result.number: result.rung for result in results}
        so_far: defaultdict[int, list[SegmentResult]] = defaultdict(list)
        following = dict.fromkeys(running, 0)
        for result in results:
            number, rung = result.number, result.rung
            so_far[number].append(result)
            if number not in following:
                continue
            if result.status == "ok" and result.best_val_error is not None:
                went_on = rung < last[number]
                if self._report(number, rung, so_far[number], went_on=went_on) == "goes_on":
                    following[number] = rung + 1
                else:
                    del following[number]
            elif is_final(
                config.resizes, config.network_with(self.search.record(number).parameters), result
            ):
                self._fail(number, f"{result.status}: {result.reason}")
                del following[number]
        for number in sorted(following):
            self._queue(self.search.record(number), following[number], may_have_begun=True)

    def _show(self) -> None:
        self.context.view.search(
            self.search.states,
            len(self._ready),
            self.search.best,
            self.context.config.search.trials,
        )
