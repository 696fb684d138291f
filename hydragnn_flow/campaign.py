"""The driver: search, place, run, judge, until done; then the ensemble.

The only process that writes the study. Everything it knows is in the run directory before it acts
on it, so it may be killed at any moment and started again by the same command.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from hydragnn_flow.config import RunConfig
from hydragnn_flow.config.network import read_json
from hydragnn_flow.data import GraphStore, prepare_store
from hydragnn_flow.ensemble import (
    SUMMARY,
    Member,
    finish_ensemble,
    member_folder,
    needed_for_level,
    select_top,
)
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import Job, Site, run_bundle, run_wave, sole_driver
from hydragnn_flow.execution.pools import Pools
from hydragnn_flow.models import build_model, network_cost
from hydragnn_flow.placement import (
    CostModel,
    Estimate,
    Placeable,
    Work,
    next_bundle,
    plan_members,
    too_large,
)
from hydragnn_flow.report import write_report
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory, write_network
from hydragnn_flow.search import Search, TrialRecord
from hydragnn_flow.training.checkpoint import FILE
from hydragnn_flow.training.segment import SegmentResult, SegmentSpec

# A trial whose process dies this often is failed: it is more likely the cause than the victim.
MOST_DEATHS = 3
SECONDS_BETWEEN_LOOKS = 0.5
# A longer time [s] without a segment means that the run was stopped, not that it was waiting.
LONGEST_PAUSE = 60.0
_FAILURES = ("diverged", "out_of_memory", "error")


@dataclass
class _Task:
    """A segment to run, and what is expected of it."""

    spec: SegmentSpec
    mpnn_type: str
    estimate: Estimate
    deaths: int = 0


@dataclass
class CampaignSummary:
    """How a campaign ended."""

    run_directory: Path
    report: Path
    ensemble: dict[str, Any]
    """The content of `ensemble.json`."""
    was_complete: bool = False
    """Whether there was nothing left to do."""


def prepare(
    config: RunConfig,
    run_directory: str | Path | None = None,
    view: CampaignView | None = None,
) -> GraphStore:
    """Build the GraphStore of a run, or open the one that is there.

    Parameters are those of :func:`run_campaign`.
    """
    directory = _directory(config, run_directory)
    with _shown(view) as shown, _driving(directory, config):
        return _prepare(config, directory, shown)


def run_campaign(
    config: RunConfig,
    site: Site,
    run_directory: str | Path | None = None,
    view: CampaignView | None = None,
) -> CampaignSummary:
    """Run a campaign to its end, or go on with one that was stopped.

    Parameters
    ----------
    config
        What to do.
    site
        Where to do it.
    run_directory
        Where to keep everything; ``runs/<name>`` where not given.
    view
        The progress display.

    Raises
    ------
    InputError
        If something the user gave is wrong; nothing has been started then.
    """
    directory = _directory(config, run_directory)
    with _shown(view) as shown:
        if (directory.ensemble / SUMMARY).exists():
            summary = read_json(directory.ensemble / SUMMARY)
            report = directory.report if directory.report.exists() else write_report(directory.path)
            return CampaignSummary(directory.path, report, summary, was_complete=True)
        with _driving(directory, config) as token:
            store = _prepare(config, directory, shown)
            return _Campaign(config, site, directory, store, token, shown).run()


def _directory(config: RunConfig, run_directory: str | Path | None) -> RunDirectory:
    directory = RunDirectory(Path(run_directory or Path("runs") / config.name))
    directory.check(config)
    return directory


@contextmanager
def _shown(view: CampaignView | None) -> Iterator[CampaignView]:
    with view or CampaignView() as shown:
        yield shown


@contextmanager
def _driving(directory: RunDirectory, config: RunConfig) -> Iterator[str]:
    """Own the run directory; where the input turns out wrong, a new one is taken away again."""
    new = not directory.path.exists()
    directory.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    with sole_driver(directory.path) as token:
        directory.claim(config)
        try:
            yield token
        except InputError:
            if new and not directory.journal.exists():
                shutil.rmtree(directory.path)
            raise


def _prepare(config: RunConfig, directory: RunDirectory, view: CampaignView) -> GraphStore:
    base = config.network_with({})
    architecture = base.Architecture
    assert architecture.radius is not None  # load_config has seen to it
    store = prepare_store(
        config.data,
        architecture.radius,
        architecture.max_neighbours,
        config.seed,
        directory.store,
        view.step,
    )
    n_val, level = len(store["valset"]), config.ensemble.level
    if n_val < needed_for_level(level):
        raise InputError(
            f"{config.name}: ensemble.level = {level} needs at least {needed_for_level(level)} "
            f"validation structures, and there are {n_val}; raise data.split.val or lower the level"
        )
    with torch.device("meta"):
        build_model(base, store)  # what does not fit the data is refused before anything starts
    return store


@dataclass
class _Campaign:
    config: RunConfig
    site: Site
    directory: RunDirectory
    store: GraphStore
    token: str
    view: CampaignView
    ready: list[_Task] = field(default_factory=list)
    bundles: int = 0
    works: dict[str, Work] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = self.config
        self.costs = CostModel(self.site.node.gcd)
        self.search = Search(self.directory.journal, config.search, config.rungs, config.seed)
        history = list(self.directory.results())
        self.bundles = len({result.bundle for result in history})
        self._learn(history)
        self._take_up(history)
        self.members_done = {
            result.number: result
            for result in history
            if result.kind == "member" and result.status in ("ok", *_FAILURES)
        }

    def run(self) -> CampaignSummary:
        """Search, train the members, finish."""
        with Pools(self.site, self.directory.path / "parsl") as pools:
            self._search(pools)
            chosen = select_top(self.search.records, self.config.ensemble.size)
            self._train_members(pools, chosen)
        self.view.step("finish", 0, 2, "calibrating and testing")
        history = list(self.directory.results())
        totals = {
            "wall_seconds": _covered_seconds(history),
            "cpu_seconds": sum(result.cpu_seconds for result in history),
        }
        members = [self._member(k, trial, history) for k, trial in enumerate(chosen)]
        summary = finish_ensemble(self.directory.path, self.config, self.store, members, totals)
        self.view.step("finish", 1, 2, "writing the report")
        report = write_report(self.directory.path)
        self.view.step("finish", 2, 2, "")
        return CampaignSummary(self.directory.path, report, summary)

    # -- search ---------------------------------------------------------------------------------

    def _search(self, pools: Pools) -> None:
        running: dict[Future[Any], list[_Task]] = {}
        n_gcds = self.site.nodes * len(self.site.node.gcds)
        while True:
            self._fill(pools, running, n_gcds - len(running))
            self._show(running)
            if not running:
                return
            done, _ = wait(running, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
            for future in done:
                tasks = running.pop(future)
                for task, result in zip(tasks, _outcome(future, tasks), strict=True):
                    self._judge(task, result, alone=len(tasks) == 1)

    def _fill(self, pools: Pools, running: dict[Future[Any], list[_Task]], free: int) -> None:
        node = self.site.node
        while free > 0:
            while len(self.ready) < free * node.gcd.share and self._ask():
                pass
            if not self.ready:
                return
            queue = [Placeable(task, task.estimate) for task in self.ready]
            bundle, rest = next_bundle(queue, node.gcd, free)
            tasks, self.ready = [p.item for p in bundle], [p.item for p in rest]
            specs = [task.spec for task in tasks]
            running[pools.submit("gcd", run_bundle, node, self._bundle(), specs)] = tasks
            free -= 1

    def _ask(self) -> bool:
        """Begin a new trial, where the budget has one left."""
        if len(self.search.records) >= self.config.search.trials:
            return False
        self._queue(self.search.ask(), rung=0)
        return True

    def _queue(self, record: TrialRecord, rung: int, deaths: int = 0) -> None:
        """Make a trial's next segment ready, or fail the trial where none could fit."""
        folder = self.directory.trial(record.number)
        network = self.config.network_values(record.parameters)
        write_network(folder, network)
        spec = SegmentSpec(
            kind="trial",
            number=record.number,
            directory=str(folder),
            store=str(self.directory.store),
            network=network,
            until_epoch=self.config.rungs[rung],
            rung=rung,
            seed=self.config.seed * 100_003 + record.number,
            run_directory=str(self.directory.path),
            token=self.token,
            threads=self.site.node.cores_per_gcd,
        )
        before = self.config.rungs[rung - 1] if rung else 0
        task = self._task(spec, spec.until_epoch - before, deaths)
        if too_large(task.estimate, self.site.node.gcd):
            self.search.fail(
                record.number,
                f"out_of_memory: needs about {task.estimate.memory_gib:.1f} GiB, a GCD has "
                f"{self.site.node.gcd.memory_gib:.1f} GiB",
            )
        else:
            self.ready.append(task)

    def _judge(self, task: _Task, result: SegmentResult, alone: bool) -> None:
        """Record what became of a segment, then act on it."""
        result.predicted_seconds = task.estimate.seconds
        self.directory.record(result)
        number, rung = task.spec.number, task.spec.rung
        if result.status == "ok" and result.best_val_loss is not None:
            if alone:
                self.costs.observe(task.mpnn_type, task.estimate.seconds, result.seconds)
            if self.search.report(number, rung, result.best_val_loss):
                self._queue(self.search.resume(number), rung + 1)
        elif result.status in _FAILURES:
            self.search.fail(number, f"{result.status}: {result.reason}")
        elif result.status == "killed" and task.deaths + 1 >= MOST_DEATHS:
            self.search.fail(number, f"killed {MOST_DEATHS} times: {result.reason}")
        else:
            died = result.status == "killed"
            self.ready.append(replace(task, deaths=task.deaths + died))

    def _take_up(self, history: Sequence[SegmentResult]) -> None:
        """After a restart: report what is recorded but not judged, and make the rest ready."""
        for record in self.search.records:
            if record.state != "running":
                continue
            mine = [r for r in history if r.kind == "trial" and r.number == record.number]
            resumed = self.search.resume(record.number)
            rung, goes_on = 0, True
            for result in mine:
                if result.status == "ok" and result.best_val_loss is not None and goes_on:
                    goes_on = self.search.report(record.number, result.rung, result.best_val_loss)
                    rung = result.rung + 1
                elif result.status in _FAILURES:
                    self.search.fail(record.number, f"{result.status}: {result.reason}")
                    goes_on = False
            if goes_on:
                deaths = sum(r.status == "killed" and r.rung == rung for r in mine)
                self._queue(resumed, rung, deaths)

    def _learn(self, history: Sequence[SegmentResult]) -> None:
        together = Counter(result.bundle for result in history)
        for result in history:
            predicted = result.predicted_seconds
            if result.status == "ok" and predicted and together[result.bundle] == 1:
                network = read_json(self.directory.trial(result.number) / "config.json")
                mpnn_type = network["NeuralNetwork"]["Architecture"]["mpnn_type"]
                if result.kind == "trial":
                    self.costs.observe(mpnn_type, predicted, result.seconds)

    def _show(self, running: dict[Future[Any], list[_Task]]) -> None:
        records = self.search.records
        values = [record.value for record in records if record.value is not None]
        self.view.search(
            [record.state for record in records],
            len(self.ready),
            min(values, default=None),
            self.config.search.trials,
        )

    # -- members --------------------------------------------------------------------------------

    def _train_members(self, pools: Pools, chosen: Sequence[TrialRecord]) -> None:
        history = list(self.directory.results())
        waiting = [
            self._member_task(k, trial, history)
            for k, trial in enumerate(chosen)
            if k not in self.members_done
        ]
        self._show_members(len(chosen))
        while waiting:
            node = self.site.node
            waves = plan_members(
                [task.estimate.seconds for task in waiting],
                self.site.nodes,
                len(node.gcds),
                [self._widest(task.spec) for task in waiting],
            )
            running: dict[Future[Any], list[_Task]] = {}
            for wave in waves:
                tasks, jobs, first = [waiting[m] for m in wave.members], [], 0
                for task, width in zip(tasks, wave.widths, strict=True):
                    jobs.append(Job(task.spec, tuple(range(first, first + width))))
                    first += width
                running[pools.submit("node", run_wave, node, self._bundle(), jobs)] = tasks
            waiting = []
            while running:
                done, _ = wait(running, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
                for future in done:
                    tasks = running.pop(future)
                    for task, result in zip(tasks, _outcome(future, tasks), strict=True):
                        waiting += self._judge_member(task, result)
                self._show_members(len(chosen))

    def _judge_member(self, task: _Task, result: SegmentResult) -> list[_Task]:
        """Record what became of a member; the task again where it should be repeated."""
        result.predicted_seconds = task.estimate.seconds
        if result.status == "killed" and task.deaths + 1 >= MOST_DEATHS:
            result.status, result.reason = "error", f"killed {MOST_DEATHS} times: {result.reason}"
        self.directory.record(result)
        if result.status == "ok" or result.status in _FAILURES:
            self.members_done[task.spec.number] = result
            return []
        return [replace(task, deaths=task.deaths + (result.status == "killed"))]

    def _member_task(
        self, member: int, trial: TrialRecord, history: Sequence[SegmentResult]
    ) -> _Task:
        folder = member_folder(self.directory.ensemble, member)
        network = self.config.network_values(trial.parameters)
        write_network(folder, network)
        trial_folder = self.directory.trial(trial.number)
        spec = SegmentSpec(
            kind="member",
            number=member,
            directory=str(folder),
            store=str(self.directory.store),
            network=network,
            until_epoch=self.config.ensemble.epochs,
            rung=len(self.config.rungs),
            seed=self.config.seed * 100_003 + trial.number,
            start_from=str(trial_folder / FILE),
            run_directory=str(self.directory.path),
            token=self.token,
            threads=self.site.node.cores_per_gcd,
        )
        done = max(
            r.to_epoch
            for r in history
            if (r.kind, r.number) in (("trial", trial.number), ("member", member))
        )
        return self._task(spec, spec.until_epoch - done, deaths=0)

    def _widest(self, spec: SegmentSpec) -> int:
        """Ranks that can all be given a graph in every step."""
        n_train = len(self.store["trainset"])
        steps: int = -(-n_train // spec.network["Training"]["batch_size"])
        return max(1, n_train // steps)

    def _member(self, member: int, trial: TrialRecord, history: Sequence[SegmentResult]) -> Member:
        folder = member_folder(self.directory.ensemble, member)
        if not (folder / FILE).exists():
            # It failed before its first checkpoint, so what its trial had learnt stands.
            shutil.copyfile(self.directory.trial(trial.number) / FILE, folder / FILE)
        mine = [r for r in history if r.kind == "member" and r.number == member]
        last = self.members_done[member]
        value = trial.value if last.best_val_loss is None else last.best_val_loss
        assert value is not None  # only trials with a value are chosen
        return Member(
            member=member,
            trial=trial.number,
            best_val_loss=value,
            gcds=last.gcds,
            seconds=sum(r.seconds for r in mine),
            cpu_seconds=sum(r.cpu_seconds for r in mine),
            reason="" if last.status == "ok" else f"{last.status}: {last.reason}",
        )

    def _show_members(self, total: int) -> None:
        self.view.step("ensemble", len(self.members_done), total)

    # -- both -----------------------------------------------------------------------------------

    def _task(self, spec: SegmentSpec, epochs: int, deaths: int) -> _Task:
        training, manifest = spec.network["Training"], self.store.manifest
        mpnn_type = spec.network["Architecture"]["mpnn_type"]
        steps = -(-manifest.splits["trainset"].graphs // training["batch_size"])
        estimate = self.costs.estimate(mpnn_type, self._step_work(spec), steps * epochs)
        return _Task(spec, mpnn_type, estimate, deaths)

    def _step_work(self, spec: SegmentSpec) -> Work:
        """What one training step of a network costs, on a batch of average size."""
        architecture, training = spec.network["Architecture"], spec.network["Training"]
        shape = json.dumps([architecture, training["batch_size"], training.get("precision")])
        if shape not in self.works:
            sizes, graphs = self.store.manifest.splits["trainset"], training["batch_size"]
            with torch.device("meta"):
                model = build_model(spec.network, self.store)
            cost = network_cost(
                model,
                atoms=-(-sizes.atoms * graphs // sizes.graphs),
                edges=-(-sizes.edges * graphs // sizes.graphs),
                graphs=graphs,
            )
            wide = 2 if training.get("precision") == "fp64" else 1
            self.works[shape] = Work(
                flops=cost.flops * wide,
                bytes=cost.bytes * wide,
                launches=cost.launches,
                activation_bytes=cost.saved_bytes * wide,
                parameter_bytes=4 * cost.parameters * wide,
            )
        return self.works[shape]

    def _bundle(self) -> str:
        self.bundles += 1
        return f"b{self.bundles}"


def _outcome(future: Future[Any], tasks: Sequence[_Task]) -> list[SegmentResult]:
    """A bundle's results; where the worker itself was lost, results that say so."""
    error = future.exception()
    if error is None:
        results: list[SegmentResult] = future.result()
        return results
    reason = f"its worker was lost ({type(error).__name__})"
    return [
        SegmentResult(t.spec.kind, t.spec.number, t.spec.rung, 0, 0, "killed", reason)
        for t in tasks
    ]


def _covered_seconds(history: Sequence[SegmentResult]) -> float:
    """From the first segment to the last, without the times in which the run was stopped."""
    total, end = 0.0, float("-inf")
    for result in sorted((r for r in history if r.ended > 0), key=lambda r: r.started):
        if result.ended > end:
            stopped = result.started - end > LONGEST_PAUSE
            total += result.ended - (result.started if stopped else end)
            end = result.ended
    return total
