"""Run directory: everything that is known about one campaign."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import sys
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from hydragnn_flow.config import EnsembleConfig, RunConfig
from hydragnn_flow.config.base import validate
from hydragnn_flow.config.objective import ObjectiveConfig
from hydragnn_flow.config.origins import JOURNAL, check_earlier
from hydragnn_flow.ensemble.summary import FOLDER, SUMMARY
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import AppendOnly, drop_torn_record, is_there, open_regular, write_text
from hydragnn_flow.plain_files import FROM_A_COPY, read_json, read_yaml, sound
from hydragnn_flow.segment import VERSION, Kind, SegmentResult
from hydragnn_flow.versions import versions

CONFIG = "run.yaml"
STARTED = "started"
COMMANDS = "commands"
SIMULATED = "simulated.json"
"""File that marks the run directory of a simulated campaign."""
_ABOUT = ("versions", STARTED, COMMANDS)
# Trials are compared by the criterion too, so it may not change with the ensemble.
_OF_THE_ENSEMBLE = {f"ensemble.{key}" for key in EnsembleConfig.model_fields} - {
    "ensemble.criterion"
}
# Keys that do not affect any computed number.
_ALWAYS_FREE = {"data.path", "trackers"}
# Keys that limit the length of the search.
_OF_THE_BUDGET = {"search.trials", "search.energy_kwh"}


class RunDirectory:
    """Directory on disk of one campaign (run): the paths of its files, and its records.

    Parameters
    ----------
    path
        Directory of the run; :meth:`record_start` creates it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.store = self.path / "store.gs"
        self.journal = self.path / JOURNAL
        self.segments = self.path / "segments.jsonl"
        self._ledger = AppendOnly(self.segments)
        self.ensemble = self.path / FOLDER
        self.summary = self.ensemble / SUMMARY
        self.report = self.path / "report.html"
        self.weights = self.path / "start" / "weights.pt"
        """File of the initial weights of every trial, if `start_from` names any."""
        self.start = self.weights.with_name("start.json")
        """File that names the source of the initial weights."""
        self.simulated = self.path / SIMULATED
        self._read: tuple[tuple[int, int], dict[str, Any]] | None = None

    @property
    def has_begun(self) -> bool:
        """True if the search of this run has begun, even if its study (Optuna's record) is lost."""
        return any(is_there(path) for path in (self.journal, self.segments, self.path / "trials"))

    @property
    def has_members(self) -> bool:
        """True if the members (models) of the ensemble are chosen."""
        return self.ensemble.exists()

    @property
    def has_stray_members(self) -> bool:
        """True if ensemble members were trained, and the record of their choice is lost."""
        lost = not self.ensemble.exists()
        return lost and any(result.kind == "member" for result in self.results())

    def warm_start(self) -> tuple[Path, ...]:
        """Return the paths of earlier searches whose trials the search of this run started with."""
        return tuple(map(Path, self._recorded()["search"]["warm_start"]))

    def check(self, config: RunConfig) -> None:
        """Check that a configuration may continue the run in this directory.

        These keys may differ from those in `run.yaml`:

        * all keys on which the store does not depend, until the search starts;
        * `search.trials`, `search.energy_kwh` and the keys of `ensemble` except
          `ensemble.criterion`, until the members are chosen, and later if `search.trials` is
          raised;
        * `ensemble.coverage`, until the ensemble is finished;
        * `data.path` and `trackers` at any time, and `search.warm_start` once the search has
          started.

        Raises
        ------
        InputError
            If another key differs (the message names the first), an earlier search does not exist,
            or the directory is not that of a run.
        """
        before = self._before(config)
        if not before:
            return
        if self.has_members:
            free = {*_ALWAYS_FREE, "search.warm_start"}
            if self.is_extended(config):
                free |= {*_OF_THE_BUDGET, *_OF_THE_ENSEMBLE}
            elif not self.summary.exists():
                free |= {"ensemble.coverage"}
        elif self.has_begun:
            free = {*_ALWAYS_FREE, *_OF_THE_BUDGET, "search.warm_start", *_OF_THE_ENSEMBLE}
        elif self.store.exists():
            # The store has the network's neighbour lists; prepare_store compares them.
            free = {
                *_ALWAYS_FREE,
                "data.mode",
                "data.sampling",
                "name",
                "network",
                "search",
                "ensemble",
                "start_from",
            }
        else:
            return  # its driver was stopped before it did anything
        self._check_same(before, config, free)

    def check_objective(self, config: ObjectiveConfig) -> None:
        """Check that a configuration may continue the run of a user's function in this directory.

        `search.trials` may change at any time, and `search.warm_start` is not read again.

        Raises
        ------
        InputError
            If another key differs (the message names the first), or the directory is not that of a
            run.
        """
        if before := self._before(config):
            self._check_same(before, config, {"search.trials", "search.warm_start"})

    def _before(self, config: RunConfig | ObjectiveConfig) -> dict[str, Any]:
        """Return the content of `run.yaml`, empty if new; InputError if no run can be here."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path}: is a file; name a directory with --run-dir")
        if self.simulated.exists():
            raise InputError(
                f"{self.path}: holds a simulated campaign; choose another directory with --run-dir"
            )
        if not self.has_begun:
            check_earlier(config.search.warm_start)
        before = self._recorded()
        content = self.path.iterdir() if self.path.is_dir() and not before else ()
        # A driver killed at the very start leaves only its lock.
        if any(not entry.name.startswith((".", "driver.")) for entry in content):
            raise InputError(
                f"{self.path}: is not empty and not the directory of a run; choose another with "
                f"--run-dir"
            )
        return before

    def _check_same(
        self, before: dict[str, Any], config: RunConfig | ObjectiveConfig, free: set[str]
    ) -> None:
        """Raise InputError if a configuration differs from ``before`` in a key outside ``free``."""
        after = _resolved(config)
        difference = _first_difference(_with_defaults(before, type(config)), after, "", free)
        if difference is not None:
            raise InputError(
                f"{self.path / CONFIG}: belongs to another configuration ({difference} differs); "
                f"{self._changeable(difference)}choose another directory with --run-dir, or delete "
                f"this one"
            )

    def _changeable(self, key: str) -> str:
        """Return words on the keys of `ensemble` that may still change; empty for another key."""
        if key not in _OF_THE_ENSEMBLE or not self.has_members:
            return ""
        if self.summary.exists():
            return "of a finished ensemble no key can be changed, unless search.trials is raised; "
        return (
            "members are chosen, so of ensemble only ensemble.coverage can be changed, and the "
            "other keys when search.trials is raised; "
        )

    def config(self) -> RunConfig:
        """Read the campaign's configuration from `run.yaml`, to look at the run.

        Raises
        ------
        InputError
            If the file cannot be read, or belongs to a search over a user's function.
        """
        path = self.path / CONFIG
        values = read_yaml(path, remedy=FROM_A_COPY)
        if "objective" in (values.get("search") or {}):
            raise InputError(
                f"{path}: search.objective: the run of a function has no networks to report on; "
                f"look at its trials.csv"
            )
        known = _known(values, RunConfig)
        known.pop("trackers", None)  # need not be installed here
        config: RunConfig = validate(RunConfig, known, path)
        return config

    def is_extended(self, config: RunConfig) -> bool:
        """Return True if members were chosen from fewer trials than ``config`` asks for."""
        before = self._recorded().get("search", {})
        return self.has_members and config.search.trials > before.get("trials", math.inf)

    def is_complete(self, config: RunConfig) -> bool:
        """Return True if the ensemble is finished and ``config`` asks for no more trials."""
        return self.summary.exists() and not self.is_extended(config)

    def set_ensemble_aside(self) -> Path:
        """Rename the ensemble's folder to `ensemble.1` or the next free number, to keep it.

        Its predictions and the members' lines of the ledger are moved into it, and `report.html` is
        deleted. The call may be interrupted at any point and repeated.

        Returns
        -------
        Path
            New path of the ensemble's folder.
        """
        self.ensemble.mkdir(exist_ok=True)
        results = list(self.results())
        members = [result for result in results if result.kind == "member"]
        if members:
            write_text(self.ensemble / self.segments.name, _lines(members))
            write_text(self.segments, _lines([r for r in results if r.kind != "member"]))
        number = 1
        while self.ensemble.with_name(f"{self.ensemble.name}.{number}").exists():
            number += 1
        predictions = self.path / "predictions"
        if predictions.exists():
            predictions.rename(self.ensemble / predictions.name)
        aside = self.ensemble.with_name(f"{self.ensemble.name}.{number}")
        self.report.unlink(missing_ok=True)
        return self.ensemble.rename(aside)

    def started_from(self) -> str | None:
        """Return a description of where trials' initial weights come from; None if they are random.

        Raises
        ------
        InputError
            If the file with the source is damaged.
        """
        if not self.start.exists():
            return None
        told = read_json(self.start)
        with sound(self.start):
            heads = "heads included" if told["heads"] == "keep" else "with new heads"
            frozen = f"; not trained: {', '.join(told['frozen'])}" if told["frozen"] else ""
            return f"{told['path']} (SHA-256 {told['sha256']}), {heads}{frozen}"

    def record_start(self, config: RunConfig | ObjectiveConfig) -> None:
        """Write `run.yaml`: the configuration, versions, and time and command line of each driver.

        The directory is created if needed, and only its user can read it. An incomplete last line
        of the ledger, which a killed driver may leave, is removed.
        """
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.chmod(0o700)
        values, before = _resolved(config), self._recorded()
        if self.has_begun and "search" in before:
            # A lost study is rebuilt from the earlier searches that it started from.
            values["search"]["warm_start"] = before["search"].get("warm_start", [])
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        about = {
            "versions": versions(values),
            STARTED: [*before.get(STARTED, []), time.time()],
            COMMANDS: [*before.get(COMMANDS, []), command],
        }
        text = yaml.safe_dump({**values, **about}, sort_keys=False, allow_unicode=True)
        write_text(self.path / CONFIG, text)
        drop_torn_record(self.segments)

    def clear(self, remove: bool) -> None:
        """Remove the files that a driver has put into a new run directory.

        With ``remove`` the directory is removed too, if it is empty then. Call this method only for
        a run whose search has not started. If the store is prepared, even incompletely, all files
        stay.
        """
        if self.store.exists() or (self.path / f".{self.store.name}.preparing").exists():
            return
        shutil.rmtree(self.path / "parsl", ignore_errors=True)
        of_drivers = ("driver.json", "driver.lock", "driver.log", "workers.json", "energy.json")
        for name in (CONFIG, *of_drivers):
            (self.path / name).unlink(missing_ok=True)
        if remove and not any(self.path.iterdir()):
            self.path.rmdir()

    def wall_seconds(self) -> float:
        """Return the total time that drivers (main processes of a campaign) worked on the run [s].

        The present driver counts until now, an earlier one until the last segment that ended before
        the next driver started.
        """
        starts = self._recorded().get(STARTED, [])
        ends = [result.ended for result in self.results()]
        total = 0.0
        for start, following in zip(starts, [*starts[1:], float("inf")], strict=True):
            mine = [end for end in ends if start <= end < following]
            end = time.time() if following == float("inf") else max(mine, default=start)
            total += max(0.0, end - start)  # a wall clock may have been set back
        return total

    def _recorded(self) -> dict[str, Any]:
        """Return the content of `run.yaml`, empty if there is none; parsed again if it changes."""
        file = self.path / CONFIG
        if not file.exists():
            return {}
        status = file.stat()
        version = status.st_ino, status.st_mtime_ns
        if self._read is None or self._read[0] != version:
            remedy = "restore it from a copy, or delete the run directory to start over"
            values = read_yaml(file, remedy=remedy)
            if not isinstance(values.get("search", {}), dict):
                raise InputError(f"{file}: is damaged (search: no mapping); {remedy}")
            self._read = version, values
        return self._read[1]

    def trial(self, number: int) -> Path:
        """Return the path of a trial's folder, `trials/<number>` in the run directory."""
        return self.path / "trials" / str(number)

    def record(self, results: Sequence[SegmentResult]) -> None:
        """Append results of segments (jobs) to the ledger, `segments.jsonl`, and wait for the disk.

        Raises
        ------
        OSError
            If the disk does not take them; the ledger is then unchanged.
        """
        if results:
            self._ledger.append(_lines(results).encode())

    def check_study(self, trials: Iterable[int], recorded: Iterable[int]) -> None:
        """Check that a study (Optuna's record of the search) has all trials of the ledger.

        Parameters
        ----------
        trials
            Numbers of the trials in the study.
        recorded
            Numbers of the trials in the ledger, which has to be read before the study.

        Raises
        ------
        InputError
            If the study lacks a trial.
        """
        if {*recorded} - {*trials}:
            raise InputError(
                f"{self.journal}: lacks trials that {self.segments.name} records; restore it from "
                f"a copy; or, of a search for networks, move it away, and the same command makes "
                f"it anew"
            )

    def results(self, of_trials: Container[int] | None = None) -> Iterator[SegmentResult]:
        """Yield the result of each segment (job) in the ledger, in the order in which they ended.

        Parameters
        ----------
        of_trials
            Numbers of the trials whose results to yield; by default the results of all trials and
            members are yielded.

        Raises
        ------
        InputError
            If a complete line is damaged.
        """
        if not is_there(self.segments):
            return
        with open_regular(self.segments) as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return  # still being written
                if of_trials is not None and not _is_of(line, of_trials):
                    continue
                try:
                    yield _result(line)
                except (ValueError, TypeError, RecursionError) as error:
                    raise InputError(
                        f"{self.segments}: line {number} is damaged ({error}); restore the file "
                        f"from a copy, or name {self.path} in search.warm_start of another run"
                    ) from None


