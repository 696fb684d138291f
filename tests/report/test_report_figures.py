"""Figures show all of their data and survive its corners."""

import json

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from report_cases import predictions

from hydragnn_flow.config.network import MPNN_TYPES
from hydragnn_flow.report import figures
from hydragnn_flow.report.html import mpnn_types
from hydragnn_flow.report.pictures import elements, embed
from hydragnn_flow.report.run_files import read_run
from hydragnn_flow.report.style import colours, new_figure
from hydragnn_flow.report.target_values import targets_of


def trials(states, values):
    """The columns that the history reads."""
    columns = {"trial": range(len(states)), "state": states}
    frame = pd.DataFrame({**columns, "value": pd.Series(values, dtype="float64")})
    frame.attrs["objectives"] = ["val_error"]
    return frame


def shown(figure):
    return {text.get_text() for legend in figure.legends for text in legend.get_texts()}


def test_history_shows_every_trial_and_its_state(finished):
    run = read_run(finished.directory)
    types = {number: name for (kind, number), name in mpnn_types(run).items() if kind == "trial"}
    figure, _ = figures.optimisation_history(run.trials, types, {8})
    *marks, ring = figure.axes[0].collections
    assert sum(len(mark.get_offsets()) for mark in marks) == 16
    assert len(ring.get_offsets()) == 1
    assert {"complete", "pruned", "failed", "best so far", "in the ensemble"} <= shown(figure)
    assert figure.axes[0].get_yscale() == "log"
    (best,) = figure.axes[0].lines
    assert best.get_ydata()[-1] == min(
        loss for n, loss in finished.losses.items() if finished.states[n] == "complete"
    )
    assert (np.diff(best.get_ydata()) <= 0).all()


def test_thirteen_types_have_colours_of_their_own_and_keys_in_the_figure():
    names = sorted(MPNN_TYPES)[:13]
    states = ("running", "complete", "pruned", "failed")
    frame = trials([states[n % 4] for n in range(26)], [1.0 + n for n in range(26)])
    figure, _ = figures.optimisation_history(frame, {n: names[n % 13] for n in range(26)}, {1})
    figure.canvas.draw()
    (legend,) = figure.legends
    box, whole = legend.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and box.y1 <= whole.y1
    assert len(set(colours(names).values())) == len(names) == 13


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 0.0, -1.0, 0.3])
def test_history_of_odd_trials(value):
    states = ("running", "waiting", "complete", "pruned", "failed")
    figure, _ = figures.optimisation_history(trials(states, [value] * 5), {})
    embed(figure, "")
    *marks, ring = figure.axes[0].collections
    has_value = value is not None and np.isfinite(value)
    # Without a value what has ended stands at the edge, and what runs or waits nowhere yet.
    assert sum(len(mark.get_offsets()) for mark in marks) == (5 if has_value else 3)
    assert len(ring.get_offsets()) == 0
    assert len(figure.axes[0].lines) == has_value


def test_parity_of_a_large_table_draws_the_worst_and_tells_of_all():
    _, nodes = predictions(np.random.default_rng(0), graphs=60)
    nodes.loc[77, "forces_y_mean"] += 25.0
    (forces,) = targets_of(nodes)
    figure, marks = figures.parity(forces)
    bars, dots = figure.axes[0].collections
    worst = np.argsort(-np.abs(forces.errors))
    assert len(dots.get_offsets()) == 2000
    assert len(bars.get_segments()) == 300
    for panel, values in zip(figure.axes, (forces.mean, forces.errors), strict=True):
        drawn = {tuple(row) for row in np.round(panel.collections[1].get_offsets(), 9)}
        for i in worst[:600]:
            assert (round(forces.reference[i], 9), round(values[i], 9)) in drawn
        low, high = panel.get_ylim()
        assert low < values.min() and values.max() < high, "no value is beyond the panel"
        ends = [segment[:, 1].mean() for segment in panel.collections[0].get_segments()]
        assert np.isclose(ends, values[worst[0]]).any(), "the worst has its bar"
    assert f"{len(forces.reference):,} values in 60 structures" in figure.get_suptitle()
    assert marks.labels[int(np.argmax(marks.y))].startswith(f"structure {nodes['graph_id'][77]}:")
    assert elements(figure) > 1000
    assert embed(figure, "").source.startswith("data:image/png;base64,")


def test_parity_says_units_and_draws_small_tables_as_vectors():
    graphs, _ = predictions(np.random.default_rng(0), graphs=20)
    (energy,) = targets_of(graphs)
    measures = {
        "mae": {"value": 0.125, "lo": 0.1, "hi": 0.15},
        "r2": {"value": 0.5, "lo": -0.25, "hi": 1.0},
    }
    figure, _ = figures.parity(energy, measures)
    assert figure.axes[1].get_xlabel() == "reference energy [eV]"
    assert figure.axes[0].get_ylabel() == "predicted energy [eV]"
    assert figure.get_suptitle() == (
        "MAE 0.125 (0.100–0.150), R² 0.500 (−0.250 to 1)\n20 values in 20 structures"
    )
    assert embed(figure, "").source.startswith("data:image/svg+xml;base64,")


