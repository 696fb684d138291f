"""Recorded runs: measured times and results of segments, to simulate the same campaign."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydragnn_flow.config import NetworkConfig, SearchConfig
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
        self._directory, self._trials = RunDirectory(path), read_trials(path)
        self.results = list(self._directory.results())
        if not self.results:
            raise InputError(
                f"--recorded {path}: has no segments that have ended; name the directory of a run"
            )
        self._of: defaultdict[tuple[str, int], list[SegmentResult]] = defaultdict(list)
        for result in self.results:
            self._of[result.kind, result.number].append(result)

    def searched(self, search: SearchConfig) -> SearchConfig:
        """Return a search whose trials have the recorded parameters in the same order."""
        enqueued = tuple(
            {name: value for name, value in trial.parameters.items() if name in search.space}
            for trial in self._trials
        )
        return search.model_copy(update={"enqueue": enqueued})

    @property
    def selection(self) -> dict[str, Any] | None:
        """Recorded choice of members; None if there is none."""
        file = self._directory.ensemble / SELECTION
        return read_json(file) if file.exists() else None

    def segments(self, spec: SegmentSpec) -> list[SegmentResult]:
        """Recorded segments of the same trial or member."""
        found = self._of.get((spec.kind, spec.number), [])
        return found if found and _are_of(found[0].parameters, spec.network) else []


@dataclass(frozen=True)
class RecordedTruth:
    """Costs that segments had in a recorded run; launching them takes no time."""

    run: RecordedRun
    other: Truth
    """Truth for segments that the run does not have."""
    uncounted_gib: float
    """Process memory that the recorded peaks lack [GiB]."""

    def cost(self, rank: Rank) -> Cost:
        """Cost of the segment that a rank belongs to."""
        known = [result for result in self.run.segments(rank.segment) if result.seconds > 0]
        mine = [result for result in known if result.rung == rank.segment.rung]
        # Ends that are caused by the network itself, and recur.
        bad = [result.status for result in mine if result.status in ("diverged", "error")]
        trained = [result for result in mine or known if _epochs(result) > 0]
        if not trained:
            cost = self.other.cost(rank)
            return replace(cost, status=bad[-1]) if bad else cost
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
            memory_gib=max(r.peak_memory_gib for r in trained) + self.uncounted_gib,
            graphs_per_step=trained[-1].graphs_per_step,
            status=bad[-1] if bad else "ok",
        )


@dataclass(frozen=True)
class RecordedCurves:
    """Errors of a recorded run."""

    run: RecordedRun
    other: Curves
    """Errors of trials that the run does not have, or of epochs that it did not reach."""

    def errors(self, spec: SegmentSpec) -> list[float]:
        errors = self.other.errors(spec)
        seen: dict[int, float] = {}
        for result in self.run.segments(spec):
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
