"""Every segment has its place on the timeline, and nothing lies on top of anything else."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection

from hydragnn_flow.report.figures import gcd_occupancy
from hydragnn_flow.report.run_files import read_run
from hydragnn_flow.report.timeline import lay_out
from hydragnn_flow.segment import SegmentResult


def segment(number, started, ended, *gcds, node="host"):
    return SegmentResult(
        kind="trial",
        number=number,
        rung=0,
        to_epoch=1,
        status="ok",
        seconds=ended - started,
        started=started,
        ended=ended,
        node=node,
        gcds=list(gcds),
    )


@st.composite
def segment_lists(draw):
    found = []
    for number in range(draw(st.integers(0, 12))):
        started = draw(st.integers(1, 400))
        gcds = draw(st.sets(st.sampled_from(["0", "1", "10"]), min_size=1))
        ended = started + draw(st.integers(0, 60))
        node = draw(st.sampled_from("ab"))
        found.append(segment(number, float(started), float(ended), *sorted(gcds), node=node))
    return found


@given(segment_lists())
def test_every_segment_is_on_each_of_its_gcds_and_apart_from_the_others(segments):
    timeline = lay_out(segments)
    placed = sorted((b.segment.number, *timeline.rows[b.row]) for b in timeline.bars)
    assert placed == sorted((s.number, s.node, gcd) for s in segments for gcd in s.gcds)
    for bar in timeline.bars:
        assert 0 <= bar.track < bar.tracks
        assert 0 <= bar.start <= bar.end <= timeline.length + 1e-9
        assert bar.end - bar.start == pytest.approx(bar.segment.seconds)
    for i, a in enumerate(timeline.bars):
        for b in timeline.bars[:i]:
            if a.row == b.row and a.start < b.end and b.start < a.end:
                assert a.track != b.track
                assert a.tracks == b.tracks
    assert all(-1e-9 <= idle <= 1 for idle in timeline.idle)


def test_idle_share_is_that_of_the_union():
    timeline = lay_out(
        [segment(0, 100, 160, "0"), segment(1, 130, 180, "0"), segment(2, 100, 200, "1")]
    )
    assert timeline.rows == (("host", "0"), ("host", "1"))
    assert timeline.idle == pytest.approx((0.2, 0.0))
    assert [(bar.track, bar.tracks) for bar in timeline.bars] == [(0, 2), (1, 2), (0, 1)]


def test_a_night_without_the_campaign_is_cut_out_and_not_counted_as_idle():
    night = 9 * 3600.0
    timeline = lay_out([segment(0, 100, 200, "0"), segment(1, 200 + night, 300 + night, "0")])
    assert [pause.seconds for pause in timeline.pauses] == [night]
    assert timeline.idle == pytest.approx((0.0,))
    assert timeline.length == pytest.approx(206.0)
    figure = gcd_occupancy([bar.segment for bar in timeline.bars], {})
    assert "stopped for 9 h" in [text.get_text() for text in figure.axes[0].texts]


def test_each_segment_is_looked_at_once(monkeypatch):
    """And not for each of thousands of GCDs."""
    calls = itertools.count()
    places = SegmentResult.places.fget
    monkeypatch.setattr(SegmentResult, "places", property(lambda s: (next(calls), places(s))[1]))
    segments = [segment(n, 1.0 + n, 2.0 + n, str(n % 100)) for n in range(500)]
    assert len(lay_out(segments).rows) == 100
    assert next(calls) <= 3 * len(segments)


@pytest.mark.parametrize("lost", [segment(1, 0, 0, "0"), segment(1, 150, 150, node="")])
def test_segments_without_a_time_or_place_are_counted(lost):
    timeline = lay_out([segment(0, 100, 200, "0"), lost])
    assert timeline.untimed == 1
    assert timeline.rows == (("host", "0"),)
    assert lay_out([lost]).bars == ()
    assert "not shown: 1 segments lost" in gcd_occupancy([lost], {}).axes[0].get_xlabel()


def test_rows_count_like_people_do():
    gcds = [str(n) for n in range(12)]
    timeline = lay_out([segment(0, 1, 2, *gcds, node="n2"), segment(1, 1, 2, "0", node="n10")])
    assert [gcd for node, gcd in timeline.rows if node == "n2"] == gcds
    assert timeline.rows[-1] == ("n10", "0")


def test_the_figure_draws_every_segment_on_every_gcd_it_used(finished):
    segments = read_run(finished.directory).segments
    figure = gcd_occupancy(segments, {(s.kind, s.number): "EGNN" for s in segments})
    axes = figure.axes[0]
    drawn = []
    for collection in axes.collections:
        assert isinstance(collection, PolyCollection)
        for path in collection.get_paths():
            x, y = path.vertices[:, 0], path.vertices[:, 1]
            drawn.append((round(float(y.mean())), x.min(), x.max()))
    first = min(s.started for s in segments)
    expected = [(int(gcd), s.started - first, s.ended - first) for s in segments for gcd in s.gcds]
    assert len(drawn) == len(expected) == len(segments) + 1  # one member used both GCDs
    for bar, place in zip(sorted(drawn), sorted(expected), strict=True):
        assert bar == pytest.approx(place, abs=1e-3)
    idle = [t.get_text() for t in axes.texts if t.get_text().startswith("idle")]
    assert len(idle) == 2
