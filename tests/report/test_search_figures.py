"""The pictures of a search show all that matters, of ten trials and of thousands."""

import optuna
import pytest
from optuna.trial import TrialState, create_trial
from search_cases import RADIAL, RUNGS, made_study

from hydragnn_flow.report.figures.search import (
    importance_bars,
    learning_curves,
    optimisation_history,
    pareto_front,
    rung_curves,
    search_figures,
)
from hydragnn_flow.report.importance import parameter_importance
from hydragnn_flow.report.pictures import elements, embed
from hydragnn_flow.report.tables import best_first
from hydragnn_flow.report.trials_frame import ranking, study_frame


def frame_of(count, objectives=1):
    study, segments = made_study(count, objectives)
    return study_frame(study, segments, ["val_error", "seconds"][:objectives])


def keys(figure):
    return {text.get_text() for legend in figure.legends for text in legend.get_texts()}


def n_curves(figure):
    axes = figure.axes[0]
    return len(axes.lines) + sum(len(lines.get_paths()) for lines in axes.collections)


def test_trials_beyond_a_limit_are_not_among_the_best():
    frame = frame_of(40)
    frame["violation"] = (frame["value"] < frame["value"].median()).astype(float)
    frame["feasible"] = frame["violation"] == 0
    figure = rung_curves(frame, {number: {1: 1.0, 2: 0.5} for number in frame["trial"]})
    kept = frame[frame["feasible"] & (frame["state"] == "complete")]
    best = kept.nsmallest(5, "value")["trial"]
    strong = {f"trial {number}" for number in best}
    assert {key for key in keys(figure) if key.startswith("trial")} >= strong


def test_thousands_are_thinned_out_and_it_is_said():
    frame = frame_of(2000)
    best = {int(number) for number in frame.loc[ranking(frame).index[:5], "trial"]}
    curves = {number: {1: 1.0, 2: 0.5} for number in frame["trial"]}
    figure = rung_curves(frame, curves, RUNGS)
    assert {f"trial {number}" for number in best} <= keys(figure)
    assert n_curves(figure) == 600 + len(RUNGS)
    assert figure.get_supxlabel().startswith("600 of 2,000 trials are drawn: the best 100")
    assert elements(figure) < 2000  # small enough to stay a vector drawing


def test_curves_of_the_best_are_strong_and_those_a_rung_ended_pale():
    study, segments = made_study(60)
    frame = study_frame(study, segments)
    figure = rung_curves(frame, learning_curves(segments), RUNGS)
    *dashed, a, b, c, d, e = figure.axes[0].lines
    assert [line.get_xdata()[0] for line in dashed] == list(RUNGS)
    best = frame.loc[ranking(frame).index[:5], "trial"]
    for line, number in zip((a, b, c, d, e), best, strict=True):
        assert line.get_ydata()[-1] == segments[number].history[-1][-1]
        assert line.get_linewidth() > 2
    drawn = dict.fromkeys(("failed", "pruned", "running", "waiting", "complete"), 0)
    for state, lines in zip(drawn, figure.axes[0].collections, strict=True):
        drawn[state] = len(lines.get_paths())
    assert drawn["pruned"] == (frame["state"] == "pruned").sum()
    assert drawn["complete"] == (frame["state"] == "complete").sum() - 5
    assert {"pruned", "complete", "rung"} <= keys(figure)
    assert figure.axes[0].get_xscale() == "log"


def test_bars_are_the_importances_and_say_where_a_condition_holds():
    study, segments = made_study(100)
    found = parameter_importance(study, study_frame(study, segments))
    axes = importance_bars(found).axes[0]
    assert [bar.get_width() for bar in axes.patches] == list(found["importance"])
    with_it = int(found.set_index("parameter").loc[RADIAL, "trials"])
    assert sum(f"in {with_it} of 100 trials" in text.get_text() for text in axes.texts) == 1


def test_the_front_stands_out():
    frame = frame_of(200, 2)
    figure = pareto_front(frame)
    within, beyond, front = (len(dots.get_offsets()) for dots in figure.axes[0].collections)
    assert front == frame["pareto"].sum()
    assert within == (frame["state"] == "complete").sum() - front
    assert beyond == 0
    assert figure.axes[0].get_ylabel() == "training time [s]"
    frame["feasible"] = ~frame["pareto"]
    frame["pareto"] = False
    assert "beyond a limit" in keys(pareto_front(frame))


@pytest.mark.parametrize(
    ("value", "state"),
    [(v, s) for v in (0.0, -1.0, 0.3, float("inf")) for s in ("COMPLETE", "PRUNED")]
    + [(None, "FAIL"), (None, "RUNNING")],
)
def test_one_odd_trial_can_be_drawn(value, state):
    study = optuna.create_study()
    values = None if value is None else [value]
    study.add_trial(create_trial(state=TrialState[state], values=values))
    frame = study_frame(study, [])
    curve = rung_curves(frame, {0: {1: 0.5}})
    embed(curve, "")
    assert n_curves(curve) == 1  # it has a curve, whatever its value
    assert n_curves(rung_curves(frame, {})) == 0


def test_one_trial_of_two_objectives_can_be_drawn():
    study = optuna.create_study(directions=["minimize"] * 2)
    for front in (0, 1):
        figure = pareto_front(study_frame(study, []))
        embed(figure, "")
        assert [len(dots.get_offsets()) for dots in figure.axes[0].collections] == [0, 0, front]
        study.add_trial(create_trial(values=[1.0, 0.0]))


def test_the_report_gets_what_there_is_data_for():
    for count, objectives, names in (
        (60, 2, ["curves", "importance", "pareto"]),
        (60, 1, ["curves", "importance"]),
        (5, 1, ["curves"]),
        (1, 1, ["curves"]),
    ):
        study, segments = made_study(count, objectives)
        frame = study_frame(study, segments)
        assert list(search_figures(study, frame, segments, RUNGS)) == names


def test_of_throughput_more_is_better():
    """In the table, in the history and on the edge of the front."""
    study = optuna.create_study(directions=["maximize", "minimize"])
    values = [(10.0, 3.0), (30.0, 9.0), (20.0, 2.0), (5.0, 1.0), (25.0, 9.5)]
    study.add_trials([create_trial(values=[*both]) for both in values])
    study.add_trial(create_trial(state=TrialState.FAIL))
    frame = study_frame(study, [], ["throughput", "joules"])
    assert list(best_first(frame)["trial"]) == [1, 2, 3, 4, 0, 5]
    history, _ = optimisation_history(frame, {})
    best = history.axes[0].lines[0].get_ydata()
    assert list(best) == [10.0, 30.0, 30.0, 30.0, 30.0, 30.0]
    failed = [dots.get_offsets() for dots in history.axes[0].collections][-2]
    assert failed.tolist() == [[5.0, 0.0]], "on the edge where the worst are"
    (edge,) = pareto_front(frame).axes[0].lines
    assert list(edge.get_xdata()) == [5.0, 20.0, 30.0]
    assert edge.get_drawstyle() == "steps-pre"
