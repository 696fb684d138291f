"""Figures of a run: search, importance of parameters, learning curves, and use of the GCDs."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import optuna
import pandas as pd
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.study import Study
from optuna.trial import TrialState, create_trial

from hydragnn_flow.errors import InputError
from hydragnn_flow.report import style
from hydragnn_flow.report.gcd_time import CAUSES
from hydragnn_flow.report.style import BLUE, ORANGE, PALE, RED, SKY, SOFT, WIDE
from hydragnn_flow.report.tables import objective_label, short_names
from hydragnn_flow.report.trials_frame import ranking, study_frame_of, value_columns
from hydragnn_flow.segment import SegmentResult

FEWEST = 30
"""Smallest number of trials for which importance is computed."""
MANY = 50
"""Number of trials at which the best tenth are five; Optuna advises at least as many."""
FEW_TRIALS = f"Fewer than {MANY} trials: take this as a hint."


def evaluator(trials: int) -> PedAnovaImportanceEvaluator:
    """Return Optuna's PED-ANOVA evaluator of hyper-parameter importance for ``trials`` trials.

    It compares a parameter's values in the best tenth of the trials, at least five, with those in
    all trials (Watanabe et al., arXiv:2304.10255). A conditional parameter is compared among the
    trials that have it (Hasegawa et al., arXiv:2601.20800).
    """
    return PedAnovaImportanceEvaluator(target_quantile=max(0.1, 5 / trials))


def as_complete(study: Study, values: Mapping[int, float], names: Mapping[str, str]) -> Study:
    """Copy an Optuna study in memory, with its trials marked as complete and given new values.

    Optuna's evaluators and figures leave out pruned trials, which are most trials of a search with
    rungs.

    Parameters
    ----------
    study
        Trials of the search.
    values
        Value that each trial gets, by number of the trial; trials without a value get the state
        failed in the copy.
    names
        Name that each parameter to keep has in the copy, by its dotted path.
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


_COLOURS = (BLUE, BLUE, SKY, ORANGE, style.PURPLE, style.GREEN, RED, style.WINE, "white", "white")
"""Colours of the causes, in the order of `CAUSES`."""
_HATCHES = {"at work": "...", "queue": "///", "away": "\\\\\\"}
Curve = NDArray[np.float64]
"""Epoch and validation error in each row, [n_epochs, 2]."""


