"""Stage of a run: its phase, planned and finished work, and their summary in the terminal."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import optuna
import pandas as pd
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hydragnn_flow.ensemble.summary import FOLDER, failed_members, per_atom, read_summary
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.fence import DRIVER_FILE, is_driven
from hydragnn_flow.execution.pools.workers_file import count, elapsed, in_queue, read_workers
from hydragnn_flow.files import modified
from hydragnn_flow.locks import is_locked
from hydragnn_flow.log import Running
from hydragnn_flow.plain_files import FROM_A_COPY, read_json, read_yaml, sound
from hydragnn_flow.report.errors import closing_table
from hydragnn_flow.report.gcd_time import (
    cost_of,
    energy_sentences,
    gcd_time,
    gcd_time_sentence,
    nodes_cost,
)
from hydragnn_flow.report.progress import running_table
from hydragnn_flow.report.tables import SIMULATED_RUN, number
from hydragnn_flow.report.trials_frame import best_table, find_study, study_frame
from hydragnn_flow.run_directory import COMMANDS, CONFIG, RunDirectory, objectives_of, recorded
from hydragnn_flow.search.records import TrialRecord, own, record_of
from hydragnn_flow.segment import Kind, SegmentResult, trial_kwh

Phase = Literal["preparation", "search", "members", "calibration", "finished"]


@dataclass(frozen=True)
class Stage:
    """State of a run as its directory shows it: phase, trials, members and segments."""

    phase: Phase
    trials: list[TrialRecord]
    results: list[SegmentResult]
    """Results of the segments (jobs of training) that have ended."""
    planned_trials: int
    """Number of trials that `run.yaml` asks for; 0 if unknown."""
    planned_members: int
    """Number of members that `run.yaml` asks for; 0 if unknown."""
    begun: set[int]
    """Numbers of the members whose training has begun."""
    trained: list[int]
    """Numbers of the members that are trained to their end."""
    failed: list[int]
    """Numbers of the members that failed for good; trials of the reserve take their place."""
    has_members: bool = True
    """True if the search leads to an ensemble."""
    at_work: Sequence[SegmentResult] = ()
    """Segments that run or could run now, as results that end now."""
    to_come: Collection[Kind] = ()
    """Kinds (``trial``, ``member``) of segments of which more will be sent."""
    study: optuna.Study | None = None
    """Study of the search; None before it begins."""
    is_driven: bool = True
    """True if a driver (process in charge) is at work on the run."""

    @property
    def gcd_time(self) -> pd.DataFrame | None:
        """Table of when the run's GCDs were busy or idle so far; None if no segment has run."""
        return gcd_time([*self.results, *self.at_work], self.to_come)

    def __str__(self) -> str:
        if self.phase == "search":
            ended = sum(trial.state != "running" for trial in self.trials)
            return f"search: {ended:,} of {self.planned_trials or '?'} trials have ended"
        if self.phase == "members":
            training = len(self.begun - {*self.trained, *self.failed})
            failed = f", {len(self.failed)} failed" if self.failed else ""
            told = f"members: {len(self.trained)} of {self.planned_members or '?'} are trained"
            return f"{told}, {training} {'in training' if self.is_driven else 'stopped'}{failed}"
        if self.phase == "calibration":
            return f"calibration and test: all {self.planned_members} members are trained"
        return {"preparation": "preparation of the data", "finished": "finished"}[self.phase]


def stage_of(run_directory: Path) -> Stage:
    """Read phase, trials, members and segments of a run from its directory; write nothing."""
    directory = RunDirectory(run_directory)
    values = recorded(directory.path)
    results, study = list(directory.results()), find_study(directory.path)
    trials = [record_of(trial) for trial in own(study.get_trials(deepcopy=False) if study else [])]
    numbers = (result.number for result in results if result.kind == "trial")
    directory.check_study((trial.number for trial in trials), numbers)
    size = _integer(values, "ensemble", "size")
    ends = {r.number: r.status for r in results if r.kind == "member"}
    folder = directory.ensemble / "members"
    trained = sorted(k for k, end in ends.items() if end == "ok" and (folder / str(k)).exists())
    failed = sorted(member.member for member in failed_members(directory.ensemble))
    files = (file for file in folder.glob("*/begun") if file.parent.name.isdigit())
    begun = {int(file.parent.name) for file in files}
    planned = _integer(values, "search", "trials")
    searching = any(trial.state == "running" for trial in trials)
    limit = (values.get("search") or {}).get("energy_kwh")
    over = planned and (len(trials) >= planned or (limit and trial_kwh(results) >= limit))
    phase: Phase = "search"
    calls_a_function = "objective" in (values.get("search") or {})
    has_members = not calls_a_function and values.get("ensemble", {}) is not None
    if directory.summary.exists() or (not has_members and over and not searching):
        phase = "finished"
    elif calls_a_function or (trials and not has_members):
        phase = "search"
    elif (begun or ends or over) and not searching:
        phase = "calibration" if size and len(trained) >= size else "members"
    elif not trials:
        phase = "search" if directory.store.exists() else "preparation"
    starts = values.get("started") or [0.0]
    start = float(starts[-1]) if isinstance(starts, list) else 0.0
    at_work = [] if phase == "finished" else _at_work(directory.path, trials, results, start)
    epochs = _integer(values.get("network") or {}, "Training", "num_epoch")
    last = {r.number for r in at_work if r.kind == "trial" and r.node and r.to_epoch >= epochs}
    more: dict[Kind, bool] = {
        "trial": not over or any(t.state == "running" and t.number not in last for t in trials),
        "member": len({*trained, *(r.number for r in at_work if r.kind == "member")}) < size,
    }
    return Stage(
        phase,
        trials,
        results,
        planned,
        size,
        begun,
        trained,
        failed,
        has_members,
        at_work,
        [kind for kind in more if more[kind] and phase != "finished"],
        study,
        is_driven(directory.path),
    )


