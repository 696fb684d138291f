"""The search phase: trials are asked for, placed, run and judged until the budget is spent."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from queue import Empty, SimpleQueue
from typing import Any

from hydragnn_flow.campaign.objectives import is_final, outcome_of, times_too_large
from hydragnn_flow.campaign.segments import (
    MOST_TRIES,
    SECONDS_BETWEEN_LOOKS,
    Context,
    Task,
    results_of,
)
from hydragnn_flow.errors import CampaignStopped, InputError, StoreError
from hydragnn_flow.execution import run_bundle
from hydragnn_flow.execution.pools import Pools
from hydragnn_flow.placement import Placeable, next_bundle, too_large
from hydragnn_flow.search import Search, TrialRecord
from hydragnn_flow.search.rules import Verdict
from hydragnn_flow.training.segment import SegmentResult

# Of a step whose size is a budget of atoms or edges, and so says nothing of its graphs.
_MOST_PARTS = 64


class TrialPhase:
    """Runs the search on the `gcd` pool.

    Parameters
    ----------
    context
        Of the campaign. What its run directory records but the study does not know yet is reported
        first, so that a restart goes on where the last driver stopped.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        config = context.config
        self.search = Search(
            context.directory.journal,
            config.search,
            config.num_epoch,
            config.seed,
            config.ensemble.size,
        )
        self._ready: list[Task] = []
        self._running: dict[Future[Any], list[Task]] = {}
        self._done: SimpleQueue[Future[Any]] = SimpleQueue()
        self._troubled: set[int] = set()
        self._results: defaultdict[int, list[SegmentResult]] = defaultdict(list)
        for result in context.history:
            if result.kind == "trial":
                self._results[result.number].append(result)
        self._succeeded = any(
            result.status == "ok" for results in self._results.values() for result in results
        )
        self._check_records()
        self._take_up()

    def run(self, pools: Pools) -> list[TrialRecord]:
        """Search until every trial has ended; returns them."""
        with closing(self.search):
            while True:
                self._fill(pools)
                self._show()
                if not self._running:
                    break
                ended = self._wait()
                pools.check()
                self._record(ended)
            self.search.end_waiting()
            self.search.commit()
            return self.search.records

    def _fill(self, pools: Pools) -> None:
        """Give every free GCD a bundle, with new trials where too few segments are ready.

        Trials are in the study, on disk, before they run; all that begin now are written together.
        """
        site, gcd = self.context.site, self.context.gcd
        free = site.nodes * len(site.node.gcds) - len(self._running)
        while len(self._ready) < free * gcd.share and (self._promote() or self._ask()):
            pass
        self.search.commit()
        for _ in range(free):
            if not self._ready:
                return
            tasks = self._next_bundle(free)
            specs = [task.sent() for task in tasks]
            future = pools.submit("gcd", run_bundle, site.node, self.context.bundle(), specs)
            self._running[future] = tasks
            future.add_done_callback(self._done.put)
            free -= 1

    def _next_bundle(self, free: int) -> list[Task]:
        if len(self._ready) <= free:
            return [self._ready.pop()]
        queue = [Placeable(task, task.estimate) for task in self._ready]
        bundle, rest = next_bundle(queue, self.context.gcd, free)
        self._ready = [placeable.item for placeable in rest]
        return [placeable.item for placeable in bundle]

    def _wait(self) -> list[Future[Any]]:
        """Bundles that have ended; none where that takes long, so that others can be looked at."""
        ended = []
        try:
            ended.append(self._done.get(timeout=SECONDS_BETWEEN_LOOKS))
            while True:
                ended.append(self._done.get_nowait())
        except Empty:
            return ended

    def _record(self, ended: Sequence[Future[Any]]) -> None:
        """Put what has ended on disk, together, and judge it."""
        outcomes: list[tuple[Task, SegmentResult, bool]] = []
        refused: StoreError | None = None
        for future in ended:
            tasks = self._running.pop(future)
            try:
                results = results_of(future, tasks)
            except StoreError as error:
                refused = error
                continue
            alone = len(tasks) == 1
            outcomes += [(task, result, alone) for task, result in zip(tasks, results, strict=True)]
        self.context.record(outcomes)
        if refused is not None:
            raise refused
        for task, result, _ in outcomes:
            self._results[task.spec.number].append(result)
            self._judge(task, result)

    def _ask(self) -> bool:
        """Begin a new trial, where the budget has one left."""
        if self.search.asked >= self.context.config.search.trials:
            return False
        self._queue(self.search.ask(), rung=0)
        return True

    def _promote(self) -> bool:
        """Have a trial go on that has waited at a rung, where one may."""
        nothing_left = self.search.asked >= self.context.config.search.trials
        promoted = self.search.promote(
            closing=nothing_left and not self._running and not self._ready
        )
        if promoted is None:
            return False
        trial, rung = promoted
        self._queue(trial, rung + 1)
        return True

    def _queue(self, trial: TrialRecord, rung: int) -> None:
        """Make a trial's next segment ready, or fail the trial where none could fit."""
        failures, gcd = self.context.config.search.failures, self.context.gcd
        parts = 2 ** times_too_large(failures, self._results[trial.number])
        task = self._task(trial, rung, parts)
        while too_large(task.estimate, gcd) and self._can_resize(task):
            parts *= 2
            task = self._task(trial, rung, parts)
        if too_large(task.estimate, gcd):
            needs = f"{task.estimate.memory_gib:.1f} GiB, a GCD has {gcd.memory_gib:.1f} GiB"
            self.search.fail(trial.number, f"out_of_memory: needs about {needs}")
        else:
            self._ready.append(task)

    def _task(self, trial: TrialRecord, rung: int, parts: int) -> Task:
        epochs = self.search.rungs.epochs(trial.number)
        return self.context.task(
            "trial",
            trial.number,
            self.context.directory.trial(trial.number),
            trial,
            rung=rung,
            until_epoch=epochs[rung],
            done_epochs=epochs[rung - 1] if rung else 0,
            parts=parts,
        )

    def _judge(self, task: Task, result: SegmentResult) -> None:
        number, rung = task.spec.number, task.spec.rung
        failures = self.context.config.search.failures
        if result.status == "ok" and result.best_val_loss is not None:
            self._succeeded = True
            if self._report(number, rung, self._results[number]) == "goes_on":
                self._queue(self.search.record(number), rung + 1)
        elif result.status == "out_of_memory" and failures.out_of_memory == "resize":
            if self._can_resize(task):
                self._queue(self.search.record(number), rung)
            else:
                self.search.fail(number, f"out_of_memory, one graph at a time: {result.reason}")
        elif is_final(failures, result.status):
            self.search.fail(number, f"{result.status}: {result.reason}")
        else:
            self._repeat(task.again(), result)

    def _report(self, number: int, rung: int, results: Sequence[SegmentResult]) -> Verdict:
        outcome = outcome_of(self.context.config.search, results)
        if not all(math.isfinite(value) for value in outcome.objectives):
            self.search.fail(number, f"diverged: objectives are {outcome.objectives}")
            return "stops"
        return self.search.report(number, rung, outcome)

    def _can_resize(self, task: Task) -> bool:
        """Whether a step can be taken in more parts, which changes nothing but its memory."""
        training = task.spec.network["Training"]
        parts: int = training.get("accumulation_steps", 1)
        most = _MOST_PARTS if training.get("Batching") else training["batch_size"]
        wanted = self.context.config.search.failures.out_of_memory == "resize"
        # The root of a step's mean square is not made of its parts' roots.
        return wanted and parts < most and training.get("loss_function_type") != "rmse"

    def _repeat(self, task: Task, result: SegmentResult) -> None:
        """Try a segment once more, or say who is to blame."""
        self._troubled.add(task.spec.number)
        if task.tries < MOST_TRIES:
            self._ready.append(task)
        elif not self._succeeded and len(self._troubled) > 1:
            # No segment has ever worked, so it is not the trials; they keep their chance.
            raise CampaignStopped(
                f"no segment of any trial has worked ({result.status}: {result.reason}); see "
                f"{task.spec.folder / 'log'}, cure the cause and give the same command again"
            )
        else:
            reason = f"{result.status} {MOST_TRIES} times without getting further: {result.reason}"
            self.search.fail(task.spec.number, reason)

    def _check_records(self) -> None:
        """Refuse to begin again, or to repeat, what a lost file has forgotten."""
        directory = self.context.directory
        if not self._results.keys() <= {trial.number for trial in self.search.records}:
            lost, other = directory.journal, directory.segments
        elif not self._results and self.search.best is not None:
            lost, other = directory.segments, directory.journal
        else:
            return
        raise InputError(
            f"{lost}: has lost the trials that {other.name} records; restore it from a copy, or "
            f"make it anew with `hydragnn-flow rebuild {directory.path}`"
        )

    def _take_up(self) -> None:
        """After a restart: report what is recorded but not judged, and make the rest ready."""
        for trial in self.search.records:
            if trial.state == "running":
                self._take_up_trial(trial)

    def _take_up_trial(self, trial: TrialRecord) -> None:
        failures = self.context.config.search.failures
        history, rung = self._results[trial.number], 0
        for position, result in enumerate(history, start=1):
            if result.status == "ok" and result.best_val_loss is not None:
                if self._report(trial.number, result.rung, history[:position]) != "goes_on":
                    return
                rung = result.rung + 1
            elif is_final(failures, result.status):
                self.search.fail(trial.number, f"{result.status}: {result.reason}")
                return
        self._queue(trial, rung)

    def _show(self) -> None:
        self.context.view.search(
            self.search.states,
            len(self._ready),
            self.search.best,
            self.context.config.search.trials,
        )
