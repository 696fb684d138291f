"""The run directory: everything one campaign knows."""

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
from hydragnn_flow.config.objective import ObjectiveConfig
from hydragnn_flow.config.warm_start import JOURNAL, check_earlier
from hydragnn_flow.ensemble.failed_members import SELECTION
from hydragnn_flow.ensemble.summary import FOLDER, SUMMARY
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import AppendOnly, drop_torn_record, is_there, open_regular, write_text
from hydragnn_flow.plain_files import read_json, read_yaml, sound
from hydragnn_flow.segment import VERSION, Kind, SegmentResult
from hydragnn_flow.versions import versions

CONFIG = "run.yaml"
STARTED = "started"
COMMANDS = "commands"
SIMULATED = "simulated.json"
"""File of a run directory whose campaign is a simulated one."""
_ABOUT = ("versions", STARTED, COMMANDS)
# The criterion judges trials too, so it may not change with the ensemble.
_OF_THE_ENSEMBLE = {f"ensemble.{key}" for key in EnsembleConfig.model_fields} - {
    "ensemble.criterion"
}
# What changes nothing in what is computed.
_ALWAYS_FREE = {"data.path"}
# How far the search goes.
_OF_THE_BUDGET = {"search.trials", "search.energy_kwh"}
# What only counts when the members are trained.
_OF_THE_FINISH = {"ensemble.aggregation", "ensemble.coverage"}


class RunDirectory:
    """Paths and records of a campaign.

    Parameters
    ----------
    path
        The directory; made by :meth:`record_start`.
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
        """What every trial begins with, where `start_from` names something."""
        self.start = self.weights.with_name("start.json")
        """Where they come from."""
        self.simulated = self.path / SIMULATED
        self._read: tuple[tuple[int, int], dict[str, Any]] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the search has begun; its study may be lost, and is then made anew."""
        return any(is_there(path) for path in (self.journal, self.segments, self.path / "trials"))

    @property
    def has_members(self) -> bool:
        """Whether the members of the ensemble are chosen; some may begin before."""
        if not self.ensemble.exists():
            return False
        try:
            content = read_json(self.ensemble / SELECTION)
        except InputError:  # it is lost, or was never needed
            return True
        return bool(content.get("chosen", True))

    def warm_start(self) -> tuple[Path, ...]:
        """Earlier searches that the study began with."""
        return tuple(map(Path, self._recorded()["search"]["warm_start"]))

    def check(self, config: RunConfig) -> None:
        """Refuse a directory that belongs to another configuration, and earlier searches to start
        from that are not there.

        Another number of trials, or another ensemble by the same criterion, may be asked for as
        long as members have not been chosen, and with more trials after that too; another coverage
        and aggregation until the ensemble is finished; all that the store does not depend on, as
        long as the search has not begun. Once it has, it holds what it started from, and
        `search.warm_start` no longer counts.

        Raises
        ------
        InputError
            Naming the first key that differs.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path}: is a file; name a directory with --run-dir")
        if self.simulated.exists():
            raise InputError(
                f"{self.path}: holds a simulated campaign; choose another directory with --run-dir"
            )
        if not self.has_begun:
            check_earlier(config.search.warm_start)
        before = self._recorded()
        if not before:
            content = self.path.iterdir() if self.path.is_dir() else []
            # A driver killed at the very start leaves its lock and nothing else.
            if not any(not entry.name.startswith((".", "driver.")) for entry in content):
                return
            raise InputError(
                f"{self.path}: is not empty and not the directory of a run; choose another with "
                f"--run-dir"
            )
        if self.has_members:
            free = {*_ALWAYS_FREE, "search.warm_start"}
            if self.is_extended(config):
                free |= {*_OF_THE_BUDGET, *_OF_THE_ENSEMBLE}
            elif not self.summary.exists():
                free |= _OF_THE_FINISH
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
            return  # its driver was stopped before it had done anything
        difference = _first_difference(_with_defaults(before), _resolved(config), "", free)
        if difference is not None:
            raise InputError(
                f"{self.path / CONFIG}: belongs to another configuration ({difference} differs); "
                f"{self._changeable(difference)}choose another directory with --run-dir, or delete "
                f"this one"
            )

    def check_objective(self, config: ObjectiveConfig) -> None:
        """Refuse a directory that belongs to another configuration than this of a function.

        Another number of trials may be asked for at any time.

        Raises
        ------
        InputError
            Naming the first key that differs.
        """
        if not self.has_begun:
            check_earlier(config.search.warm_start)
        before = self._recorded()
        free = {"search.trials", "search.warm_start"}
        known = {key: value for key, value in before.items() if key not in _ABOUT}
        difference = _first_difference(known, _resolved(config), "", free) if before else None
        if difference is not None:
            raise InputError(
                f"{self.path / CONFIG}: belongs to another configuration ({difference} differs); "
                f"choose another directory with --run-dir, or delete this one"
            )
        if not before and self.path.exists() and any(self.path.glob("[!.d]*")):
            raise InputError(
                f"{self.path}: is not empty and not the directory of a run; choose another with "
                f"--run-dir"
            )

    def _changeable(self, key: str) -> str:
        """What can be changed once members are chosen, where one of their keys was."""
        if key not in _OF_THE_ENSEMBLE or not self.has_members:
            return ""
        if self.summary.exists():
            return "of a finished ensemble no key can be changed, unless search.trials is raised; "
        keys = " and ".join(sorted(_OF_THE_FINISH))
        return (
            f"members are chosen, so of ensemble only {keys} can be changed, and the other keys "
            f"when search.trials is raised; "
        )

    def is_extended(self, config: RunConfig) -> bool:
        """Whether more trials are asked for than those the ensemble was chosen from."""
        before = self._recorded().get("search", {})
        return self.has_members and config.search.trials > before.get("trials", math.inf)

    def is_for_another_ensemble(self, config: RunConfig) -> bool:
        """Whether members that began before the search was over are of another ensemble."""
        if not self.ensemble.exists() or self.has_members:
            return False
        free = {*_resolved(config), *_OF_THE_FINISH} - {"ensemble"}
        before = _with_defaults(self._recorded())
        return _first_difference(before, _resolved(config), "", free) is not None

    def is_complete(self, config: RunConfig) -> bool:
        """Whether there is nothing left to do."""
        return self.summary.exists() and not self.is_extended(config)

    def set_ensemble_aside(self) -> Path:
        """Keep the ensemble, its predictions and its ledger's lines under names of their own.

        May be cut short at any point and called again.

        Returns
        -------
        Path
            Where the ensemble is now.
        """
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
        """Where the weights come from that every trial begins with, in words; None if they are
        random.

        Raises
        ------
        InputError
            If the file that says so is damaged.
        """
        if not self.start.exists():
            return None
        told = read_json(self.start)
        with sound(self.start):
            heads = "heads included" if told["heads"] == "keep" else "with new heads"
            frozen = f"; not trained: {', '.join(told['frozen'])}" if told["frozen"] else ""
            return f"{told['path']} (SHA-256 {told['sha256']}), {heads}{frozen}"

    def record_start(self, config: RunConfig | ObjectiveConfig) -> None:
        """Write `run.yaml` for a driver that starts, in a directory that only its user can read.

        Half a line of the ledger, as a driver that was killed may leave, is dropped.
        """
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.chmod(0o700)
        values, before = _resolved(config), self._recorded()
        if self.has_begun and "search" in before:
            # A study that is lost is made anew from the earlier searches that it began with.
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
        """Take away what a driver puts into a new directory, and the directory itself on request.

        Only for a run that has not begun its search. If its store is prepared, even in part,
        everything stays.
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
        """Time that drivers have worked on the run, this one included [s].

        One that was killed counts until the last segment it recorded.
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
        """Content of `run.yaml`, empty if there is none, checked and parsed once for each file."""
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
        """The folder of a trial."""
        return self.path / "trials" / str(number)

    def record(self, results: Sequence[SegmentResult]) -> None:
        """Append finished segments; on disk when this returns.

        Raises
        ------
        OSError
            If the disk does not take them; the ledger is then as it was.
        """
        if results:
            self._ledger.append(_lines(results).encode())

    def check_study(self, trials: Iterable[int], recorded: Iterable[int]) -> None:
        """Refuse a study of fewer trials than the ledger, which was read before, records.

        Raises
        ------
        InputError
            If there are any.
        """
        if {*recorded} - {*trials}:
            raise InputError(
                f"{self.journal}: lacks trials that {self.segments.name} records; restore it from "
                f"a copy; or, of a search for networks, move it away, and the same command makes "
                f"it anew"
            )

    def results(self, of_trials: Container[int] | None = None) -> Iterator[SegmentResult]:
        """Every recorded segment, in the order they ended.

        Parameters
        ----------
        of_trials
            Numbers of the trials whose segments are wanted; all, and those of members, if not
            given.
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
    """Of a line, which segment it is of."""

    kind: Kind
    number: int


