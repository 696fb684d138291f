"""Recorded runs: measured times and results of segments, to simulate the same campaign."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydragnn_flow.config import NetworkConfig, RunConfig
from hydragnn_flow.config.network import read_json
from hydragnn_flow.config.search_checks import RESOURCES
from hydragnn_flow.ensemble.summary import SELECTION
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import Rank
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import read_trials
from hydragnn_flow.segment import SegmentResult, SegmentSpec
from hydragnn_flow.simulation.curves import Curves, value_at
from hydragnn_flow.simulation.truth import Cost, Truth

# Longer gaps between segments of a GCD are not due to launching the next one [s].
_LONGEST_GAP = 5.0
# Statuses that are caused by the network itself, and recur.
_RECURRING = ("diverged", "error")


class RecordedRun:
    """Times and learning curves of a recorded run.

    A trial or member matches a recorded one if its number and parameters are the same.

    Parameters
    ----------
    path
        Run directory of the recorded run.

    Raises
    ------
    InputError
        If it holds no ended segments.
    """

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory(path)
        self.trials = read_trials(path)
        self.results = list(self.directory.results())
        if not self.results:
            raise InputError(
                f"--recorded {path}: has no segments that have ended; name the directory of a run"
            )
        self._gaps = _gaps(self.results)
        self._gap = statistics.median(self._gaps.values()) if self._gaps else 0.0
        self._of: defaultdict[tuple[str, int], list[SegmentResult]] = defaultdict(list)
        for result in self.results:
            self._of[result.kind, result.number].append(result)

    def configured(self, config: RunConfig) -> RunConfig:
        """Return a configuration whose trials have the recorded parameters in the same order."""
        space = config.search.space
        enqueued = tuple(
            {name: value for name, value in trial.parameters.items() if name in space}
            for trial in self.trials
        )
        search = config.search.model_copy(update={"enqueue": enqueued})
        return config.model_copy(update={"search": search})

    @property
    def gcd_watts(self) -> float | None:
        """Power of a GCD with segments [W]; None if no energy was counted."""
        counted = [result for result in self.results if result.joules is not None]
        seconds = sum(r.seconds * len(r.gcds) / max(1.0, r.together) for r in counted)
        return sum(r.joules or 0.0 for r in counted) / seconds if seconds else None

    @property
    def selection(self) -> dict[str, Any] | None:
        """Recorded choice of members; None if there is none."""
        file = self.directory.ensemble / SELECTION
        return read_json(file) if file.exists() else None

    def launch_seconds(self, spec: SegmentSpec) -> float:
        """Time to launch a segment [s]; the median of the run if this one's is unknown."""
        return self._gaps.get((spec.kind, spec.number, spec.rung), self._gap)

    def segments(self, spec: SegmentSpec) -> list[SegmentResult]:
        """Recorded segments of the same trial or member."""
        found = self._of.get((spec.kind, spec.number), [])
        return found if found and _are_of(found[0].parameters, spec.network) else []


class RecordedTruth:
    """Costs that segments had in a recorded run.

    Parameters
    ----------
    run
        Recorded run with the costs.
    other
        Truth for segments that the run does not have.
    uncounted_gib
        Process memory that the recorded peaks lack [GiB].
    """

    def __init__(self, run: RecordedRun, other: Truth, uncounted_gib: float) -> None:
        self._run, self._other, self._uncounted_gib = run, other, uncounted_gib

    def cost(self, rank: Rank) -> Cost:
        """Cost of the segment that a rank belongs to."""
        known = [result for result in self._run.segments(rank.segment) if result.seconds > 0]
        mine = [result for result in known if result.rung == rank.segment.rung]
        recurring = [result for result in mine if result.status in _RECURRING]
        trained = [result for result in mine or known if _epochs(result) > 0]
        if not trained:
            cost = replace(
                self._other.cost(rank), launch_seconds=self._run.launch_seconds(rank.segment)
            )
            return replace(cost, status=recurring[-1].status) if recurring else cost
        # A segment that was widened, or co-located, is scaled to what it would take alone.
        width = len(trained[-1].gcds) or 1
        alone = statistics.fmean(1 / max(1.0, result.together) for result in trained)
        epochs = sum(map(_epochs, trained))
        seconds = sum(result.seconds for result in trained) * alone * width / rank.world
        steps = sum(result.steps for result in trained)
        return Cost(
            start_seconds=0.0,
            epoch_seconds=seconds / epochs,
            step_seconds=statistics.fmean(r.step_seconds for r in trained) * width / rank.world,
            steps=max(1, round(steps / epochs)),
            busy=1.0,
            memory_gib=max(r.peak_memory_gib for r in trained) + self._uncounted_gib,
            graphs_per_step=trained[-1].graphs_per_step,
            launch_seconds=self._run.launch_seconds(rank.segment),
            status=recurring[-1].status if recurring else "ok",
        )


class RecordedCurves:
    """Errors of a recorded run.

    Parameters
    ----------
    run
        Recorded run with the errors.
    other
        Errors of trials that the run does not have, or of epochs that it did not reach.
    """

    def __init__(self, run: RecordedRun, other: Curves) -> None:
        self._run, self._other = run, other

    def errors(self, spec: SegmentSpec) -> list[float]:
        errors = self._other.errors(spec)
        seen: dict[int, float] = {}
        for result in self._run.segments(spec):
            seen |= {int(row[0]): row[3] for row in result.history}
        if not seen:
            return errors
        # Beyond the recorded epochs, errors fall as drawn ones do.
        last = max(seen)
        scale = seen[last] / errors[last - 1] if last <= len(errors) else 1.0
        return [seen.get(epoch, scale * error) for epoch, error in enumerate(errors, start=1)]


def _epochs(result: SegmentResult) -> float:
    """Number of epochs that a segment trained; 0 if it did not end well."""
    return result.to_epoch - result.from_epoch if result.status == "ok" else 0


def _are_of(parameters: Mapping[str, Any], network: NetworkConfig) -> bool:
    return all(
        (value_at(network, name) or None) == (value or None)
        for name, value in parameters.items()
        if not name.startswith(RESOURCES)
    )


def _gaps(results: list[SegmentResult]) -> dict[tuple[str, int, int], float]:
    """Time between each segment and the previous one on its GCD [s], where launching caused it.

    For the first on a GCD it is the time from the start of the run's first segment.
    """
    begun = min(result.started for result in results)
    of_gcds: defaultdict[tuple[str, str], list[SegmentResult]] = defaultdict(list)
    for result in results:
        for place in result.places[:1]:
            of_gcds[place].append(result)
    gaps: dict[tuple[str, int, int], float] = {}
    for of_gcd in of_gcds.values():
        free = begun
        for one in sorted(of_gcd, key=lambda result: result.started):
            if 0 <= one.started - free < _LONGEST_GAP:
                gaps[one.kind, one.number, one.rung] = one.started - free
            free = one.ended
    return gaps
