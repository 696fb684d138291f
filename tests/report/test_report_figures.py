"""Figures show all of their data and survive its corners."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from report_cases import Made, predictions

from hydragnn_flow.config.network import MPNN_TYPES
from hydragnn_flow.report import figures
from hydragnn_flow.report.html import elements, embed, mpnn_types
from hydragnn_flow.report.run_files import read_run
from hydragnn_flow.report.style import colours
from hydragnn_flow.report.target_values import targets_of


def trials(states: Sequence[str], values: Sequence[float | None]) -> pd.DataFrame:
    """The columns that the history reads."""
    columns = {"trial": range(len(states)), "state": states}
    frame = pd.DataFrame({**columns, "value": pd.Series(values, dtype="float64")})
    frame.attrs["objectives"] = ["val_loss"]
    return frame


def shown(figure: object) -> set[str]:
    return {text.get_text() for legend in figure.legends for text in legend.get_texts()}


def test_history_shows_every_trial_and_its_state(finished: Made) -> None:
    run = read_run(finished.directory)
    types = {number: name for (kind, number), name in mpnn_types(run).items() if kind == "trial"}
    figure = figures.optimisation_history(run.trials, types, {8})
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


def test_thirteen_types_have_colours_of_their_own_and_keys_in_the_figure() -> None:
    names = sorted(MPNN_TYPES)[:13]
    states = ("running", "complete", "pruned", "failed")
    frame = trials([states[n % 4] for n in range(26)], [1.0 + n for n in range(26)])
    figure = figures.optimisation_history(frame, {n: names[n % 13] for n in range(26)}, {1})
    figure.canvas.draw()
    (legend,) = figure.legends
    box, whole = legend.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and box.y1 <= whole.y1
    assert len(set(colours(names).values())) == len(names) == 13


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 0.0, -1.0, 0.3])
def test_history_of_odd_trials(value: float | None) -> None:
    states = ("running", "waiting", "complete", "pruned", "failed")
    figure = figures.optimisation_history(trials(states, [value] * 5), {})
    embed(figure, "")
    *marks, ring = figure.axes[0].collections
    has_value = value is not None and np.isfinite(value)
    # Without a value what has ended stands at the edge, and what runs or waits nowhere yet.
    assert sum(len(mark.get_offsets()) for mark in marks) == (5 if has_value else 3)
    assert len(ring.get_offsets()) == 0
    assert len(figure.axes[0].lines) == has_value


def test_parity_of_a_large_table_draws_some_and_tells_of_all() -> None:
    _, nodes = predictions(np.random.default_rng(0), graphs=60)
    (forces,) = targets_of(nodes)
    figure = figures.parity(forces)
    bars, dots = figure.axes[0].collections
    assert len(dots.get_offsets()) == 2000
    assert len(bars.get_segments()) == 300
    assert any(f"{len(forces.reference):,}" in text.get_text() for text in figure.axes[0].texts)
    assert elements(figure) > 2000
    assert embed(figure, "").source.startswith("data:image/png;base64,")


def test_parity_says_units_and_draws_small_tables_as_vectors() -> None:
    graphs, _ = predictions(np.random.default_rng(0), graphs=20)
    (energy,) = targets_of(graphs)
    figure = figures.parity(energy)
    assert figure.axes[1].get_xlabel() == "reference energy [eV]"
    assert figure.axes[0].get_ylabel() == "predicted energy [eV]"
    assert embed(figure, "").source.startswith("data:image/svg+xml;base64,")


def test_one_value_without_spread_can_be_drawn() -> None:
    graphs, _ = predictions(np.random.default_rng(0), graphs=1)
    graphs["energy_mean"], graphs["energy_std"] = graphs["energy"], 0.0
    targets = targets_of(graphs)
    parity, coverage = figures.parity(targets[0]), figures.coverage(targets, 0.9)
    for figure in (parity, coverage):
        embed(figure, "")
    _, dots = parity.axes[0].collections
    assert dots.get_offsets().tolist() == [[graphs["energy"][0], graphs["energy"][0]]]
    # It is within any interval, however narrow.
    assert any("energy: 90 % interval holds 100" in text for text in shown(coverage))


def test_coverage_has_a_curve_and_a_point_for_every_target() -> None:
    graphs, nodes = predictions(np.random.default_rng(0))
    figure = figures.coverage(targets_of(graphs) + targets_of(nodes), 0.9)
    texts = shown(figure)
    for name in ("energy", "forces"):
        assert f"{name}: mean ± z·std" in texts
        assert any(text.startswith(f"{name}: 90 % interval holds") for text in texts)
