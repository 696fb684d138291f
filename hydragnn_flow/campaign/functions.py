"""Driver of a search with a user's function: requests trials, sends calls, judges the answers.

Only the driver writes the study, and every answer is in the ledger before the driver acts on it. So
the driver may be killed at any moment and restarted by the same command.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pandas as pd

from hydragnn_flow.campaign.context import Ledger, answering
from hydragnn_flow.campaign.setup.start import displayed
from hydragnn_flow.config.objective import SECONDS, ObjectiveConfig
from hydragnn_flow.execution import Site, sole_driver
from hydragnn_flow.execution.jobs import LOST, SECONDS_BETWEEN_CHECKS, Jobs, Sending, Task
from hydragnn_flow.execution.pools.shared import workers_of
from hydragnn_flow.execution.workers.trainer_process import SECONDS_TO_BEGIN, STEPS_TO_WAIT
from hydragnn_flow.files import write_text
from hydragnn_flow.log import View, driver_log, tell
from hydragnn_flow.placement import place
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import Outcome, Search, TrialRecord
from hydragnn_flow.search.records import best_first
from hydragnn_flow.segment import Call, Place, SegmentResult, Sender, Status, TrainingOutcome

TABLE = "trials.csv"
"""Name of the file in the run directory with a row for each trial."""
_TASK = "hydragnn_flow.campaign.function_task:run"
_logger = logging.getLogger(__name__)


@dataclass
class _Look:
    """Last check of whether a running call changes files in its trial's folder."""

    at: float
    """Time of the check, by the clock of the jobs [s]."""
    before: int
    """Latest modification time of the folder's files when the call was sent [ns]; 0 for none."""
    seen: int
    """Latest modification time of the folder's files at the check [ns]; 0 for none."""