class _Name(msgspec.Struct):
    """Kind and number (of a trial or member) of a line of the ledger, decoded without the rest."""

    kind: Kind
    number: int


_name_of = msgspec.json.Decoder(_Name).decode
_fast = msgspec.json.Decoder(SegmentResult).decode


def _is_of(line: bytes, trials: Container[int]) -> bool:
    """Return True if a line of the ledger is a result of one of the trials, or is damaged."""
    try:
        name = _name_of(line)
    except msgspec.DecodeError:
        return True
    return name.kind == "trial" and name.number in trials


def _result(line: bytes) -> SegmentResult:
    """Decode a line of the ledger; raise ValueError or TypeError if it is damaged or outdated."""
    try:
        result = _fast(line)
        if result.version == VERSION:
            return result
    except msgspec.DecodeError:  # NaN, which is not JSON; or damage, which json.loads reports
        pass
    values = dict(json.loads(line))
    if (version := values.get("version")) != VERSION:
        raise ValueError(f"version {version}, this package reads {VERSION}")
    return SegmentResult(**values)


def recorded(directory: Path) -> dict[str, Any]:
    """Return the content of a run's `run.yaml`, unchecked; empty if it cannot be read."""
    try:
        values: dict[str, Any] = read_yaml(directory / CONFIG)
        return values
    except InputError:
        return {}


