"""Importance of hyper-parameters, by Optuna's evaluators."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib.util import find_spec

import numpy as np
import optuna
import pandas as pd
from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator
from optuna.study import Study
from optuna.trial import TrialState, create_trial
from rich.table import Table

from hydragnn_flow.config.search import COSTS
from hydragnn_flow.errors import InputError
from hydragnn_flow.report.tables import short_names, terminal
from hydragnn_flow.report.trials_frame import ranking

FEWEST = 10
"""Smallest number of trials for a statement."""
MANY = 50
"""Number of trials at which the best tenth are five; Optuna advises at least as many."""
FEW_TRIALS = f"Fewer than {MANY} trials: take this as a hint."


def parameter_importance(
    study: Study, frame: pd.DataFrame, objective: int = 0, *, fanova: bool = False
) -> pd.DataFrame:
    """Measure how far each parameter decides whether a trial is among the best (tenth, or five).

    PED-ANOVA (Watanabe et al., arXiv:2304.10255): the divergence between a parameter's values in
    the best trials and its values in all of them, each parameter by itself. A conditional parameter
    is compared among the trials that have it, and counts by their fraction of both groups (Hasegawa
    et al., arXiv:2601.20800). Trials are ranked as TPE ranks them, so that the many that a rung
    ended are counted too. By throughput, seconds or joules those that ran out of memory come last.

    Parameters
    ----------
    study
        Trials of the search.
    frame
        The same study's table, see :func:`hydragnn_flow.report.trials_frame.study_frame`.
    objective
        Position of the objective by which trials are ranked.
    fanova
        Whether to add fractions of variance (Hutter et al., ICML 2014). They are averages over the
        whole space, so a parameter whose good value the sampler found early keeps its importance.

    Returns
    -------
    pandas.DataFrame
        ``parameter``, ``importance`` [%, all together 100; all zero if nothing mattered],
        ``trials`` that have it, the most important first. With ``fanova`` also ``variance``: the
        fraction [%] that the parameter explains alone, of the logarithm of throughput, seconds or
        joules, else of the place in the ranking; NaN where some trials lack it.

    Raises
    ------
    InputError
        If there are too few trials, or the package that ``fanova`` needs is not installed.
    """
    order, name = ranking(frame, objective), frame.attrs["objectives"][objective]
    if len(order) < FEWEST:
        raise InputError(
            f"importance: {len(order)} trials have a value of {name}, and at least {FEWEST} are "
            f"needed"
        )
    if fanova and find_spec("sklearn") is None:
        raise InputError("--fanova: needs scikit-learn; run `pip install 'hydragnn_flow[fanova]'`")
    if name in COSTS:
        failed = frame["reason"].str.startswith("out_of_memory") & (frame["state"] == "failed")
        order = pd.concat([order, pd.Series(np.nan, index=frame.index[failed])])
    numbers = frame.loc[order.index, "trial"].astype(int)
    places = dict(zip(numbers, map(float, range(len(order))), strict=True))
    names = {path: path for path in frame.attrs["parameters"]}
    ranked = as_complete(study, places, names)
    with warnings.catch_warnings():
        # It warns that small targets count as good, which places are, and of rare conditions.
        warnings.simplefilter("ignore")
        divergences = evaluator(len(order)).evaluate(ranked)
    total = sum(divergences.values())
    table = pd.DataFrame(
        {
            "parameter": list(divergences),
            "importance": [100 * of / total if total else 0.0 for of in divergences.values()],
            "trials": [int(frame.loc[order.index, path].notna().sum()) for path in divergences],
        }
    )
    if fanova:
        if name in COSTS and (order.dropna() > 0).all():
            worst = order.fillna(order.dropna().iloc[-1])
            ranked = as_complete(study, dict(zip(numbers, np.log(worst), strict=True)), names)
        found = FanovaImportanceEvaluator(seed=0).evaluate(ranked)
        table["variance"] = [100 * float(found.get(path, np.nan)) for path in table["parameter"]]
    order_by = ["importance", "parameter"]
    return table.sort_values(order_by, ascending=[False, True], ignore_index=True)


def evaluator(trials: int) -> PedAnovaImportanceEvaluator:
    """PED-ANOVA by the best tenth of the trials, and at least five: fewer may be an accident."""
    return PedAnovaImportanceEvaluator(target_quantile=max(0.1, 5 / trials))


def as_complete(study: Study, values: Mapping[int, float], names: Mapping[str, str]) -> Study:
    """Copy a study in memory, with complete trials alone, whatever ended them.

    Optuna's evaluators and figures leave out pruned trials, which are most of a search with rungs.

    Parameters
    ----------
    study
        Trials of the search.
    values
        Value that each trial gets, by number; trials without one have failed in the copy.
    names
        Parameters to keep, by their path, and how they are called in the copy.
    """
    copy = optuna.create_study()
    copy.add_trials(
        create_trial(
            state=TrialState.COMPLETE if t.number in values else TrialState.FAIL,
            value=values.get(t.number),
            params={names[path]: of for path, of in t.params.items() if path in names},
            distributions={names[p]: of for p, of in t.distributions.items() if p in names},
        )
        for t in study.get_trials(deepcopy=False)
    )
    return copy


def importance_table(importance: pd.DataFrame, title: str) -> Table:
    """Importances for the terminal, with bars.

    Parameters
    ----------
    importance
        See :func:`parameter_importance`.
    title
        Names the objective.
    """
    table = importance.assign(parameter=short_names(list(importance["parameter"])))
    longest = table["importance"].max() or 1.0
    table.insert(2, "", ["█" * round(20 * of / longest) for of in table["importance"]])
    return terminal(table, title, FEW_TRIALS if table["trials"].max() < MANY else "")
