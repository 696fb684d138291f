"""DeepHyper's `results.csv`: the best evaluations as configurations that a search begins with."""

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
# HydraGNN's earlier names of parameters.
_RENAMED = {"model_type": "mpnn_type"}


@dataclass(frozen=True)
class Best:
    """The best evaluations of a campaign of DeepHyper's, as far as they are of use to a search."""

    configurations: list[dict[str, Scalar]]
    """Values by their paths in the space, the best first."""
    objectives: list[float]
    """DeepHyper's objective of each, which it maximised."""
    evaluations: int
    """All that the files have."""
    failed: int
    """Those without a finite objective."""
    outside: int
    """Better ones that were left out: the space, or the network, does not allow their values."""
    unknown: list[str]
    """DeepHyper's parameters that no path of the space ends with."""


def best_evaluations(
    files: Sequence[Path], config: RunConfig, most: int, objective: str = _OBJECTIVE
) -> Best:
    """Read the best evaluations of DeepHyper's, and find their parameters in a search space.

    A parameter ``p:NAME`` is every path of the space that ends with ``NAME``, as in HydraGNN's
    scripts, which give all heads the same layers.

    Parameters
    ----------
    files
        ``results.csv`` of one campaign or more with the same objective.
    config
        Whose `search.space` the values are to be in.
    most
        Number of configurations at most, all of them different.
    objective
        Column by which they are judged.

    Raises
    ------
    InputError
        If a file is none of DeepHyper's, no parameter is in the space, or no evaluation is.
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
    """The values of an evaluation by their paths; none if they are not possible here."""
    space = config.search.space
    values: dict[str, Scalar] = {}
    for name, value in given.items():
        if pd.isna(value):  # it has no such parameter
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
    """What a cell of a CSV file may mean: a column with gaps has whole numbers with a point."""
    if isinstance(value, str):
        return [value]
    number = float(value)
    if isinstance(value, bool) or str(value) in ("True", "False"):
        return [bool(value)]
    return [int(number), number] if number.is_integer() else [number]
