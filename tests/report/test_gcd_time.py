"""Every second of every GCD is accounted for once, under the cause that the ledger shows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow.report.figures import gcd_time_figure
from hydragnn_flow.report.gcd_time import CAUSES, gcd_time, gcd_time_sentence, gcd_time_table, spent
from hydragnn_flow.segment import SegmentResult

BEGINNING = 1_000_000.0
"""Unix time at which the runs of these tests begin [s]."""


def segment(begin, end, *gcds, sent=None, ready=None, **known):
    """One that ran for that time since the beginning [s]; sent and ready when it began."""
    sent = begin if sent is None else sent
    values: dict[str, Any] = {
        "kind": "trial",
        "number": 0,
        "rung": 0,
        "status": "ok",
        "node": "a",
        "away_seconds": end - sent,
        "waited_seconds": sent - (sent if ready is None else ready),
        "seconds": end - begin,
        "busy": 1.0,
        **known,
    }
    return SegmentResult(
        started=BEGINNING + begin, ended=BEGINNING + end, gcds=list(gcds or ("0",)), **values
    )


def spent_by(*segments):
    found = gcd_time(segments)
    assert found is not None
    return {cause: pytest.approx(seconds) for cause, seconds in spent(found).items()}


LAST = segment(30, 40, "0")
"""Sent when all else of these tests is over, so that what is idle before is no tail."""


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        pytest.param([segment(0, 40)], {"busy": 40}, id="busy"),
        pytest.param([segment(0, 40, busy=0.25)], {"busy": 10, "launches": 30}, id="launches"),
        pytest.param([segment(0, 40, busy=None)], {"at work": 40}, id="an older ledger"),
        pytest.param(
            [segment(0, 40, busy=0.25), segment(10, 20, busy=0.25), segment(20, 30, busy=0.9)],
            {"busy": 2.5 + 5 + 10 + 2.5, "launches": 7.5 + 5 + 7.5},
            id="packs are busy by the sum of their shares, at most wholly",
        ),
        pytest.param([segment(4, 40, sent=0)], {"start-up": 4, "busy": 36}, id="start-up"),
        pytest.param(
            [segment(4, 20, sent=0), segment(0, 20), LAST, segment(20, 30)],
            {"busy": 40},
            id="no start-up where another is at work",
        ),
        pytest.param(
            [segment(0, 30, "0"), segment(0, 20, "1"), segment(30, 40, "0", "1", ready=20)],
            {"busy": 70, "gang": 10},
            id="a gang waits for all its GCDs",
        ),
        pytest.param(
            [segment(0, 30, "0"), segment(0, 20, "1"), segment(30, 40, "1", ready=20), LAST],
            {"busy": 70, "ready": 10},
            id="work is ready and not sent",
        ),
        pytest.param(
            [segment(0, 30, "0"), segment(0, 20, "1"), segment(30, 40, "1"), LAST],
            {"busy": 70, "no work": 10},
            id="no work",
        ),
        pytest.param(
            [segment(0, 30, "0"), segment(0, 20, "1")], {"busy": 50, "tail": 10}, id="the tail"
        ),
        pytest.param(
            [
                segment(0, 30, "0"),
                segment(0, 20, "1"),
                segment(32, 40, "0", kind="member"),
                segment(32, 40, "1", kind="member"),
            ],
            {"busy": 66, "tail": 10, "no work": 4},
            id="the tail of the search, then the pause before the members",
        ),
        pytest.param(
            [segment(0, 90, "0"), segment(30, 60, "0", "1", node="b", ready=0)],
            {"busy": 150, "queue": 60, "away": 60},
            id="a node that comes late, with work waiting for it, and has none after",
        ),
        pytest.param(
            [segment(0, 90, "0"), segment(30, 90, "0", node="b")],
            {"busy": 150},
            id="nothing waits for a node that comes late",
        ),
        pytest.param(
            [segment(0, 10, "0", "1"), segment(29, 39, "0", "1")],
            {"busy": 40, "no work": 38},
            id="a node without work is there for a while",
        ),
        pytest.param(
            [segment(0, 100), segment(500, 600)], {"busy": 200}, id="stopped: nothing ran"
        ),
        pytest.param(
            [segment(0, 100, away_seconds=None, waited_seconds=None)],
            {"busy": 100},
            id="a line that does not say when it was sent",
        ),
    ],
)
def test_time_goes_to_its_cause(segments, expected):
    assert spent_by(*segments) == expected


@st.composite
def ledgers(draw):
    found = []
    for number in range(draw(st.integers(1, 12))):
        ready = draw(st.integers(0, 300))
        sent = ready + draw(st.integers(0, 40))
        begin = sent + draw(st.integers(0, 5))
        found.append(
            segment(
                begin,
                begin + draw(st.integers(0, 60)),
                *sorted(draw(st.sets(st.sampled_from("012"), min_size=1))),
                sent=sent,
                ready=ready,
                node=draw(st.sampled_from("ab")),
                number=number,
                busy=draw(st.sampled_from((None, 0.0, 0.3, 0.7, 1.0))),
                kind=draw(st.sampled_from(("trial", "member"))),
            )
        )
    return found


@given(ledgers(), st.integers(1, 420), st.sets(st.sampled_from(("trial", "member"))))
def test_every_second_is_counted_once_at_every_moment(segments, seconds, to_come):
    """Those that have not ended by then are at work, and those that were not sent are ready."""
    now, seen = BEGINNING + seconds, []
    for s in segments:
        sent = s.ended - (s.away_seconds or 0.0)
        ready = sent - (s.waited_seconds or 0.0)
        if sent >= now > ready:
            waited = {"away_seconds": 0.0, "waited_seconds": now - ready}
            seen.append(replace(s, ended=now, node="", started=now, **waited))
        elif s.ended > now > sent:
            seen.append(replace(s, started=sent, ended=now, away_seconds=now - sent, busy=None))
        elif now > sent:
            seen.append(s)
    frame = gcd_time(seen, to_come)
    gcds = {place for s in seen if s.node for place in s.places}
    if frame is None:
        ready = [s.ended - (s.away_seconds or 0.0) - (s.waited_seconds or 0.0) for s in seen]
        assert not gcds or max(s.ended for s in seen) == min(ready)
        return
    at_work = sum(
        any(
            s.ended - (s.away_seconds or 0) <= t and s.ended >= t + 1 for s in seen if p in s.places
        )
        for t in np.arange(int(BEGINNING), int(now))
        for p in gcds
    )
    causes, found = ("busy", "launches", "at work", "start-up"), spent(frame)
    assert sum(found.get(cause, 0.0) for cause in causes) == pytest.approx(at_work)
    every, sent = frame[[*CAUSES]].sum(axis=1), {s.node: 0.0 for s in seen if s.node}
    assert (frame[[*CAUSES]] >= 0).all(axis=None) and every.max() <= len(gcds) + 1e-6
    for node in sent:
        sent[node] = min(s.ended - (s.away_seconds or 0.0) for s in seen if s.node == node)
    whole = every[~frame["pause"] & (frame.index >= max(sent.values()))]
    assert (whole > len(gcds) - 1e-6).all(), "once all nodes are there"
    if to_come >= {s.kind for s in seen}:
        assert "tail" not in found
    later = [replace(s, started=s.started + 1e5, ended=s.ended + 1e5) for s in seen[::-1]]
    moved = gcd_time(later, to_come)
    assert moved is not None and spent(moved) == pytest.approx(found, abs=1e-3)


def test_nothing_is_told_of_segments_without_a_place():
    assert gcd_time([]) is None
    assert gcd_time([SegmentResult(kind="trial", number=0, rung=0, status="lost")]) is None


SEGMENTS = [segment(0, 30, "0"), segment(0, 20, "1", busy=0.5), segment(600, 610, status="lost")]


def test_table_and_sentence_name_the_largest_first_and_shares_of_what_was_held():
    frame = gcd_time([*SEGMENTS, segment(2, 6, node="b", ready=0)])
    assert frame is not None
    table = gcd_time_table(frame)
    seconds = {"busy": 54, "launches": 10, "no work": 10, "tail": 10, "away": 34, "queue": 2}
    assert list(table["where the time went"]) == [CAUSES[cause] for cause in seconds]
    assert (3600 * table["GCD-hours"]).tolist() == pytest.approx([*seconds.values()])
    held = [*seconds.values()][:4]
    assert table["share"][:4].tolist() == pytest.approx([100 * of / 84 for of in held])
    assert table["share"][4:].isna().all()
    assert gcd_time_sentence(frame) == (
        "time of the GCDs: 76.2 % at work (64.3 % busy); 0.0 % starting up; 23.8 % idle, most of "
        "it no work is ready"
    )


def test_the_figure_has_a_key_for_each_cause_and_cuts_pauses_out():
    frame = gcd_time(SEGMENTS)
    assert frame is not None
    figure = gcd_time_figure(frame)
    named = {text.get_text() for text in figure.legends[0].get_texts()}
    assert named == {CAUSES[cause] for cause in spent(frame)}
    assert figure.axes[0].get_xlim() == (0, 40)
    assert [text.get_text() for text in figure.axes[0].texts] == ["stopped for 0.158 h"]
