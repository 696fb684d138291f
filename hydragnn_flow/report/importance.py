"""Importance of hyper-parameters."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
import pandas as pd
from numpy.typing import NDArray
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.study import Study
from optuna.trial import FrozenTrial

from hydragnn_flow.config.search import COSTS
from hydragnn_flow.errors import InputError
from hydragnn_flow.report.space_points import even_points
from hydragnn_flow.report.trials_frame import ranking

if TYPE_CHECKING:
    from collections.abc import Container

    from optuna.trial import TrialState

FEWEST = 10
"""Smallest number of trials for a statement."""
MANY = 50
"""Number of trials at which the best tenth are five; Optuna advises at least as many."""
FEW_TRIALS = f"Fewer than {MANY} trials: take this as a hint."
# The good trials are compared with all: the best tenth, but enough of them to be no accident.
_BEST, _FEWEST_BEST = 0.1, 5
# Shapley values of a deep forest cost about a millisecond a trial.
_MOST_EXPLAINED = 1000
# Drawn from the space: points that are explained, and those that each is compared with.
_EXPLAINED, _COMPARED = 128, 64


def parameter_importance(
    study: Study, frame: pd.DataFrame, objective: int = 0, *, shap: bool = False
) -> pd.DataFrame:
    """How much each parameter decides whether a trial is among the best tenth (at least five).

    PED-ANOVA (Watanabe et al., arXiv:2304.10255): the divergence between a parameter's values in
    the best trials and its values in all of them, each parameter by itself. A
    conditional parameter is compared among the trials that have it, and counts by their fraction of
    both groups (Hasegawa et al., arXiv:2601.20800). Trials are ranked as TPE ranks them, so that
    the many that a rung ended are counted too. By throughput, seconds or joules those that ran out
    of memory come last.

    Parameters
    ----------
    study
        Of the trials.
    frame
        The same study's table, see :func:`hydragnn_flow.report.trials_frame.study_frame`.
    objective
        By which of the objectives the trials are ranked.
    shap
        Whether to add Shapley values.

    Returns
    -------
    pandas.DataFrame
        ``parameter``, ``importance`` (fractions that add up to 1; all zero if nothing mattered),
        ``trials`` that have it, the most important first. With ``shap`` also ``shap``: by how
        much the parameter moves a trial's place in the ranking on average, in fractions of the
        ranking's length, and ``attrs["of"]``: ``ranking``. For throughput, seconds and joules by
        how much it changes these, in fractions of them; ``attrs["of"]`` is then their name. The
        average is over the space, whatever part of it the sampler preferred; where some trials lack
        a parameter and no choice of another tells which, it is over the trials. ``attrs["r2"]``
        says how much of either the model behind it explains, if there are trials enough to tell.

    Raises
    ------
    InputError
        If there are too few trials, or the packages that ``shap`` needs are not installed.
    """
    order, name = ranking(frame, objective), frame.attrs["objectives"][objective]
    if len(order) < FEWEST:
        raise InputError(
            f"importance: {len(order)} trials have a value of {name}, and at least {FEWEST} are "
            f"needed"
        )
    if name in COSTS:
        failed = frame["reason"].str.startswith("out_of_memory") & (frame["state"] == "failed")
        order = pd.concat([order, pd.Series(np.nan, index=frame.index[failed])])
    numbers = [int(number) for number in frame.loc[order.index, "trial"]]
    place = {number: float(i) for i, number in enumerate(numbers)}
    every = study.get_trials(deepcopy=False)
    ranked = _Ranked([trial for trial in every if trial.number in place])
    with warnings.catch_warnings():
        # It warns that small targets count as good, which places are, and of rare conditions.
        warnings.simplefilter("ignore")
        evaluator = PedAnovaImportanceEvaluator(
            target_quantile=max(_BEST, _FEWEST_BEST / len(order))
        )
        divergences = evaluator.evaluate(ranked, target=lambda trial: place[trial.number])
    total = sum(divergences.values())
    names = list(divergences)
    table = pd.DataFrame(
        {
            "parameter": names,
            "importance": [divergences[name] / total if total else 0.0 for name in names],
            "trials": [sum(name in trial.params for trial in ranked.ended) for name in names],
        }
    )
    if shap:
        places = (np.arange(len(order)) + 0.5) / len(order)
        is_cost = name in COSTS and bool((order.dropna() > 0).all())
        outputs = np.log(_with_worst(order)) if is_cost else places
        moved, r2 = _shapley(frame.loc[order.index], names, outputs)
        table["shap"] = np.expm1(moved) if is_cost else moved
        table.attrs["of"] = name if is_cost else "ranking"
        if r2 is not None:
            table.attrs["r2"] = r2
    order_by = ["importance", "parameter"]
    return table.sort_values(order_by, ascending=[False, True], ignore_index=True)


class _Ranked(Study):
    """The trials to compare, pruned ones among them, which Optuna's evaluators would leave out."""

    def __init__(self, ended: list[FrozenTrial]) -> None:
        storage = optuna.storages.InMemoryStorage()
        storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], "ranked")
        super().__init__("ranked", storage)
        self.ended = ended

    def get_trials(
        self, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        return self.ended


def _with_worst(order: pd.Series[float]) -> NDArray[np.float64]:
    """Values of trials, the best first; those that have none count as the worst that has one."""
    known = order.dropna()
    return np.array(order.fillna(known.iloc[-1]), dtype=np.float64)


def _shapley(
    ordered: pd.DataFrame, names: Sequence[str], outputs: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float | None]:
    """Mean absolute Shapley values of a forest that predicts the outputs of trials, and its R².

    Lundberg et al., Nature Machine Intelligence 2 (2020) 56, doi:10.1038/s42256-019-0138-9.
    """
    try:
        import shap
        from sklearn.ensemble import RandomForestRegressor
    except ImportError:
        raise InputError(
            "--shap: needs packages that are not installed; run `pip install 'hydragnn_flow[shap]'`"
        ) from None

    domains = ordered.attrs["parameters"]
    inputs, owners = _numbers(ordered[[*names]], domains)
    # Leaves of several trials: outputs are noisy, and shallow trees are explained faster.
    forest = RandomForestRegressor(
        n_estimators=100,
        min_samples_leaf=max(1, min(20, len(ordered) // 50)),
        oob_score=len(ordered) >= 4 * FEWEST,
        random_state=0,
        n_jobs=1,
    )
    forest.fit(inputs, outputs)
    random = np.random.default_rng(0)
    drawn = [even_points(ordered, names, n, random) for n in (_EXPLAINED, _COMPARED)]
    if any(points is None for points in drawn):
        explainer = shap.TreeExplainer(forest)
        explained = inputs[random.permutation(len(ordered))[:_MOST_EXPLAINED]]
    else:
        # A sampler that has found good values tries few others: by its trials, a parameter that it
        # has settled early would seem to matter little.
        points, _ = _numbers(pd.concat([ordered[[*names]], *drawn]), domains)
        explained, compared = np.split(points[len(ordered) :], [_EXPLAINED])
        explainer = shap.TreeExplainer(forest, data=compared, feature_perturbation="interventional")
    found = np.asarray(explainer.shap_values(explained, check_additivity=False))
    # A parameter's columns move a trial together, so they are added before the sign is dropped.
    each = [np.abs(found[:, owners == i].sum(axis=1)).mean() for i in range(len(names))]
    moved: NDArray[np.float64] = np.array(each)
    return moved, getattr(forest, "oob_score_", None)


def _numbers(
    points: pd.DataFrame, domains: Mapping[str, Any]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Inputs [n_points, n_columns] for a forest, and the parameter's position of each column.

    Categories are one column each; a gap is below every value, so that one split sets it apart.
    """
    columns: list[NDArray[np.float64]] = []
    owners: list[int] = []
    for i, (name, values) in enumerate(points.items()):
        domain: dict[str, Any] = domains[str(name)]
        if "choices" in domain:
            kinds = sorted(values.dropna().unique(), key=str)
            columns += [(values == kind).fillna(False).to_numpy(float) for kind in kinds]
            owners += [i] * len(kinds)
        else:
            numbers = values.to_numpy(float, na_value=np.nan)
            span = domain["high"] - domain["low"]
            columns.append(np.nan_to_num(numbers, nan=domain["low"] - span - 1))
            owners.append(i)
    return np.stack(columns, axis=1), np.array(owners)
