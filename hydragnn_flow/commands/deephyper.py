"""Import of DeepHyper's `results.csv`: its best evaluations as first trials of a search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hydragnn_flow.config import Parameter, RunConfig
from hydragnn_flow.config.domain import Scalar
from hydragnn_flow.config.search_checks import completed
from hydragnn_flow.errors import InputError
from hydragnn_flow.search.space import active

_PREFIX = "p:"
_OBJECTIVE = "objective"
# Earlier names of parameters in HydraGNN.
_RENAMED = {"model_type": "mpnn_type"}


@dataclass(frozen=True)
class Best:
    """Best evaluations of a DeepHyper campaign that a search can use."""

    configurations: list[dict[str, Scalar]]
    """Values by their paths in the space, best first."""
    objectives: list[float]
    """DeepHyper's objective of each configuration, which it maximised."""
    evaluations: int
    """Number of all evaluations in the files."""
    failed: int
    """Number of evaluations without a finite objective."""
    outside: int
    """Number of better ones left out, as the space or the network does not allow their values."""
    unknown: list[str]
    """Names of DeepHyper's parameters that match no path of the space."""


def best_evaluations(
    files: Sequence[Path], config: RunConfig, most: int, objective: str = _OBJECTIVE
) -> Best:
    """Read the best evaluations of DeepHyper, and find their parameters in a search space.

    A parameter ``p:NAME`` stands for every path of the space that ends with ``NAME``, as in
    HydraGNN's scripts, which give all heads the same layers.

    Parameters
    ----------
    files
        Paths of ``results.csv`` of one or more campaigns with the same objective.
    config
        Configuration whose `search.space` must contain the values.
    most
        Maximum number of different configurations.
    objective
        Column by which evaluations are ranked.

    Raises
    ------
    InputError
        If a file is not from DeepHyper, or no parameter or no evaluation is in the space.
    """
    table = pd.concat([_read(file, objective) for file in files], ignore_index=True)
    space = config.search.space
    names = [str(column) for column in table.columns if str(column).startswith(_PREFIX)]
    paths = {name: _paths(name.removeprefix(_PREFIX), space) for name in names}
    told = ", ".join(map(str, files))
    if not any(paths.values()):
        raise InputError(
            f"{told}: no path of search.space ends with any of its parameters, "
            f"{', '.join(name.removeprefix(_PREFIX) for name in names)}; name them there"
        )
    values = pd.to_numeric(table[objective], errors="coerce")
    good = values[values.map(math.isfinite)].sort_values(ascending=False, kind="stable")
    found: dict[tuple[tuple[str, Scalar], ...], float] = {}
    outside = 0
    for row, value in good.items():
        if len(found) == most:
            break
        given = {name: table.at[row, name] for name in names}
        configuration = _configuration(given, paths, config)
        if configuration is None:
            outside += 1
        else:
            found.setdefault(tuple(configuration.items()), float(value))
    if not found:
        raise InputError(
            f"{told}: none of its {len(good):,} evaluations with a result is in search.space; "
            f"widen the space"
        )
    return Best(
        configurations=[dict(items) for items in found],
        objectives=[*found.values()],
        evaluations=len(table),
        failed=len(table) - len(good),
        outside=outside,
        unknown=[name.removeprefix(_PREFIX) for name in names if not paths[name]],
    )


def _read(file: Path, objective: str) -> pd.DataFrame:
    try:
        table = pd.read_csv(file)
    except ValueError as error:
        why = " ".join(str(error).split())
        raise InputError(f"{file}: is no table ({why}); name a results.csv") from None
    if not any(str(column).startswith(_PREFIX) for column in table.columns):
        raise InputError(
            f"{file}: has no column that begins with {_PREFIX!r}, so is none of DeepHyper's; name "
            f"a results.csv"
        )
    if objective not in table.columns:
        there = [str(one) for one in table.columns if str(one).startswith(_OBJECTIVE)]
        raise InputError(
            f"{file}: has no column {objective!r}; name one with --objective: {', '.join(there)}"
        )
    return table


def _paths(name: str, space: Mapping[str, Parameter]) -> list[str]:
    name = _RENAMED.get(name, name)
    return [path for path in space if path.rpartition(".")[2] == name]


def _configuration(
    given: Mapping[str, Any], paths: Mapping[str, Sequence[str]], config: RunConfig
) -> dict[str, Scalar] | None:
    """Values of an evaluation by their paths; None if they are impossible here."""
    space = config.search.space
    values: dict[str, Scalar] = {}
    for name, value in given.items():
        if pd.isna(value):  # the evaluation has no such parameter
            continue
        for path in paths[name]:
            fitting = [one for one in _readings(value) if space[path].contains(one)]
            values[path] = fitting[0] if fitting else math.nan
    values = {path: values[path] for path in active(space, values) if path in values}
    if not values or any(value != value for value in values.values()):
        return None
    try:
        config.network_with(completed(space, values))
    except InputError:
        return None
    return values


def _readings(value: Any) -> list[Scalar]:
    """Possible meanings of a cell of a CSV file: columns with gaps show integers with a point."""
    if isinstance(value, str):
        return [value]
    number = float(value)
    if isinstance(value, bool) or str(value) in ("True", "False"):
        return [bool(value)]
    return [int(number), number] if number.is_integer() else [number]