def best_errors(run_directory: Path, results: Sequence[SegmentResult]) -> list[str]:
    """Return, in words, the smallest validation error of each target, with its trial or member.

    Parameters
    ----------
    run_directory
        Run directory, from whose store or ensemble the units are read.
    results
        Results of segments (jobs of training) of trials and members.
    """
    best: dict[str, tuple[float, str]] = {}
    for result in results:
        for name, value in result.metrics.items():
            found = value, f"{result.kind} {result.number}"
            if ":" not in name and value == value and found < best.get(name, (float("inf"), "")):
                best[name] = found
    folder, told = run_directory / "store.gs", []
    units: dict[str, str] = {}
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        kept = folder if folder.exists() else run_directory / FOLDER
        targets = read_json(kept / "manifest.json")["targets"]
        units = {str(name): str(target["unit"] or "") for name, target in targets.items()}
    for name, (value, whose) in best.items():
        label, _, kind = name.rpartition("_mae")
        if not label or kind not in ("", "_per_atom") or f"{name}_per_atom" in best:
            continue
        unit, scale = units.get(label, ""), 1.0
        if kind:
            label, (unit, scale) = f"{label} per atom", per_atom(unit) if unit else ("", 1.0)
        told.append(f"{label} {number(value * scale)} {unit} ({whose})".replace("  ", " "))
    return told


def _at_work(
    path: Path, trials: Sequence[TrialRecord], results: Sequence[SegmentResult], start: float
) -> list[SegmentResult]:
    """Return the segments that run or could run, as results that end now.

    They are read from the file `workers.json` that the driver last wrote. If that driver no longer
    runs, they end at the time of the file.

    Parameters
    ----------
    path
        Run directory with the file.
    trials
        Records of the trials; a running trial that was not sent counts as one that could run.
    results
        Results of the segments that have ended.
    start
        Unix time at which the driver started [s].
    """
    told = read_workers(path)
    try:
        driver = read_json(path / DRIVER_FILE) if is_driven(path) else {}
        is_live = (driver.get("pid"), driver.get("host")) == (told["driver_pid"], told["host"])
        end = time.time() if is_live else told["written"]
        ended = {"status": "ok", "ended": end, "waited_seconds": 0.0}
        found = [
            {**ended, **line, "away_seconds": end - line["started"]} for line in told["segments"]
        ]
        sent = {line["number"] for line in found if line["kind"] == "trial"}
        running = {trial.number for trial in trials if trial.state == "running"}
        if is_live and running - sent:  # ready at the latest since a segment ended, or the driver
            # began, which a stretch of days without any may precede
            waited = end - max(start, max((result.ended for result in results), default=end))
            found.append({"kind": "trial", "number": -1, "rung": 0, "started": end, "gcds": [""]})
            found[-1] |= {**ended, "waited_seconds": waited, "away_seconds": 0.0}
        return msgspec.convert(found, list[SegmentResult])
    except (InputError, ValueError, LookupError, TypeError, AttributeError):  # damaged
        return []


def _integer(values: Mapping[str, Any], section: str, key: str) -> int:
    try:
        return int(values[section][key])
    except (KeyError, TypeError, ValueError):
        return 0


_MOST_FAILURES = 3


