"""The search phase: trials are asked for, placed, run and judged until the budget is spent."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from hydragnn_flow.campaign.segments import (
    FAILURES,
    MOST_TRIES,
    SECONDS_BETWEEN_LOOKS,
    Context,
    Task,
    results_of,
)
from hydragnn_flow.errors import CampaignStopped
from hydragnn_flow.execution import run_bundle
from hydragnn_flow.execution.pools import Pools
from hydragnn_flow.placement import Placeable, next_bundle, too_large
from hydragnn_flow.search import Search, TrialRecord
from hydragnn_flow.training.segment import SegmentResult


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
        self.search = Search(context.directory.journal, config.search, config.rungs, config.seed)
        self._ready: list[Task] = []
        self._troubled: set[int] = set()
        history = list(context.directory.results())
        self._succeeded = any(result.status == "ok" for result in history)
        self._take_up(history)

    def run(self, pools: Pools) -> list[TrialRecord]:
        """Search until every trial has ended; returns them."""
        running: dict[Future[Any], list[Task]] = {}
        site = self.context.site
        while True:
            self._fill(pools, running, site.nodes * len(site.node.gcds) - len(running))
            self._show()
            if not running:
                return self.search.records
            done, _ = wait(running, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
            pools.check()
            for future in done:
                tasks = running.pop(future)
                for task, result in zip(tasks, results_of(future, tasks), strict=True):
                    self.context.record(task, result, alone=len(tasks) == 1)
                    self._judge(task, result)

    def _fill(self, pools: Pools, running: dict[Future[Any], list[Task]], free: int) -> None:
        """Give every free GCD a bundle, asking for new trials where too few segments are ready."""
        node = self.context.site.node
        while free > 0:
            while len(self._ready) < free * self.context.gcd.share and self._ask():
                pass
            if not self._ready:
                return
            queue = [Placeable(task, task.estimate) for task in self._ready]
            bundle, rest = next_bundle(queue, self.context.gcd, free)
            tasks, self._ready = [p.item for p in bundle], [p.item for p in rest]
            specs = [task.sent() for task in tasks]
            running[pools.submit("gcd", run_bundle, node, self.context.bundle(), specs)] = tasks
            free -= 1

    def _ask(self) -> bool:
        """Begin a new trial, where the budget has one left."""
        if len(self.search.records) >= self.context.config.search.trials:
            return False
        self._queue(self.search.ask(), rung=0)
        return True

    def _queue(self, trial: TrialRecord, rung: int) -> None:
        """Make a trial's next segment ready, or fail the trial where none could fit."""
        rungs, gcd = self.context.config.rungs, self.context.gcd
        task = self.context.task(
            "trial",
            trial.number,
            self.context.directory.trial(trial.number),
            trial,
            rung=rung,
            until_epoch=rungs[rung],
            done_epochs=rungs[rung - 1] if rung else 0,
        )
        if too_large(task.estimate, gcd):
            needs = f"{task.estimate.memory_gib:.1f} GiB, a GCD has {gcd.memory_gib:.1f} GiB"
            self.search.fail(trial.number, f"out_of_memory: needs about {needs}")
        else:
            self._ready.append(task)

    def _judge(self, task: Task, result: SegmentResult) -> None:
        number, rung = task.spec.number, task.spec.rung
        if result.status == "ok" and result.best_val_loss is not None:
            self._succeeded = True
            if self.search.report(number, rung, result.best_val_loss):
                self._queue(self.search.resume(number), rung + 1)
        elif result.status in FAILURES:
            self.search.fail(number, f"{result.status}: {result.reason}")
        else:
            self._repeat(task.again(), result)

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

    def _take_up(self, history: Sequence[SegmentResult]) -> None:
        """After a restart: report what is recorded but not judged, and make the rest ready."""
        for trial in self.search.records:
            if trial.state != "running":
                continue
            resumed = self.search.resume(trial.number)
            rung, goes_on = 0, True
            for result in history:
                if result.kind != "trial" or result.number != trial.number or not goes_on:
                    continue
                if result.status == "ok" and result.best_val_loss is not None:
                    goes_on = self.search.report(trial.number, result.rung, result.best_val_loss)
                    rung = result.rung + 1
                elif result.status in FAILURES:
                    self.search.fail(trial.number, f"{result.status}: {result.reason}")
                    goes_on = False
            if goes_on:
                self._queue(resumed, rung)

    def _show(self) -> None:
        records = self.search.records
        values = [record.value for record in records if record.value is not None]
        self.context.view.search(
            [record.state for record in records],
            len(self._ready),
            min(values, default=None),
            self.context.config.search.trials,
        )
