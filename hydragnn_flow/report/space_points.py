"""Points of a search space, drawn evenly: as if every value had been tried alike often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray


def even_points(
    trials: pd.DataFrame, names: Sequence[str], number: int, random: np.random.Generator
) -> pd.DataFrame | None:
    """Draw points of the space of some trials, with the choices that occur among the trials.

    Parameters
    ----------
    trials
        A column for each parameter, without a value where a trial does not have it, and
        ``attrs["parameters"]``, see :func:`hydragnn_flow.report.trials_frame.study_frame`.
    names
        The parameters.
    number
        Number of points. Each parameter by itself has all its values about alike often.
    random
        Draws them.

    Returns
    -------
    pandas.DataFrame or None
        The points. None where some trials have a parameter and no choice of another tells which.
    """
    domains = trials.attrs["parameters"]
    values: dict[str, list[Any]] = {}
    waiting = [name for name in names if trials[name].isna().any()]
    for name in names:
        if name not in waiting:
            values[name] = _even(trials[name], domains[name], number, random)
    while waiting:
        found = next(
            (
                (name, parent, has)
                for name in waiting
                for parent in values
                if "choices" in domains[parent] and (has := _told_by(trials, name, parent))
            ),
            None,
        )
        if found is None:
            return None
        name, parent, has = found
        drawn = _even(trials[name].dropna(), domains[name], number, random)
        keys = map(_key, values[parent])
        values[name] = [one if has[key] else None for one, key in zip(drawn, keys, strict=True)]
        waiting.remove(name)
    return pd.DataFrame(values, columns=[*names])


def _told_by(trials: pd.DataFrame, name: str, parent: str) -> dict[str, bool]:
    """Whether trials have a parameter, by the choice of another; nothing if that does not tell."""
    has: dict[str, bool] = {}
    for of, is_there in zip(trials[parent], trials[name].notna(), strict=True):
        if has.setdefault(_key(of), bool(is_there)) != is_there:
            return {}
    return has


def _key(value: Any) -> str:
    """A choice, or that there is none."""
    return "" if pd.isna(value) else str(value)


def _even(
    values: pd.Series[Any], domain: Mapping[str, Any], number: int, random: np.random.Generator
) -> list[Any]:
    """Values of a parameter, in an order by chance."""
    places: NDArray[np.float64] = random.permutation(np.arange(number) + random.random(number))
    places /= number
    if "choices" in domain:
        kinds = list(values.unique())
        return [kinds[int(place * len(kinds))] for place in places]
    low, high = domain["low"], domain["high"]
    is_whole = isinstance(low, int)
    ends = np.array([low - 0.5, high + 0.5] if is_whole else [low, high], dtype=np.float64)
    if domain["log"]:
        found = np.exp(np.log(ends[0]) + places * np.log(ends[1] / ends[0]))
    else:
        found = ends[0] + places * (ends[1] - ends[0])
    return list(np.clip(np.round(found), low, high) if is_whole else found)