def status_table(run_directory: Path) -> RenderableType:
    """Return the status of a run for the terminal: phase, best trials, failures and driver.

    Parameters
    ----------
    run_directory
        Directory of a live or finished run; only read.
    """
    read_yaml(run_directory / CONFIG, remedy=FROM_A_COPY)  # else it would be passed over
    stage = stage_of(run_directory)
    is_simulated = RunDirectory(run_directory).simulated.exists()
    shown: list[RenderableType] = [Text(SIMULATED_RUN)] if is_simulated else []
    shown.append(Text(f"phase: {stage}"))
    if stage.study is not None:
        objectives = objectives_of(run_directory)
        frame = study_frame(stage.study, stage.results, objectives, stage.is_driven)
        shown.append(best_table(frame, 5))
    # Where nobody asks for errors, a structure is all that they are measured on.
    if stage.has_members and (found := best_errors(run_directory, stage.results)):
        shown.append(Text(f"smallest validation errors: {', '.join(found)}"))
    shown += map(Text, _failures(stage.results))
    if stage.phase == "finished":
        if RunDirectory(run_directory).summary.exists():  # a search of a function has none
            with sound(RunDirectory(run_directory).summary):
                shown.append(closing_table(read_summary(run_directory)))
    elif not is_simulated:
        told = _driver(run_directory, stage)
        shown += (Text(one) if isinstance(one, str) else one for one in told)
    return Group(*shown)


def _failures(results: Sequence[SegmentResult]) -> Iterator[str]:
    """Yield lines on the last segments that passed over a checkpoint or failed, the latest last."""
    for result in [r for r in results if r.passed_over][-_MOST_FAILURES:]:
        yield f"passed over: {result.kind} {result.number}: {_line(result.passed_over)}"
    failed = [r for r in results if r.status not in ("ok", "interrupted")]
    if failed:
        yield f"failed segments: {len(failed):,}, the last:"
    for result in failed[-_MOST_FAILURES:]:
        where = f"{result.kind} {result.number}" + (f" on {result.node}" if result.node else "")
        yield f"  {_when(result.ended)} {where}: {result.status}: {_line(result.reason)}"


def _driver(run_directory: Path, stage: Stage) -> Iterator[str | Table]:
    if not stage.is_driven:
        # A script's name does not say how it is called, and a notebook's not even where it is.
        command = (recorded(run_directory).get(COMMANDS) or [""])[-1]
        command = command.replace("hydragnn-flow prepare ", "hydragnn-flow run ")
        ours = command.startswith("hydragnn-flow ")
        told = f"`{command}`" if ours else "the same command, script or notebook"
        yield f"no driver is at work on it; {told} continues it"
        return
    driver = read_json(run_directory / DRIVER_FILE)
    workers = read_workers(run_directory)
    pid, host = driver.get("pid"), driver.get("host")
    yield f"driver: process {pid} on {host}"
    if (workers.get("driver_pid"), workers.get("host")) == (pid, host):
        yield from _workers(workers)
        if segments := _running(workers):
            yield running_table(segments, len(segments), 10)
    # A function holds the lock of its trial's folder, and has touched it when it was called.
    running = [trial.number for trial in stage.trials if trial.state == "running"]
    locks = [(n, RunDirectory(run_directory).trial(n) / "lock") for n in running]
    if called := [(modified(lock), n) for n, lock in locks if is_locked(lock)]:
        since, number = min(called)
        yield f"longest at work: trial {number}, for {elapsed(since)}"
    if (spent := stage.gcd_time) is not None:
        yield gcd_time_sentence(spent)
    cost = {**cost_of(stage.results), **nodes_cost(run_directory)}
    if cost["joules"] is not None or cost["node_joules"] is not None:
        yield energy_sentences(cost)


def _running(workers: Mapping[str, Any]) -> list[Running]:
    """Return the running segments that `workers.json` names, each once, but for damaged lines."""
    found: dict[tuple[str, int], Running] = {}
    lines = workers.get("segments")
    for line in lines if isinstance(lines, list) else []:
        with suppress(ValueError):
            one = msgspec.convert(line, Running)
            found[one.kind, one.number] = one
    return [*found.values()]


def _workers(workers: Mapping[str, Any]) -> Iterator[str]:
    blocks = workers["blocks"]
    running = sum(block["state"] == "running" for block in blocks)
    waiting = [block for block in blocks if block["state"] == "pending"]
    words = [f"{count(running)} running"] if running else []
    if waiting:
        first = min(waiting, key=lambda block: float(block["since"]))
        words.append(in_queue(len(waiting), first["since"], first["reason"]))
    if words or workers["tasks"]:
        busy = min(workers["tasks"], workers["workers"])
        yield ", ".join([f"{busy:,} of {workers['workers']:,} GCDs busy", *words])
    for when, event in workers.get("events", [])[-_MOST_FAILURES:]:
        yield f"{_when(when)} {event}"
    if workers.get("trouble"):
        yield f"{workers['trouble']}; trying again"
    if workers["bad_nodes"]:
        names = ", ".join(workers["bad_nodes"])
        yield f"taken out of use, as segments ended badly there: {names}"


def _when(unix: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(unix)) if unix else ""


def _line(text: str) -> str:
    return " ".join(text.split())[:200]