def history(
    study: optuna.Study, frame: pd.DataFrame, members: Collection[int] = ()
) -> Figure | None:
    """Draw the objective value of ended trials against the trial number, and the best so far.

    Ended trials are the complete and the pruned ones. The best is among complete trials that kept
    their limits. A pruned trial's value is that of fewer epochs.

    Parameters
    ----------
    study, frame
        Study and table of trials, from :func:`hydragnn_flow.report.trials_frame.study_frame_of`.
    members
        Numbers of the trials chosen for the ensemble.

    Returns
    -------
    Figure or None
        None without a complete trial.
    """
    column = value_columns(frame.attrs["objectives"])[0]
    label = objective_label(frame.attrs["objectives"][0])
    known = frame[np.isfinite(frame[column])]
    if not (known["state"] == "complete").any():
        return None
    several = {} if len(study.directions) == 1 else {"target": lambda trial: trial.values[0]}
    figure = _optunas("optimization_history", study, target_name=label, **several)
    (axes,) = figure.axes
    chosen = known["trial"].isin(members)
    for name, own, look in (
        ("pruned", known["state"] == "pruned", {"marker": "v", "edgecolors": PALE}),
        ("in the ensemble", chosen, {"s": 170, "edgecolors": style.INK}),
    ):
        x, y = known[own]["trial"], known[own][column]
        axes.scatter(x, y, label=name, facecolors="none", zorder=4, **look)
    style.value_axis(axes, "y", known[column].to_numpy())
    axes.set(xlabel="trial", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.legend_above(figure, axes.get_legend_handles_labels()[0])
    return figure


def importance_frame(run_directory: str | Path) -> pd.DataFrame:
    """Return a table of how much each hyper-parameter of a run mattered, the largest first.

    Pruned trials count by how far they came.

    Returns
    -------
    pandas.DataFrame
        ``parameter``, by dotted path, and its ``importance`` (PED-ANOVA); all add up to 1.

    Raises
    ------
    InputError
        If fewer than 30 trials have a value, or the search has not begun.
    """
    study, frame = study_frame_of(Path(run_directory))
    ranked = ranking(frame)
    if len(ranked) < FEWEST:
        raise InputError(
            f"{run_directory}: {len(ranked)} trials have a value, too few to tell what mattered; "
            f"search on, to {FEWEST} or more"
        )
    names = {path: path for path in frame.attrs["parameters"]}
    copy = _by_rank(study, frame.loc[ranked.index, "trial"], names)
    found = optuna.importance.get_param_importances(copy, evaluator=evaluator(len(ranked)))
    return pd.DataFrame(found.items(), columns=["parameter", "importance"])


def _by_rank(study: optuna.Study, numbers: pd.Series[int], names: Mapping[str, str]) -> Study:
    """Copy a study with the trials ``numbers``, the best first, whose values are their ranks."""
    ranks = {int(number): rank for rank, number in enumerate(numbers)}
    return as_complete(study, ranks, names)


def search_figures(study: optuna.Study, frame: pd.DataFrame) -> dict[str, Figure]:
    """Draw how hyper-parameters influenced the objective, and the Pareto front, as data allow.

    Parameters
    ----------
    study, frame
        Study and table of trials, from :func:`hydragnn_flow.report.trials_frame.study_frame_of`.

    Returns
    -------
    dict
        Figures by name: ``importance``, ``slices`` (value against each parameter) and ``pareto``;
        a figure without enough data is absent.
    """
    found: dict[str, Figure] = {}
    ranked, label = ranking(frame), objective_label(frame.attrs["objectives"][0])
    if len(ranked) >= FEWEST:
        paths = list(frame.attrs["parameters"])
        names = dict(zip(paths, short_names(paths), strict=True))
        numbers = frame.loc[ranked.index, "trial"].astype(int)
        copy = _by_rank(study, numbers, names)
        drawn = _optunas("param_importances", copy, evaluator=evaluator(len(ranked)))
        drawn.axes[0].set(xlabel="importance (PED-ANOVA), of all together 1", ylabel="")
        found["importance"] = drawn
        # More parameters or marks would hide each other.
        bars = [bar.get_text() for bar in drawn.axes[0].get_yticklabels()][-6:]
        shown = ranked[:1000]
        best = dict(zip(numbers[: len(shown)], shown, strict=True))
        copy = as_complete(study, best, {p: name for p, name in names.items() if name in bars})
        found["slices"] = _optunas("slice", copy, target_name=label)
        style.value_axis(found["slices"].axes[0], "y", np.asarray(shown, dtype=np.float64))
        for axes in found["slices"].axes[:-1]:
            axes.tick_params(axis="x", which="both", rotation=60)
    if len(study.directions) in (2, 3) and study.best_trials:
        objectives = [*map(objective_label, frame.attrs["objectives"])]
        found["pareto"] = drawn = _optunas("pareto_front", study, target_names=objectives)
        style.legend_above(drawn, drawn.axes[0].get_legend_handles_labels()[0])
    return found


def _optunas(kind: str, study: optuna.Study, **how: Any) -> Figure:
    """Return the figure that Optuna's function ``plot_<kind>`` draws, in the style of the report.

    ``how`` are further arguments of that function.
    """
    if "matplotlib.pyplot" not in sys.modules:
        mpl.use("agg")  # pyplot would look for a display
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as plots

    with mpl.rc_context(), warnings.catch_warnings():
        # All of them are called experimental; PED-ANOVA warns of rare conditions.
        warnings.simplefilter("ignore")
        figure = np.atleast_1d(getattr(plots, f"plot_{kind}")(study, **how))[0].figure
        assert isinstance(figure, Figure)
        pyplot.close(figure)
    figure.set_layout_engine("constrained")
    figure.set(figwidth=WIDE, figheight=4.2, facecolor="white")
    figure.suptitle("")
    for axes in figure.axes:
        axes.set_title("")
        axes.set_title("", loc="left")
        if (legend := axes.get_legend()) is not None:
            legend.remove()
        if axes.name != "3d" and axes.get_label() != "<colorbar>":
            style.tidy(axes)
    return figure


def learning_curves(segments: Iterable[SegmentResult]) -> dict[tuple[str, int], Curve]:
    """Return learning curves by kind (``trial`` or ``member``) and number of the trial or member.

    A curve has an epoch and the validation error (the criterion) in each row, [n_epochs, 2]. If an
    epoch was trained twice, the later error counts.
    """
    curves: dict[tuple[str, int], dict[int, float]] = {}
    for s in segments:
        known = {int(epoch): error for epoch, *_, error in s.history if np.isfinite(error)}
        curves.setdefault((s.kind, s.number), {}).update(known)
    return {who: np.array(sorted(of.items()), dtype=float) for who, of in curves.items() if of}


def trial_curves(
    frame: pd.DataFrame, segments: Iterable[SegmentResult], rungs: Sequence[int] = ()
) -> Figure | None:
    """Draw validation errors of trials against epochs, the five best trials in colour.

    The result is None if no trial has an error.

    Parameters
    ----------
    frame
        Table of trials from :func:`hydragnn_flow.report.trials_frame.trials_frame`.
    segments
        Results of the run's segments (jobs of training).
    rungs
        Epochs at which trials are judged.
    """
    curves = learning_curves(segments)
    ranked = [*dict.fromkeys([*frame.loc[ranking(frame).index, "trial"], *frame["trial"]])]
    order = [number for number in ranked if ("trial", number) in curves]
    if not order:
        return None
    complete = {*frame[frame["state"] == "complete"]["trial"]}
    best = [number for number in order if number in complete][:5]
    others = [curves["trial", number] for number in order if number not in best]
    figure = style.new_figure(WIDE, 4.4)
    axes = figure.add_subplot()
    keys = []
    for number, colour in zip(best, style.PALETTE, strict=False):
        look: dict[str, Any] = {"color": colour, "lw": 2.2, "zorder": 6}
        keys += axes.plot(*curves["trial", number].T, label=f"trial {number}", **look)
    pale = others[:: 1 + len(others) // 500]  # more would hide each other
    alpha = 0.3 + 0.4 * min(1.0, 8 / max(len(pale), 1) ** 0.5)  # paler where they crowd
    axes.add_collection(LineCollection(pale, colors=PALE, alpha=alpha, lw=1.2))
    for rung in rungs:
        axes.axvline(rung, color=SOFT, lw=0.9, ls="--", zorder=1)
    points = np.concatenate([curves["trial", number] for number in order])
    style.value_axis(axes, "y", points[:, 1])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if rungs and points[:, 0].max() >= 9 * rungs[0]:
        # Rungs are at equal distances, so that the many short curves are not a heap at the edge.
        axes.set_xscale("log")
        axes.set_xticks([1, *rungs], map(str, [1, *rungs]))
        axes.minorticks_off()
    axes.set(xlabel="epoch", ylabel="validation error")
    style.tidy(axes, grid="y")
    style.legend_above(figure, keys)
    return figure


def gcd_time_figure(frame: pd.DataFrame) -> Figure:
    """Draw how many GCDs (accelerators) were busy over time, and how many idle, by cause.

    Parameters
    ----------
    frame
        Table of the GCDs' use over time, from :func:`hydragnn_flow.report.gcd_time.gcd_time`.
    """
    ends = np.append(0.0, frame["seconds"].where(~frame["pause"], 0.0).cumsum())
    units = (1.0, "s", 600.0), (60.0, "min", 14_400.0), (3600.0, "h", np.inf)
    scale, unit = next((scale, unit) for scale, unit, most in units if ends[-1] < most)
    figure = style.new_figure(WIDE, 4.2)
    axes = figure.add_subplot()
    edges, base, keys = np.linspace(0.0, ends[-1], 161), np.zeros(160), []
    for (name, meaning), colour in zip(CAUSES.items(), _COLOURS, strict=True):
        total = np.append(0.0, (frame[name] * np.diff(ends)).cumsum())
        if total[-1]:
            look: dict[str, Any] = {"facecolor": colour, "linewidth": 0.0, "edgecolor": colour}
            if name in _HATCHES:
                look |= {"hatch": _HATCHES[name], "edgecolor": PALE}
            top = base + np.diff(np.interp(edges, ends, total)) / edges[1]
            axes.stairs(top, edges / scale, baseline=base, fill=True, **look)
            keys.append(Patch(label=meaning, **look))
            base = top
    for number in np.flatnonzero(frame["pause"]):
        at, lasted = ends[number] / scale, frame["seconds"].iloc[number] / 3600
        axes.axvline(at, color=SOFT, lw=1.2, ls=":")
        axes.text(at, base.max(), f"stopped for {lasted:.3g} h", ha="center", fontsize=9)
    axes.set(xlim=(0, ends[-1] / scale), ylim=(0, base.max() * 1.02), ylabel="GCDs")
    axes.set_xlabel(f"time since the first segment was ready [{unit}]")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    style.tidy(axes, grid="y")
    style.legend_above(figure, keys, columns=3)
    return figure
