"""How far a run is: its phase, what is planned, and what has come of it so far."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from hydragnn_flow.ensemble.failed_members import failed_members
from hydragnn_flow.ensemble.summary import per_atom
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.fence import DRIVER_FILE, is_driven
from hydragnn_flow.execution.pools.workers_file import read_workers
from hydragnn_flow.plain_files import read_json
from hydragnn_flow.report.gcd_time import GcdTime, gcd_time
from hydragnn_flow.report.text import number
from hydragnn_flow.run_directory import RunDirectory, recorded
from hydragnn_flow.search import read_trials
from hydragnn_flow.search.records import TrialRecord
from hydragnn_flow.segment import Kind, SegmentResult, trial_kwh

Phase = Literal["preparation", "search", "members", "calibration", "finished"]
_PER_ATOM = "_mae_per_atom"


@dataclass(frozen=True)
class Stage:
    """A run as its directory shows it."""

    phase: Phase
    trials: list[TrialRecord]
    results: list[SegmentResult]
    planned_trials: int
    """Zero if `run.yaml` does not say, as the next two."""
    planned_members: int
    member_epochs: int
    started: float
    """When the last driver began, as Unix time [s]; zero if it is not known."""
    begun: dict[int, float]
    """Number of each member whose training has begun -> when, as Unix time [s]."""
    trained: list[int]
    """Numbers of the members that are trained to their end."""
    failed: list[int]
    """Numbers of the members that failed for good; trials next in line take their place."""
    has_members: bool = True
    """Whether the search leads to an ensemble."""
    at_work: Sequence[SegmentResult] = ()
    to_come: Collection[Kind] = ()

    @property
    def gcd_time(self) -> GcdTime | None:
        """Where the time of the GCDs went so far."""
        return gcd_time([*self.results, *self.at_work], self.to_come)

    @property
    def counts(self) -> Counter[str]:
        """Number of trials in each state."""
        return Counter("waiting" if trial.waits else trial.state for trial in self.trials)

    @property
    def ended(self) -> int:
        """Number of trials that have ended."""
        return sum(trial.state != "running" for trial in self.trials)

    def __str__(self) -> str:
        if self.phase == "search":
            early = self.begun.keys() | {*self.trained}
            return (
                f"search: {self.ended:,} of {_planned(self.planned_trials)} trials have ended"
                + (f"; {len(early)} members began early" if early else "")
            )
        if self.phase == "members":
            training = len(self.begun.keys() - {*self.trained, *self.failed})
            return (
                f"members: {len(self.trained)} of {_planned(self.planned_members)} are trained, "
                f"{training} in training" + (f", {len(self.failed)} failed" if self.failed else "")
            )
        if self.phase == "calibration":
            return f"calibration and test: all {self.planned_members} members are trained"
        return {"preparation": "preparation of the data", "finished": "finished"}[self.phase]


def stage_of(run_directory: Path) -> Stage:
    """Read how far a run is; nothing is written."""
    directory = RunDirectory(run_directory)
    values = recorded(directory.path)
    results, trials = list(directory.results()), read_trials(directory.path)
    numbers = (result.number for result in results if result.kind == "trial")
    directory.check_study((trial.number for trial in trials), numbers)
    size = _integer(values, "ensemble", "size")
    ends = {r.number: r.status for r in results if r.kind == "member"}
    # Of one that began early and was not chosen nothing is left.
    folder = directory.ensemble / "members"
    trained = sorted(k for k, end in ends.items() if end == "ok" and (folder / str(k)).exists())
    failed = sorted(member.member for member in failed_members(directory.ensemble))
    begun = _begun(folder)
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
    starts = values.get("started")
    start = float(starts[-1]) if isinstance(starts, list) and starts else 0.0
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
        _member_epochs(values),
        start,
        begun,
        trained,
        failed,
        has_members,
        at_work,
        [kind for kind in more if more[kind] and phase != "finished"],
    )


def best_errors(run_directory: Path, results: Sequence[SegmentResult]) -> list[str]:
    """Smallest validation error of each target, and whose it is; of extensive targets per atom.

    Parameters
    ----------
    run_directory
        Its store knows the units.
    results
        Of trials and members.
    """
    best: dict[str, tuple[float, str]] = {}
    for result in results:
        for name, value in result.metrics.items():
            found = value, f"{result.kind} {result.number}"
            if value == value and found < best.get(name, (float("inf"), "")):
                best[name] = found
    units = _units(run_directory)
    told = []
    for name, (value, whose) in best.items():
        target = name.removesuffix(_PER_ATOM) if name.endswith(_PER_ATOM) else name[: -len("_mae")]
        if not name.endswith(("_mae", _PER_ATOM)) or name + "_per_atom" in best:
            continue
        unit, scale, label = units.get(target, ""), 1.0, target
        if name.endswith(_PER_ATOM):
            label, (unit, scale) = f"{target} per atom", per_atom(unit) if unit else ("", 1.0)
        told.append(f"{label} {number(value * scale)} {unit} ({whose})".replace("  ", " "))
    return told


def _units(run_directory: Path) -> dict[str, str]:
    """Target -> unit, as far as the store says."""
    directory = RunDirectory(run_directory)
    files = (folder / "manifest.json" for folder in (directory.store, directory.ensemble))
    try:
        file = next(file for file in files if file.exists())
        targets = read_json(file)["targets"]
        return {str(name): str(target["unit"] or "") for name, target in targets.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return {}


def _at_work(
    path: Path, trials: Sequence[TrialRecord], results: Sequence[SegmentResult], start: float
) -> list[SegmentResult]:
    """What the driver has at work or ready; of one that is gone, when it last wrote so."""
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
        running = {trial.number for trial in trials if trial.state == "running" and not trial.waits}
        if is_live and running - sent:  # ready at the latest since a segment ended, or the driver
            # began, which a stretch of days without any may precede
            waited = end - max(start, max((result.ended for result in results), default=end))
            found.append({"kind": "trial", "number": -1, "rung": 0, "started": end, "gcds": [""]})
            found[-1] |= {**ended, "waited_seconds": waited, "away_seconds": 0.0}
        return msgspec.convert(found, list[SegmentResult])
    except (InputError, ValueError, LookupError, TypeError, AttributeError):  # damaged, or older
        return []


def _begun(members: Path) -> dict[int, float]:
    """Each member that was sent and has not ended, and when [s]."""
    found = {}
    for file in members.glob("*/begun"):
        if file.parent.name.isdigit():
            found[int(file.parent.name)] = file.stat().st_mtime
    return found


def _integer(values: Mapping[str, Any], section: str, key: str) -> int:
    try:
        return int(values[section][key])
    except (KeyError, TypeError, ValueError):
        return 0


def _member_epochs(values: Mapping[str, Any]) -> int:
    """Epochs of a member in total, each as long as a trial's."""
    try:
        members, trials = values["ensemble"].get("budget"), values["search"].get("budget") or {}
        if not members:
            return _integer(values, "ensemble", "epochs")
        (unit,) = (unit for unit, size in members.items() if size is not None)
        each = (
            1.0 if unit == "epochs" else trials[unit] / values["network"]["Training"]["num_epoch"]
        )
        return math.ceil(round(float(members[unit]) / each, 6))
    except (KeyError, TypeError, ValueError, AttributeError):
        return 0


def _planned(count: int) -> str:
    return f"{count:,}" if count else "an unknown number of"