def objectives_of(directory: Path) -> list[str]:
    """Return the names of the objectives in a run's `run.yaml`; empty if it cannot be read."""
    try:
        return [str(name) for name in recorded(directory)["search"]["objectives"]]
    except (KeyError, TypeError):
        return []


def _lines(results: Sequence[SegmentResult]) -> str:
    return "".join(json.dumps(result.to_dict()) + "\n" for result in results)


def _resolved(config: RunConfig | ObjectiveConfig) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(config.model_dump_json())
    return values


def _known(values: dict[str, Any], kind: type[RunConfig | ObjectiveConfig]) -> dict[str, Any]:
    return {key: values[key] for key in kind.model_fields if key in values}


def _with_defaults(
    recorded: dict[str, Any], kind: type[RunConfig | ObjectiveConfig]
) -> dict[str, Any]:
    """Return a recorded configuration with the defaults of keys that it does not have.

    One that this version of the package cannot read is returned as it is.
    """
    try:
        return _resolved(kind.model_validate(_known(recorded, kind)))
    except ValueError:
        return recorded


def _first_difference(old: Any, new: Any, key: str, free: set[str]) -> str | None:
    if key in free:
        return None
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(set(old) | set(new)):
            if key == "" and name in _ABOUT:
                continue
            place = f"{key}.{name}" if key else name
            found = _first_difference(old.get(name), new.get(name), place, free)
            if found is not None:
                return found
        return None
    return None if old == new else key