def test_a_drawing_of_few_but_long_lines_becomes_pixels():
    figure = new_figure(5.0, 3.0)
    axes = figure.add_subplot()
    lines = np.random.default_rng(0).random((40, 400, 2))
    axes.add_collection(LineCollection(list(lines)))
    assert elements(figure) < 1000
    picture = embed(figure, "")
    assert picture.source.startswith("data:image/png;base64,") and len(picture.source) < 200_000


def test_marks_are_where_the_picture_shows_them():
    graphs, _ = predictions(np.random.default_rng(0), graphs=20)
    (energy,) = targets_of(graphs)
    figure, marks = figures.parity(energy)
    found = json.loads(embed(figure, "", marks).marks)
    assert len(found) == 20
    axes = figure.axes[0]
    box = axes.get_position()
    for (x, y, label), graph in zip(found, energy.graph_id, strict=True):
        assert 1000 * box.x0 < x < 1000 * box.x1 and 1000 * (1 - box.y1) < y < 1000 * (1 - box.y0)
        assert label.startswith(f"structure {graph}: predicted ")
    along = np.array([[x for x, _, _ in found], [1000 - y for _, y, _ in found]]) / 1000
    fractions = [(a - lo) / (hi - lo) for a, lo, hi in zip(
        along, (box.x0, box.y0), (box.x1, box.y1), strict=True)]  # fmt: skip
    low, high = axes.get_xlim()
    for fraction, values in zip(fractions, (energy.reference, energy.mean), strict=True):
        np.testing.assert_allclose(low + fraction * (high - low), values, atol=0.01 * (high - low))


def test_deviations_are_compared_with_all_errors_large_and_unexpected():
    _, nodes = predictions(np.random.default_rng(0), graphs=60)
    (forces,) = targets_of(nodes)
    figure, marks = figures.deviation(forces)
    (dots,) = figure.axes[0].collections
    drawn = {tuple(row) for row in np.round(dots.get_offsets(), 9)}
    error = np.abs(forces.errors)
    for worth in (error, error / forces.std):
        for i in np.argsort(-worth)[:100]:
            assert (round(forces.std[i], 9), round(error[i], 9)) in drawn
    low, high = figure.axes[0].get_ylim()
    assert error.max() < high and (np.array(dots.get_offsets())[:, 1] > low).all()
    assert len(marks.labels) == 200
    *_, bins = figure.axes[0].lines
    x, y = bins.get_data()
    assert (np.diff(x) > 0).all() and len(x) == 10
    np.testing.assert_allclose(y / x, 1.1, atol=0.1)  # the cases' errors are 1.1 deviations


def test_members_curves_begin_with_their_trials(finished):
    run = read_run(finished.directory)
    assert run.ensemble is not None
    figure = figures.member_curves(run.segments, run.ensemble["members"])
    assert figure is not None
    lines = [line for line in figure.axes[0].lines if line.get_linestyle() == "-"]
    for k in range(3):
        before, own = (line.get_xdata() for line in lines[2 * k : 2 * k + 2])
        assert list(before) == list(range(1, 22)) and list(own) == list(range(21, 31))
    trial = run.ensemble["members"][2]["trial"]
    assert f"member 2, trial {trial}" in shown(figure)
    assert figures.member_curves([], run.ensemble["members"]) is None


def test_one_value_without_spread_can_be_drawn():
    graphs, _ = predictions(np.random.default_rng(0), graphs=1)
    graphs["energy_mean"], graphs["energy_std"] = graphs["energy"], 0.0
    targets = targets_of(graphs)
    (parity, _), coverage = figures.parity(targets[0]), figures.coverage(targets, 0.9)
    deviation, marks = figures.deviation(targets[0])
    for figure in (parity, coverage, deviation):
        embed(figure, "", marks if figure is deviation else None)
    _, dots = parity.axes[0].collections
    assert dots.get_offsets().tolist() == [[graphs["energy"][0], graphs["energy"][0]]]
    # It is within any interval, however narrow.
    assert any("energy: 90 % interval holds 100" in text for text in shown(coverage))


def test_coverage_has_a_curve_and_a_point_for_every_target():
    graphs, nodes = predictions(np.random.default_rng(0))
    figure = figures.coverage(targets_of(graphs) + targets_of(nodes), 0.9)
    texts = shown(figure)
    for name in ("energy", "forces"):
        assert f"{name}: mean ± z·std" in texts
        assert any(text.startswith(f"{name}: 90 % interval holds") for text in texts)
