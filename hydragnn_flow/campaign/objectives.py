"""Objectives and constraints of a trial, computed from the results of its segments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from hydragnn_flow.config import SearchConfig
from hydragnn_flow.config.run import CriterionName
from hydragnn_flow.config.search import COSTS, CRITERION, PARAMETERS, STRUCTURES, WARM_UP_STEPS
from hydragnn_flow.data import Manifest
from hydragnn_flow.errors import InputError
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import Outcome
from hydragnn_flow.segment import SegmentResult

JOULES = "joules"
_ON_VALIDATION = "val."


class TooShort(ValueError):
    """Error of a trial that ended before its speed could be measured."""


def outcome_of(
    config: SearchConfig, results: Sequence[SegmentResult], parameters: int = 0
) -> Outcome:
    """Compute the objectives and constraints of a trial from the results of its segments.

    Parameters
    ----------
    config
        Configuration with the names of the objectives, and the limits.
    results
        Results of all segments of the trial, in the order in which they ended; the last has the
        status `ok`.
    parameters
        Number of parameters of the trial's network.

    Raises
    ------
    InputError
        If energy is an objective and was not counted in the last segment.
    TooShort
        If the speed of steps is an objective and there were too few steps.
    """
    curve = [row for result in results for row in result.history if result.status == "ok"]
    limits = config.constraints
    times = {"throughput"} if config.judges_errors else {*COSTS} - {PARAMETERS}

    def value(name: str) -> float:
        return parameters if name == PARAMETERS else _value(name, results, curve)

    return Outcome(
        objectives=tuple(
            _speed(name, results) if name in times else value(name) for name in config.objectives
        ),
        excess={name: value(name) - limit for name, limit in limits.items()},
        costs=costs_of(results),
    )


def costs_of(results: Sequence[SegmentResult]) -> dict[str, float]:
    """Return what a trial has used, as the study records it, from the results of its segments."""
    if not results:
        return {}
    return {
        "gcd_seconds": _value("seconds", results, ()),
        "gcds": max(1, len(results[-1].gcds)),
        "peak_memory_gib": _value("peak_memory_gib", results, ()),
    }


def check_earlier_errors(
    config: SearchConfig, manifest: Manifest, criterion: CriterionName
) -> None:
    """Refuse earlier runs in `search.warm_start` that judged trials by another kind of error.

    Two things must agree: the criterion (mean absolute or root mean square error), and for each
    target whether its error is per atom.

    Raises
    ------
    InputError
        If the errors differ; the message names the run and the target.
    """
    for path in config.warm_start:
        measured = set[str]()
        with suppress(InputError):  # a bare journal does not tell
            names = (name for result in RunDirectory(path).results() for name in result.metrics)
            measured.update(name for name in names if ":" not in name)
        judged = [name.removeprefix(_ON_VALIDATION) for name in config.objectives]
        if CRITERION in judged and measured:
            judged += manifest.targets
            squared = any(name.endswith(("_rmse", "_rmse_per_atom")) for name in measured)
            if squared != (criterion == "rmse"):
                raise InputError(
                    f"search.warm_start: the trials of {path} were judged by ensemble.criterion = "
                    f"{'rmse' if squared else 'mae'}, those of this run are by {criterion}; remove "
                    f"it, or give both the same"
                )
        for target in judged:
            if f"{target}_mae" not in measured:
                continue
            was_per_atom = f"{target}_mae_per_atom" in measured
            if was_per_atom != manifest.is_extensive(target):
                words = ("per atom", "of a structure")
                there, here = words if was_per_atom else words[::-1]
                raise InputError(
                    f"search.warm_start: the trials of {path} were judged by the error of {target} "
                    f"{there}, those of this run are by that {here}; remove it, or correct "
                    f"`extensive` of the target"
                )


def _speed(name: str, results: Sequence[SegmentResult]) -> float:
    """Return the objective ``name``, measured over a trial's steps after the warm-up.

    It is `throughput` in structures per second, or GCD-seconds or joules per `STRUCTURES`.
    """
    steady = [result for result in results if result.steady_steps]
    if not steady:
        raise TooShort(
            f"{name} is measured after the first {WARM_UP_STEPS} steps, and the trial has taken "
            f"{max(result.steps for result in results)} at most; give it a larger search.budget"
        )
    graphs = sum(result.steady_graphs for result in steady)
    seconds = sum(result.steady_seconds for result in steady)
    if name == "throughput":
        return graphs / seconds
    if name == "seconds":
        of_gcds = (result.steady_seconds * max(1, len(result.gcds)) for result in steady)
        return sum(of_gcds) / graphs * STRUCTURES
    joules = 0.0
    for result in steady:
        check_counted("search: 'joules'", replace(result, joules=result.steady_joules))
        joules += result.steady_joules or 0.0
    return joules / graphs * STRUCTURES


def _value(name: str, results: Sequence[SegmentResult], curve: Sequence[Sequence[float]]) -> float:
    last = results[-1]
    if name == CRITERION:
        assert last.best_val_error is not None  # the segment ended well
        return last.best_val_error
    if name == "val_loss":
        assert last.best_val_loss is not None  # the segment ended well
        return last.best_val_loss
    if name == "train_loss":
        return next((row[1] for row in curve if row[0] == last.best_epoch), curve[-1][1])
    if name.startswith(_ON_VALIDATION):
        target = name.removeprefix(_ON_VALIDATION)
        # Training measures the error per atom of extensive targets only, and of classes no `mae`.
        kinds = (f"{target}_{kind}" for kind in ("mae_per_atom", "mae", "rmse"))
        return next(last.metrics[kind] for kind in kinds if kind in last.metrics)
    if ":" in name:
        return last.metrics[name]
    if name == "peak_memory_gib":
        # A step that did not fit was repeated with more micro-batches.
        fitted = [result for result in results if result.status != "out_of_memory"]
        return max(result.peak_memory_gib for result in fitted or results)
    if name == JOULES:
        check_counted("search: 'joules'", last)
        return _in_all((result.spent_joules, result.joules or 0.0) for result in results)
    seconds = _in_all(
        (result.spent_seconds, result.seconds * max(1, len(result.gcds))) for result in results
    )
    return seconds / 3600 if name == "gcd_hours" else seconds


def check_counted(what: str, result: SegmentResult) -> None:
    """Raise an error if a segment's energy was not counted.

    Parameters
    ----------
    what
        Key that needs energies, the subject of the message.
    result
        Result of a segment that ended well.

    Raises
    ------
    InputError
        If the segment's energy was not counted.
    """
    if result.joules is None:
        raise InputError(
            f"{what} cannot be measured on {result.node or 'this node'}: no device or processor "
            f"reports its energy to this user; remove it"
        )


def _in_all(costs: Iterable[tuple[float, float]]) -> float:
    """Return a trial's total cost, from a pair (cost before, cost in) for each of its segments.

    A segment that was lost, or whose driver was lost, has no recorded cost. The cost of work that
    it has saved in a checkpoint is included in the cost before the next segment.
    """
    total = 0.0
    for before, own in costs:
        total = max(total, before) + own
    return total