def run_objective(
    config: ObjectiveConfig,
    site: Site,
    run_directory: str | Path | None = None,
    view: View | None = None,
) -> list[TrialRecord]:
    """Search for the best parameters of a user's function; return all trials, best first.

    A search that was stopped continues.

    Parameters
    ----------
    config
        Configuration of the campaign.
    site
        Site that runs the calls.
    run_directory
        Run directory; ``runs/<name>`` by default.
    view
        Progress display, which the caller starts and ends; None for the terminal's.

    Raises
    ------
    InputError
        If the directory belongs to something else, or no worker comes.
    CampaignStopped
        If an outside cause keeps the campaign from its work; once it is removed, the same call
        continues.
    """
    directory = RunDirectory(Path(run_directory or Path("runs") / config.name))
    directory.check_objective(config)
    directory.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (
        displayed(view) as view,
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
    """Search with a user's function, with one call at a time on each GCD of a site."""

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
        self._gcds = site.gcds
        self._ready: list[Task] = []
        self._looks: dict[Sending[Task], _Look] = {}
        self._longest = 0.0
        """Longest time of a call so far, divided by the epochs (units of budget) it added [s]."""
        ledger.load(self._learn)

    def run(self) -> list[TrialRecord]:
        search = Search(
            self._directory.journal,
            self._config.search,
            self._config.search.epochs,
            self._config.seed,
        )
        with workers_of(self._site, self._directory.path / "parsl") as pool, search:
            self._search, self._jobs = search, Jobs[Task](pool, self._site)
            self._directory.check_study((one.number for one in search.records), self._ledger.trials)
            self._take_up()
            while self._fill():
                self._show()
                self._jobs.request_workers(len(self._ready))
                finished = self._jobs.finished(SECONDS_BETWEEN_CHECKS)
                for sending in finished:
                    del self._looks[sending]
                    self._take(sending.task, sending.result)
                self._jobs.judge_nodes(finished)
                self._end_hung()
            self._ledger.write(self._search.commit)
            self._show()
            return search.records

    def _take_up(self) -> None:
        """Report recorded answers to the study after a restart, and make the next calls ready."""
        running = [trial for trial in self._search.records if trial.state == "running"]
        self._ledger.load_whole([trial.number for trial in running])
        for trial in running:
            self._go_on(trial.number, 0)

    def _go_on(self, number: int, rung: int) -> None:
        """Judge a trial by its recorded answers from index ``rung`` on; prepare its next call.

        No call is prepared if a recorded answer ends the trial.
        """
        known = {result.rung: result for result in self._ledger.trials[number]}
        while rung in known:
            if not self._judge(known[rung]):
                return
            rung += 1
        self._ready.append(self._call(number, rung))

    def _fill(self) -> bool:
        """Send a call to every free GCD; return False if no call runs or is ready."""
        while len(self._looks) + len(self._ready) < self._gcds:
            if self._search.asked >= self._config.search.trials:
                break
            self._ready.append(self._call(self._search.ask().number, 0))
        self._ledger.write(self._search.commit)
        fleet, now = self._jobs.fleet, self._jobs.now
        placed, self._ready = place(self._ready, fleet, now, may_join=False)
        for placement in placed:
            change = self._last_change(placement.segment.spec.number)
            self._looks[self._jobs.send(placement)] = _Look(now, change, change)
        return bool(self._looks or self._ready)

    def _call(self, number: int, rung: int) -> Task:
        config, seed = self._config.search, self._config.seed * 100_003 + number
        spec = Call(
            kind="trial",
            number=number,
            rung=rung,
            directory=str(self._directory.trial(number)),
            driver=Sender(
                run_directory=str(self._directory.path),
                token=self._ledger.token,
                site_gcds=self._gcds,
            ),
            function=_TASK,
            argument={
                "objective": config.objective,
                "objectives": list(config.objectives),
                "number": number,
                "parameters": self._search.record(number).parameters,
                "budget": self._search.rungs.epochs[rung],
                "directory": str(self._directory.trial(number)),
                "seed": seed,
                "pause": 0,
            },
        )
        return Task(spec=spec)

    def _end_hung(self) -> None:
        """Cancel calls that hang: they have written a file, but none for a long time since.

        That time is an hour or, if longer, 20 times the longest time of a call with such a budget.
        """
        now = self._jobs.now
        for sending, look in self._looks.items():
            spec = sending.task.spec
            budget = self._search.rungs.epochs[spec.rung]
            most = max(SECONDS_TO_BEGIN, STEPS_TO_WAIT * self._longest * budget)
            if now - look.at <= most:
                continue
            change = self._last_change(spec.number)
            is_hung = change == look.seen != look.before  # without a new file it may not have begun
            look.at, look.seen = now, change
            if is_hung:
                reason = f"it hung: it neither returned nor wrote a file for {most:.0f} s"
                self._jobs.call_off(sending, reason)

    def _last_change(self, number: int) -> int:
        with suppress(OSError):
            return max(one.stat().st_mtime_ns for one in self._directory.trial(number).iterdir())
        return 0

    def _take(self, task: Task, end: SegmentResult) -> None:
        number, rung = task.spec.number, task.spec.rung
        if end.status == "ok":
            self._record(self._answered(rung, end))
            return
        is_first_loss = end.status in LOST and not task.retries.losses
        task = task.again(end)
        say = partial(tell, _logger) if is_first_loss else _logger.info
        say("trial %d: %s (%s)", number, end.reason, task.retries)
        if task.retries.is_hopeless:
            reason = f"{task.retries.total} times: {end.reason}"
            status: Status = "lost" if end.status in LOST else "killed"
            self._record(replace(end, status=status, reason=reason))
            return
        assert isinstance(task.spec, Call)
        argument = {**task.spec.argument, "pause": task.retries.pause}
        self._ready.append(replace(task, spec=replace(task.spec, argument=argument)))

    def _answered(self, rung: int, end: SegmentResult) -> SegmentResult:
        """Convert the answer of a function to a line of the ledger."""
        epochs = self._search.rungs.epochs
        answer = {**end.answer}
        values: dict[str, float] = answer.pop("values")
        first = values.get(self._config.search.objectives[0])
        outcome = TrainingOutcome(
            from_epoch=epochs[rung - 1] if rung else 0,
            to_epoch=epochs[rung] if first is not None else 0,
            best_val_error=first,
            metrics=values,
            **{key: value for key, value in answer.items() if key != "node"},
        )
        return SegmentResult.of(end, outcome, Place(node=answer["node"]))

    def _record(self, result: SegmentResult) -> None:
        self._ledger.record([result])
        self._learn([result])
        if self._judge(result):
            self._ready.append(self._call(result.number, result.rung + 1))

    def _learn(self, results: Sequence[SegmentResult]) -> None:
        for one in results:
            if one.status == "ok":
                units = max(1, one.to_epoch - one.from_epoch)
                self._longest = max(self._longest, one.seconds / units)

    def _judge(self, result: SegmentResult) -> bool:
        """Report an answer to the study; return whether the trial continues."""
        calls = self._ledger.trials[result.number]
        spent = sum(call.seconds for call in calls if call.rung <= result.rung)
        costs = {"gcd_seconds": spent}
        if result.status != "ok":
            self._search.fail(result.number, f"{result.status}: {result.reason}", costs)
            return False
        measured = {SECONDS: spent, "gcd_hours": spent / 3600, **result.metrics}
        config = self._config.search
        outcome = Outcome(
            objectives=tuple(measured[name] for name in config.objectives),
            excess={name: measured[name] - most for name, most in config.constraints.items()},
            costs=costs,
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
            search.best,
            self._config.search.trials,
        )


def _table(records: list[TrialRecord], config: ObjectiveConfig) -> str:
    names, objectives = list(config.search.space), list(config.search.objectives)
    rows = []
    for record in records:
        values = record.values or (record.value,)
        padded = [*values, *[None] * len(objectives)][: len(objectives)]
        chosen = [record.parameters.get(name) for name in names]
        rows.append([record.number, record.state, *padded, *chosen, record.reason])
    columns = ["trial", "state", *objectives, *names, "reason"]
    return str(pd.DataFrame(rows, columns=columns, dtype=object).to_csv(index=False))
