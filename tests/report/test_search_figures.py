"""The pictures of a search show all that matters, of ten trials and of thousands."""

import matplotlib as mpl
import optuna
import pytest
from optuna.trial import TrialState, create_trial
from report_cases import Made
from search_cases import RUNGS, made_study

from hydragnn_flow import InputError, importance_frame, segments_frame
from hydragnn_flow.report import figures
from hydragnn_flow.report.html import read_run
from hydragnn_flow.report.style import embed
from hydragnn_flow.report.trials_frame import best_first, ranking, study_frame


def framed(count, objectives=1):
    study, segments = made_study(count, objectives)
    return study, study_frame(study, segments, ["val_error", "seconds"][:objectives]), segments


def keys(figure):
    return {text.get_text() for legend in figure.legends for text in legend.get_texts()}


def test_history_shows_complete_and_pruned_trials_the_best_and_the_chosen(finished):
    run = read_run(finished.directory)
    figure = figures.history(run.study, run.trials, {8})
    axes, states = figure.axes[0], list(finished.states.values())
    complete, _, pruned, ring = (len(dots.get_offsets()) for dots in axes.collections)
    assert (complete, pruned, ring) == (states.count("complete"), states.count("pruned"), 1)
    assert axes.lines[0].get_ydata()[-1] == min(
        loss for n, loss in finished.losses.items() if finished.states[n] == "complete"
    )
    assert {"pruned", "in the ensemble"} <= keys(figure) and axes.get_yscale() == "log"


@pytest.mark.parametrize(
    ("count", "objectives", "names"),
    [(60, 2, ["importance", "slices", "pareto"]), (60, 1, ["importance", "slices"]), (5, 1, [])],
)
def test_the_report_gets_what_there_is_data_for(count, objectives, names):
    study, frame, _ = framed(count, objectives)
    style = dict(mpl.rcParams)
    found = figures.search_figures(study, frame)
    assert list(found) == names
    assert dict(mpl.rcParams) == style, "Optuna's style is not that of the figures drawn next"
    for figure in found.values():
        assert embed(figure).width == 902 and not any(axes.get_title() for axes in figure.axes)
    if "slices" in found:
        shown = {axes.get_xlabel() for axes in found["slices"].axes[:-1]}
        assert shown == {"mpnn_type", "learning_rate", "hidden_dim", "num_gaussians", "dropout"}
        ranked = len(ranking(frame))  # pruned ones too
        assert len(found["slices"].axes[0].collections[0].get_offsets()) == ranked
    if "pareto" in found:
        assert "Best Trial" in keys(found["pareto"])


def test_importance_and_segments_are_tables_too(finished, tmp_path):
    found = importance_frame(finished.directory)
    assert found["importance"].is_monotonic_decreasing
    assert found["importance"].sum() == pytest.approx(1)
    assert "Architecture.mpnn_type" in set(found["parameter"])
    segments = segments_frame(finished.directory)
    assert segments["number"].tolist() == [one["number"] for one in finished.segments]
    with pytest.raises(InputError, match="nowhere"):
        segments_frame(tmp_path / "nowhere")
    with pytest.raises(InputError, match="6 trials have a value"):
        importance_frame(Made(tmp_path / "few", trials=7).directory)


def test_curves_of_the_best_are_strong_and_thousands_are_thinned_out():
    _, frame, segments = framed(2000)
    figure = figures.trial_curves(frame, segments, RUNGS)
    *strong, a, b, c = figure.axes[0].lines
    assert [line.get_xdata()[0] for line in (a, b, c)] == list(RUNGS)
    best = frame.loc[ranking(frame).index[:5], "trial"]
    assert [key.get_label() for key in strong] == [f"trial {number}" for number in best]
    for line, number in zip(strong, best, strict=True):
        assert line.get_ydata()[-1] == segments[number].history[-1][-1]
    assert 300 < len(figure.axes[0].collections[0].get_paths()) <= 500
    assert figure.axes[0].get_xscale() == "log"


@pytest.mark.parametrize("value", [0.0, -1.0, 0.3, float("inf"), None])
@pytest.mark.parametrize("state", ["COMPLETE", "PRUNED", "FAIL", "RUNNING"])
def test_one_odd_trial_can_be_drawn(value, state):
    values = [1.0 if value is None else value] if state == "COMPLETE" else None
    study = optuna.create_study()
    study.add_trial(create_trial(state=TrialState[state], values=values))
    frame = study_frame(study, [])
    drawn = figures.history(study, frame)
    assert (drawn is None) == (state != "COMPLETE" or value == float("inf"))
    if drawn is not None:
        embed(drawn)
    assert figures.trial_curves(frame, []) is None and figures.search_figures(study, frame) == {}


def test_of_throughput_more_is_better():
    study = optuna.create_study(directions=["maximize", "minimize"])
    values = [(10.0, 3.0), (30.0, 9.0), (20.0, 2.0), (5.0, 1.0), (25.0, 9.5)]
    study.add_trials([create_trial(values=[*both]) for both in values])
    study.add_trial(create_trial(state=TrialState.FAIL))
    frame = study_frame(study, [], ["throughput", "joules"])
    assert list(best_first(frame)["trial"]) == [1, 2, 3, 4, 0, 5]
    (pareto,) = figures.search_figures(study, frame).values()
    best = pareto.axes[0].collections[-1].get_offsets()
    assert sorted(best[:, 0]) == [5.0, 20.0, 30.0]
    assert pareto.axes[0].get_xlabel() == "throughput [structures/s]"
