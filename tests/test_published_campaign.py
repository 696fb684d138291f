"""A published campaign, simulated both ways: as it was run, and here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from campaign_checks.published import QUICK, Settings, practice, rows, table
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow.simulation.truth import Cost

_EPOCH_SECONDS = st.lists(st.floats(1.0, 2000.0), min_size=1, max_size=40)


@given(_EPOCH_SECONDS)
def test_first_come_first_served_is_no_shorter_than_its_work(seconds: list[float]) -> None:
    settings = Settings(nodes=26, nodes_per_trial=4, trials=len(seconds))
    costs = [Cost(8.0, each, each, 1, 0.5, 1.0) for each in seconds]
    found = practice(costs, settings)
    takes = [8.0 + settings.epochs * each for each in seconds]
    at_once = 6
    assert found.makespan >= max(max(takes), sum(takes) / at_once)
    assert found.makespan <= sum(takes) / at_once + max(takes) + len(takes) * 10 * at_once
    in_time = found.makespan <= 3600 * settings.hours
    assert (found.ended_in_time == len(seconds)) == in_time
    # Two of the 26 nodes are of no use to trials of four.
    assert 0 < found.busy < found.occupied <= 24 / 26
    work = sum(takes) * settings.nodes_per_trial
    assert found.busy * found.makespan * settings.nodes == pytest.approx(0.5 * work)


def test_what_was_published_and_what_is_simulated_stand_apart(tmp_path: Path) -> None:
    settings = replace(QUICK, stand_ins=30, trials=6)
    found = rows(tmp_path, settings, lambda words: None)
    given_, compared = found[:7], found[7:]
    for row in given_:
        assert row.published and row.source.startswith("https://")
        assert (row.as_published, row.ours, row.pruned) == (None, None, None)
    for row in compared:
        assert row.as_published is not None
        assert bool(row.published) == bool(row.source)
    by_label = {row.label: row for row in compared}
    held = by_label["node-hours of the batch job"]
    hours = by_label["time until the last trial has ended"]
    assert hours.as_published and held.as_published == pytest.approx(
        settings.nodes * hours.as_published
    )
    heads = table(found).columns
    assert [head.startswith("simulated") for head in heads] == [False, False, True, True, True]
