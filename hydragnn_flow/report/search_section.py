"""Section of the report about the search."""

from __future__ import annotations

from collections.abc import Sequence

import optuna
import pandas as pd
from matplotlib.figure import Figure

from hydragnn_flow.report.figures.search import learning_curves
from hydragnn_flow.report.importance import FEWEST, parameter_importance
from hydragnn_flow.report.parallel_coordinates import parallel_coordinates
from hydragnn_flow.report.search_plots import importance_bars, pareto_front, rung_curves
from hydragnn_flow.report.trials_frame import ranking
from hydragnn_flow.segment import SegmentResult


def search_figures(
    study: optuna.Study,
    frame: pd.DataFrame,
    segments: Sequence[SegmentResult],
    rungs: Sequence[int] = (),
) -> dict[str, tuple[Figure, str]]:
    """The figures that there is data for, and a description of each.

    Parameters
    ----------
    study, frame
        See :func:`hydragnn_flow.report.trials_frame.study_frame_of`.
    segments
        Of the run.
    rungs
        Epochs at which trials are judged.

    Returns
    -------
    dict
        ``curves``, ``coordinates``, ``importance``, ``pareto``, in this order.
    """
    found: dict[str, tuple[Figure, str]] = {}
    curves = learning_curves(segments)
    if any(curves.values()):
        drawn = rung_curves(frame, curves, rungs)
        found["curves"] = drawn, "Validation loss of the trials against the epoch"
    order = list(frame.attrs["parameters"])
    importance = None
    if len(ranking(frame)) >= FEWEST:
        importance = parameter_importance(study, frame)
        order = list(importance["parameter"])
    if order and len(ranking(frame)) > 1:
        drawn = parallel_coordinates(frame, order)
        found["coordinates"] = drawn, "A line through the parameters of every trial to its value"
    if importance is not None:
        found["importance"] = importance_bars(importance), "Bars of every parameter's importance"
    if "pareto" in frame and frame["pareto"].any():
        found["pareto"] = pareto_front(frame), "Trials by their objectives, the Pareto front marked"
    return found