_name_of = msgspec.json.Decoder(_Name).decode
_fast = msgspec.json.Decoder(SegmentResult).decode


def _is_of(line: bytes, trials: Container[int]) -> bool:
    """Whether a line is one of these trials', or damaged."""
    try:
        name = _name_of(line)
    except msgspec.DecodeError:
        return True
    return name.kind == "trial" and name.number in trials


def _result(line: bytes) -> SegmentResult:
    """The segment of a line; ValueError or TypeError if it is damaged, or of another version."""
    try:
        result = _fast(line)
        if result.version == VERSION:
            return result
    except msgspec.DecodeError:  # NaN, which is no JSON; or damage, which is to be named
        pass
    values = dict(json.loads(line))
    if (version := values.get("version")) != VERSION:
        raise ValueError(f"version {version}, this package reads {VERSION}")
    return SegmentResult(**values)


def recorded(directory: Path) -> dict[str, Any]:
    """Content of the run's `run.yaml`, unchecked; empty if it cannot be read."""
    try:
        values: dict[str, Any] = read_yaml(directory / CONFIG)
        return values
    except InputError:
        return {}


def objectives_of(directory: Path) -> list[str]:
    """Names of the objectives in the run's configuration; none if it does not say."""
    try:
        return [str(name) for name in recorded(directory)["search"]["objectives"]]
    except (KeyError, TypeError):
        return []


def _lines(results: Sequence[SegmentResult]) -> str:
    return "".join(json.dumps(result.to_dict()) + "\n" for result in results)


def _resolved(config: RunConfig | ObjectiveConfig) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(config.model_dump_json())
    return values


def _with_defaults(recorded: dict[str, Any]) -> dict[str, Any]:
    """What an earlier version resolved, with the defaults of keys that are new since."""
    try:
        return _resolved(
            RunConfig.model_validate(
                {key: recorded[key] for key in RunConfig.model_fields if key in recorded}
            )
        )
    except ValueError:  # of a configuration that this version does not read: it differs
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
