"""A scaling study as a file, a table, a picture, a section of the report and as sentences."""

import json
from dataclasses import replace
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scaling_cases import study

from hydragnn_flow.errors import InputError
from hydragnn_flow.report.html import write_report
from hydragnn_flow.report.scaling import (
    Point,
    Study,
    scaling_figure,
    scaling_grid,
    scaling_table,
    studies,
    verdicts,
)

WEAK = {2: 0.9, 4: 0.8, 8: 0.7}
STRONG = {2: 0.8, 4: 0.4, 8: 0.2}


def test_a_study_outlives_its_process(tmp_path):
    found = study(STRONG, WEAK).with_point(Point(16, 1, fault="out of memory"))
    path = found.write(tmp_path)
    assert Study.read(path) == found
    assert studies(tmp_path) == [found]
    assert studies(tmp_path / "elsewhere") == []
    values = json.loads(path.read_text())
    for damaged in ({**values, "version": 9}, {**values, "points": [{}]}, []):
        path.write_text(json.dumps(damaged))
        with pytest.raises(InputError, match="delete it and measure again"):
            Study.read(path)


def test_a_width_that_is_measured_again_takes_the_place_of_the_first():
    found = study(STRONG, WEAK)
    point = replace(found.of("strong")[1], nodes=7)
    again = found.with_point(point)
    assert len(again.points) == len(found.points)
    assert again.of("strong")[1] == point and again.of("weak") == found.of("weak")


@given(st.dictionaries(st.sampled_from([2, 4, 8, 16]), st.floats(0.01, 1.2), min_size=1))
def test_efficiency_is_that_of_each_gcd(efficient):
    found = study(efficient, efficient)
    table = scaling_table(found).set_index(["scaling", "GCDs"])
    for kind in ("weak", "strong"):
        assert table.loc[(kind, 1), "efficiency"] == pytest.approx(100)
        for gcds, efficiency in efficient.items():
            row = table.loc[(kind, gcds)]
            assert row["efficiency"] == pytest.approx(100 * efficiency)
            assert row["speed"] == pytest.approx(gcds * efficiency * 160)
            assert row["sum"] == pytest.approx(98)
            parts = ("reading", "computing", "exchanging", "waiting")
            assert sum(row[name] for name in parts) == pytest.approx(100)


def test_it_is_said_where_more_gcds_stop_paying():
    weak, strong = verdicts(study(STRONG, WEAK))
    assert weak == (
        "weak scaling: 8 GCDs of 4 nodes pay: each GCD trains 70 % of the graphs that it trains on "
        "1"
    )
    assert strong == (
        "strong scaling: beyond 2 GCDs it does not pay: on 4 GCDs of 2 nodes each GCD trains 40 % "
        "of the graphs that it trains on 1; trials side by side on 2 GCDs each train 2 times as "
        "many together"
    )


def test_what_was_not_measured_is_said(tmp_path):
    found = study({}, {}).with_point(Point(32, 1, fault="a batch has 16 graphs"))
    assert verdicts(found) == ["32 GCDs: not measured: a batch has 16 graphs"]


def test_the_table_fits_a_terminal():
    text = StringIO()
    Console(file=text, width=80).print(scaling_grid(study(STRONG, WEAK)))
    assert "…" not in text.getvalue()
    assert len(text.getvalue().splitlines()) >= 10


def test_the_picture_shows_both_kinds_and_all_parts():
    speed, weak, strong = scaling_figure(study(STRONG, WEAK)).axes
    assert len(speed.lines) == 4
    for axes in (weak, strong):
        assert len(axes.patches) == 4 * 4
        tops = [bar.get_y() + bar.get_height() for bar in axes.patches[-4:]]
        assert tops == pytest.approx([100] * 4)
    assert [label.get_text() for label in weak.get_xticklabels()] == ["1", "2", "4", "8"]


def test_the_report_has_the_studies_of_a_run(searching):
    assert 'id="scaling"' not in write_report(searching.directory).read_text()
    study(STRONG, WEAK).write(searching.directory)
    replace(study({2: 0.9}, {}), trial=3).write(searching.directory)
    page = write_report(searching.directory).read_text()
    assert 'id="scaling"' in page
    assert "The network of the configuration on cluster." in page
    assert "The network of trial 3 on cluster." in page
    assert "beyond 2 GCDs it does not pay" in page
