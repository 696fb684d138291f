"""A profile and a scaling study: as a file, tables, a picture, on the page and in sentences."""

import json
from dataclasses import replace
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hydragnn_flow.errors import InputError
from hydragnn_flow.report import scaling
from hydragnn_flow.report.html import write_report
from hydragnn_flow.report.scaling import Point, Study, studies
from hydragnn_flow.training.profile_result import Parts, TrainingProfile

WEAK = {2: 0.9, 4: 0.8, 8: 0.7}
STRONG = {2: 0.8, 4: 0.4, 8: 0.2}


def profile(gcds=2, batches=1, seconds=0.1, parts=None):
    """A profile whose parts take 98 % of its step, unless they are given."""
    graphs = 16.0 * batches
    known = {"graphs": graphs, "atoms": 30 * graphs, "edges": 900 * graphs, "steps": 100}
    known |= {"seconds": seconds, "peak_memory_gib": 0.5, "joules_per_graph": None}
    parts = parts or Parts(*(share * 0.98 * seconds for share in (0.1, 0.5, 0.3, 0.1)))
    return TrainingProfile(device="cpu", ranks=gcds, parts=parts, **known)


def study(strong, weak):
    """Efficiencies at numbers of GCDs, two on a node, beside one that takes 0.1 s for a batch."""
    points = [Point(1, 1, 1, profile(1, parts=Parts(0.01, 0.088)))]
    for efficient, is_weak in ((strong, False), (weak, True)):
        for gcds, efficiency in efficient.items():
            batches = gcds if is_weak else 1
            seconds = 0.1 * batches / (gcds * efficiency)
            points.append(Point(gcds, batches, gcds // 2, profile(gcds, batches, seconds)))
    return Study("made", None, "cluster", "cpu", 5.0, {"Training": {}}, tuple(points))


def printed(shown, width):
    text = StringIO()
    Console(file=text, width=width).print(shown)
    return text.getvalue()


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (Parts(0.62, 0.2, 0.1, 0.08), "62 % of the step waits for data"),
        (Parts(0.1, 0.2, 0.62, 0.08), "62 % of the step waits for gradients"),
        (Parts(0.1, 0.2, 0.08, 0.62), "62 % of the step waits for other ranks"),
        (Parts(0.0, 0.1), "100 % of the step computes"),
    ],
)
def test_the_answer_is_about_the_largest_share(parts, said):
    assert scaling.answer(profile(parts=parts)).startswith(said)
    assert sum(scaling.shares(parts).values()) == pytest.approx(1.0)


def test_the_table_of_a_profile_shows_parts_and_what_they_add_up_to():
    assert "…" not in printed(scaling.scaling_grid(study(STRONG, WEAK)), 80)
    text = printed(scaling.profile_tables(profile(), nodes=2), 120)
    for words in ("98.0 %", "160 graphs/s", "0.500 GiB", "nothing here counts it", "50 % of the"):
        assert words in text


def test_a_study_outlives_its_process(tmp_path):
    whole = study(STRONG, WEAK)
    again = replace(whole.of("strong")[1], nodes=7)  # takes the place of the first
    found = whole.with_point(Point(16, 1, fault="out of memory")).with_point(again)
    assert len(found.points) == len(whole.points) + 1 and found.of("strong")[1] == again
    path = found.write(tmp_path)
    assert studies(tmp_path) == [found]
    assert studies(tmp_path / "elsewhere") == []
    values = json.loads(path.read_text())
    for damaged in ({**values, "version": 9}, {**values, "points": [{}]}, []):
        path.write_text(json.dumps(damaged))
        with pytest.raises(InputError, match="delete it and measure again"):
            Study.read(path)


@given(st.dictionaries(st.sampled_from([2, 4, 8, 16]), st.floats(0.01, 1.2), min_size=1))
def test_efficiency_is_that_of_each_gcd(efficient):
    found = study(efficient, efficient)
    table = scaling.scaling_table(found).set_index(["scaling", "GCDs"])
    for kind in ("weak", "strong"):
        assert table.loc[(kind, 1), "efficiency"] == pytest.approx(100)
        for gcds, efficiency in efficient.items():
            row = table.loc[(kind, gcds)]
            assert row["efficiency"] == pytest.approx(100 * efficiency)
            assert row["speed"] == pytest.approx(gcds * efficiency * 160)
            assert row["sum"] == pytest.approx(98)
            parts = ("reading", "computing", "exchanging", "waiting")
            assert sum(row[name] for name in parts) == pytest.approx(100)


def test_it_is_said_where_more_gcds_stop_paying_and_what_was_not_measured():
    found = study(STRONG, WEAK).with_point(Point(32, 1, fault="a batch has 16 graphs"))
    weak, strong, fault = scaling.verdicts(found)
    assert weak.startswith("weak scaling: 8 GCDs of 4 nodes pay: each GCD trains 70 %")
    assert strong.startswith(
        "strong scaling: beyond 2 GCDs it does not pay: on 4 GCDs of 2 nodes each GCD trains 40 %"
    )
    assert "side by side on 2 GCDs each train 2 times" in strong
    assert fault == "32 GCDs: not measured: a batch has 16 graphs"
    assert scaling.verdicts(study({}, {})) == []


def test_the_report_has_the_studies_of_a_run(searching):
    assert 'id="scaling"' not in write_report(searching.directory).read_text()
    study(STRONG, WEAK).write(searching.directory)
    replace(study({2: 0.9}, {}), trial=3).write(searching.directory)
    page = write_report(searching.directory).read_text()
    assert 'id="scaling"' in page
    assert "network of the configuration" in page and "network of trial 3" in page
