"""The driver of a campaign that calls a function: ask, send, judge, until done.

The study is written by this process alone, and every answer is in the ledger before it is acted on,
so it may be killed at any moment and started again by the same command.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from hydragnn_flow.campaign.ledger import Ledger, answering
from hydragnn_flow.campaign.objective_task import answer_file
from hydragnn_flow.campaign.pool_workers import PoolWorkers
from hydragnn_flow.campaign.view import View
from hydragnn_flow.config.objective import SECONDS, ObjectiveConfig
from hydragnn_flow.execution import Site, sole_driver
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.execution.workers.trainer_process import SECONDS_TO_BEGIN, STEPS_TO_WAIT
from hydragnn_flow.files import patiently, write_text
from hydragnn_flow.log import driver_log, tell
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.retries import Retries
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import Outcome, Search, TrialRecord
from hydragnn_flow.search.records import best_first
from hydragnn_flow.segment import Place, Segment, SegmentResult, TrainingOutcome
from hydragnn_flow.tasks import TaskFailed, TaskLost

TABLE = "trials.csv"
"""File of a run directory with a row for each trial."""
_TASK = "hydragnn_flow.campaign.objective_task:run"
_SECONDS_BETWEEN_CHECKS = 0.5
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Call:
    """A trial that is to be called up to a rung."""

    number: int
    rung: int
    retries: Retries = field(default_factory=Retries)
    attempt: str = ""
    """Identifies this sending of it."""
    looked: float = 0.0
    """When it was last sent or looked after [s]."""
    before: int = 0
    seen: int = 0
    """Last change of its folder then; before, when it was sent."""


def run_objective(
    config: ObjectiveConfig, site: Site, run_directory: str | Path | None = None
) -> list[TrialRecord]:
    """Search with a function to the end, or continue what was stopped; the best trial comes first.

    Parameters
    ----------
    config
        The campaign.
    site
        The machine.
    run_directory
        Where to keep everything; ``runs/<name>`` if not given.

    Raises
    ------
    InputError
        If the directory belongs to something else, or no worker can be got.
    CampaignStopped
        If something around the campaign keeps its work from being done; once that is cured, the
        same call continues.
    """
    directory = RunDirectory(Path(run_directory or Path("runs") / config.name))
    directory.check_objective(config)
    directory.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (
        CampaignView() as view,
        sole_driver(directory.path) as token,
        driver_log(directory.path, view.say),
        answering(directory.path),
    ):
        directory.record_start(config)
        ledger = Ledger(directory, token)
        records = _Campaign(config, site, directory, ledger, view).run()
        ledger.write(lambda: write_text(directory.path / TABLE, _table(records, config)))
    return sorted(records, key=best_first(config.search.directions[0]))


class _Campaign:
    """Trials of a function on the GCDs of a site, one call on each."""

    def __init__(
        self,
        config: ObjectiveConfig,
        site: Site,
        directory: RunDirectory,
        ledger: Ledger,
        view: View,
    ) -> None:
        self._config, self._site, self._directory, self._view = config, site, directory, view
        self._ledger = ledger
        self._gcds = site.nodes * len(site.node.gcds)
        self._ready: deque[_Call] = deque()
        self._running: dict[Future[None], _Call] = {}
        self._longest = 0.0
        """Longest that a call has taken, for each unit of its budget [s]."""
        ledger.load(self._learn)

    def run(self) -> list[TrialRecord]:
        search = Search(
            self._directory.journal,
            self._config.search,
            self._config.search.epochs,
            self._config.seed,
        )
        with Pool(self._site, self._directory.path / "parsl") as pool, search:
            workers = PoolWorkers(self._site, lambda: pool, _TASK)
            self._search = search
            self._directory.check_study((one.number for one in search.records), self._ledger.trials)
            self._take_up()
            while self._fill(workers):
                self._show()
                ended, _ = wait(self._running, _SECONDS_BETWEEN_CHECKS, return_when=FIRST_COMPLETED)
                workers.check()
                for future in ended:
                    self._take(self._running.pop(future), future)
                self._end_hung(pool)
            search.end_waiting()
            self._ledger.write(self._search.commit)
            self._show()
            return search.records

    def _take_up(self) -> None:
        """After a restart: report what is recorded and not judged, and make the rest ready."""
        running = [trial for trial in self._search.records if trial.state == "running"]
        self._ledger.load_whole([trial.number for trial in running])
        for trial in running:
            if not trial.waits:
                self._go_on(trial.number, 0)

    def _go_on(self, number: int, rung: int) -> None:
        """Judge a trial by the answers there are, from a rung on, then call it again."""
        known = {result.rung: result for result in self._ledger.trials[number]}
        while rung in known:
            if not self._judge(known[rung]):
                return
            rung += 1
        self._ready.append(_Call(number, rung))

    def _fill(self, workers: PoolWorkers) -> bool:
        """Give every free GCD a call; returns whether anything is left to wait for."""
        while len(self._running) + len(self._ready) < self._gcds:
            closing = not self._running and not self._ready and not self._left
            promoted = self._search.promote(closing)
            if promoted is not None:
                self._ready.append(_Call(promoted[0].number, promoted[1] + 1))
            elif self._left:
                self._ready.append(_Call(self._search.ask().number, 0))
            else:
                break
        self._ledger.write(self._search.commit)
        while self._ready and len(self._running) < self._gcds:
            call = replace(self._ready.popleft(), attempt=uuid4().hex)
            before = self._last_change(call.number)
            call = replace(call, looked=time.monotonic(), before=before, seen=before)
            self._running[workers.submit(self._request(call))] = call
        return bool(self._running)

    @property
    def _left(self) -> bool:
        return self._search.asked < self._config.search.trials

    def _request(self, call: _Call) -> dict[str, Any]:
        return {
            "objective": self._config.search.objective,
            "objectives": list(self._config.search.objectives),
            "number": call.number,
            "attempt": call.attempt,
            "pause": call.retries.pause,
            "parameters": self._search.record(call.number).parameters,
            "budget": self._budget(call),
            "directory": str(self._directory.trial(call.number)),
            "seed": self._config.seed * 100_003 + call.number,
        }

    def _budget(self, call: _Call) -> int:
        return self._search.rungs.epochs(call.number)[call.rung]

    def _end_hung(self, pool: Pool) -> None:
        """Call off what writes nothing for an hour and for 20 times as long as any has taken."""
        now = time.monotonic()
        for future, call in self._running.items():
            most = max(SECONDS_TO_BEGIN, STEPS_TO_WAIT * self._longest * self._budget(call))
            if now - call.looked <= most:
                continue
            change = self._last_change(call.number)
            self._running[future] = replace(call, looked=now, seen=change)
            if change == call.seen != call.before:  # else it may not have begun
                reason = f"it hung: it neither returned nor wrote a file for {most:.0f} s"
                for host in pool.hosts():  # nobody knows which has it
                    pool.call_off(host.name, call.attempt, reason)

    def _last_change(self, number: int) -> int:
        with suppress(OSError):
            return max(one.stat().st_mtime_ns for one in self._directory.trial(number).iterdir())
        return 0

    def _take(self, call: _Call, ended: Future[None]) -> None:
        try:
            ended.result()
            self._record(self._answered(call))
        except TaskFailed as error:
            is_lost = isinstance(error, TaskLost)
            retries = call.retries.lost() if is_lost else call.retries.failed()
            say = partial(tell, _logger) if is_lost and not call.retries.losses else _logger.info
            say("trial %d: %s (%s)", call.number, error, retries)
            if not retries.is_hopeless:
                self._ready.append(_Call(call.number, call.rung, retries))
                return
            outcome = TrainingOutcome.cut_short(
                "lost" if is_lost else "killed", f"{retries.total} times: {error}"
            )
            self._record(self._result(call, outcome, Place(node=error.node)))

    def _answered(self, call: _Call) -> SegmentResult:
        """What a function has answered, as a line of the ledger."""
        file = answer_file(self._directory.trial(call.number), self._budget(call))
        budget = self._budget(call)
        try:
            answer: dict[str, Any] = json.loads(patiently(file.read_bytes))
            values: dict[str, float] = answer.pop("values")
            place = Place(node=answer.pop("node"))
            first = values.get(self._config.search.objectives[0])
            before = self._search.rungs.epochs(call.number)[call.rung - 1] if call.rung else 0
            outcome = TrainingOutcome(
                from_epoch=before,
                to_epoch=budget if first is not None else 0,
                best_val_error=first,
                metrics=values,
                **answer,
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
            file.unlink(missing_ok=True)  # or it would be the answer of the next call, too
            raise TaskLost("", f"{file} is damaged ({error}) and was deleted") from error
        return self._result(call, outcome, place)

    def _result(self, call: _Call, outcome: TrainingOutcome, place: Place) -> SegmentResult:
        segment = Segment(kind="trial", number=call.number, rung=call.rung)
        return SegmentResult.of(segment, outcome, place)

    def _record(self, result: SegmentResult) -> None:
        self._ledger.record([result])
        self._learn([result])
        if self._judge(result):
            self._ready.append(_Call(result.number, result.rung + 1))

    def _learn(self, results: Sequence[SegmentResult]) -> None:
        for one in results:
            if one.status == "ok":
                units = max(1, one.to_epoch - one.from_epoch)
                self._longest = max(self._longest, one.seconds / units)

    def _judge(self, result: SegmentResult) -> bool:
        """Report an answer to the study; returns whether the trial goes on."""
        if result.status != "ok":
            self._search.fail(result.number, f"{result.status}: {result.reason}")
            return False
        calls = self._ledger.trials[result.number]
        spent = sum(call.seconds for call in calls if call.rung <= result.rung)
        measured = {SECONDS: spent, "gcd_hours": spent / 3600, **result.metrics}
        config = self._config.search
        outcome = Outcome(
            objectives=tuple(measured[name] for name in config.objectives),
            excess={name: measured[name] - most for name, most in config.constraints.items()},
            curve=[],
        )
        verdict = self._search.report(result.number, result.rung, outcome)
        _logger.info(
            "trial %d, budget %d: %s = %.6g, %s",
            *(result.number, result.to_epoch, config.objectives[0], outcome.objectives[0]),
            verdict.replace("_", " "),
        )
        return verdict == "goes_on"

    def _show(self) -> None:
        search = self._search
        self._view.search(
            search.states,
            len(self._ready),
            len(search.rungs.waiting()),
            search.best,
            self._config.search.trials,
        )


def _table(records: list[TrialRecord], config: ObjectiveConfig) -> str:
    text = io.StringIO()
    names, objectives = list(config.search.space), list(config.search.objectives)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "state", *objectives, *names, "reason"])
    for record in records:
        values = record.values or (record.value,)
        padded = [*values, *[None] * len(objectives)][: len(objectives)]
        chosen = [record.parameters.get(name) for name in names]
        writer.writerow([record.number, record.state, *padded, *chosen, record.reason])
    return text.getvalue()
