"""Every second of every GCD is accounted for once, under the cause that the ledger shows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow.report.figures import forecast_figure, gcd_time_figure
from hydragnn_flow.report.forecast_errors import forecast_errors
from hydragnn_flow.report.gcd_time import HELD, NOT_HELD, GcdTime, gcd_time
from hydragnn_flow.report.gcd_time_tables import gcd_time_table, shapes_table
from hydragnn_flow.report.gcd_time_words import MEANINGS, advice, utilisation_sentence
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
    return {str(cause): pytest.approx(seconds) for cause, seconds in found.seconds.items()}


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
            [
                segment(0, 30, "0"),
                segment(0, 20, "1"),
                segment(30, 40, "1", away_seconds=None),
                LAST,
            ],
            {"busy": 70, "unknown": 10},
            id="a line that does not say when it was sent",
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


@given(ledgers())
def test_every_second_is_counted_once(segments):
    spent = gcd_time(segments)
    assert spent is not None
    gcds = {place for s in segments for place in s.places}
    edges = np.arange(int(BEGINNING), int(BEGINNING) + 420)
    at_work = sum(
        any(s.started <= t and s.ended >= t + 1 for s in segments if place in s.places)
        for t in edges
        for place in gcds
    )
    assert sum(spent.seconds.get(c, 0.0) for c in ("busy", "launches", "at work")) == (
        pytest.approx(at_work)
    )
    every = sum(spent.gcds.values(), np.zeros(len(spent.edges) - 1))
    assert every.max(initial=0.0) <= len(gcds) + 1e-6
    assert spent.share(*HELD) == pytest.approx(1.0 if spent.held else 0.0)
    # The picture holds the same GCD-seconds as the table, cause by cause.
    if not spent.pauses:
        for cause, shown in spent.gcds.items():
            assert shown @ np.diff(spent.edges) == pytest.approx(spent.seconds[cause])


@given(ledgers(), st.integers(1, 420), st.sets(st.sampled_from(("trial", "member"))))
def test_a_run_is_accounted_for_at_every_moment(segments, seconds, to_come):
    """Those that have not ended by then are at work, and those that were not sent are ready."""
    now = BEGINNING + seconds
    seen, gcds = [], set()
    for s in segments:
        sent = s.ended - (s.away_seconds or 0.0)
        if sent - (s.waited_seconds or 0.0) >= now:
            continue
        if sent >= now:
            ready = sent - (s.waited_seconds or 0.0)
            unsent = {
                "node": "",
                "started": now,
                "away_seconds": 0.0,
                "waited_seconds": now - ready,
            }
            seen.append(replace(s, ended=now, **unsent))
            continue
        gcds |= {*s.places}
        if s.ended > now:
            s = replace(s, started=sent, ended=now, away_seconds=now - sent, busy=None)
        seen.append(s)
    spent = gcd_time(seen, to_come)
    if not gcds:
        assert spent is None
        return
    assert spent is not None and min(spent.seconds.values(), default=1.0) > 0
    at_work = sum(
        any(
            s.ended - (s.away_seconds or 0) <= t and s.ended >= t + 1 for s in seen if p in s.places
        )
        for t in np.arange(int(BEGINNING), int(now))
        for p in gcds
    )
    causes = ("busy", "launches", "at work", "start-up")
    assert sum(spent.seconds.get(c, 0.0) for c in causes) == pytest.approx(at_work)
    assert sum(spent.gcds.values(), np.zeros(1)).max() <= len(gcds) + 1e-6
    if to_come >= {s.kind for s in seen}:
        assert "tail" not in spent.seconds
    if not spent.pauses:
        total = sum(shown @ np.diff(spent.edges) for shown in spent.gcds.values())
        assert total == pytest.approx(sum(spent.seconds.values()))


@given(ledgers(), st.integers(1, 10**6))
def test_neither_order_nor_the_date_matters(segments, later):
    moved = [replace(s, started=s.started + later, ended=s.ended + later) for s in segments[::-1]]
    here, there = gcd_time(segments), gcd_time(moved)
    assert here is not None and there is not None
    assert here.seconds.keys() == there.seconds.keys()
    assert here.seconds == pytest.approx(there.seconds, abs=1e-3)


def test_nothing_is_told_of_segments_without_a_place():
    assert gcd_time([]) is None
    assert gcd_time([SegmentResult(kind="trial", number=0, rung=0, status="lost")]) is None
    assert shapes_table([]).empty and forecast_errors([]) is None


def made(**seconds):
    return GcdTime({name.replace("_", " "): s for name, s in seconds.items()}, np.ones(2), {}, ())  # type: ignore[misc]


def test_the_table_has_the_largest_cause_first_and_shares_of_what_was_held():
    table = gcd_time_table(made(tail=900, busy=2700, queue=7200))
    assert list(table["where the time went"]) == [MEANINGS[c] for c in ("busy", "tail", "queue")]
    assert list(table["GCD-hours"]) == [0.75, 0.25, 2.0]
    assert list(table["share"]) == ["75.0 %", "25.0 %", ""]


@pytest.mark.parametrize(
    ("spent", "says"),
    [
        (
            made(tail=31, busy=69),
            "31.0 % idle: the tail, nothing more comes. To change it: more tr",
        ),
        (made(busy=96, tail=4), "No cause took more than a twentieth of the time: there is nothin"),
        (made(busy=50, queue=7200), "2 GCD-hours: not there yet: work waits for nodes. To change"),
        (made(busy=50, unknown=50), "No cause"),
        (made(busy=10, launches=80, gang=10), "80.0 % at work, waiting for launches. To change it"),
    ],
)
def test_a_sentence_says_what_to_change(spent, says):
    assert advice(spent).startswith(says)


def test_a_line_tells_the_utilisation_so_far():
    assert utilisation_sentence(made(busy=60, launches=10, start_up=0, no_work=30)) == (
        "time of the GCDs so far: 70.0 % at work (60.0 % busy); 0.0 % starting up; 30.0 % idle, "
        "most of it no work is ready"
    )


def test_widths_and_packs_have_their_hours():
    table = shapes_table(
        [
            segment(0, 3600, "0", together=2.0, steps=100, step_seconds=18.0),
            segment(0, 3600, "0", together=2.0),
            segment(0, 1800, "1", "2", together=1.0),
        ]
    )
    assert table.to_dict("records") == [
        {"GCDs": 1, "on a GCD": 2, "segments": 2, "GCD-hours": 1.0, "in steps": "25.0 %"},
        {"GCDs": 2, "on a GCD": 1, "segments": 1, "GCD-hours": 1.0, "in steps": "0.0 %"},
    ]


def test_predictions_are_compared_for_whole_segments_alone():
    whole = {"to_epoch": 3, "planned_epochs": 3}
    errors = forecast_errors(
        [
            segment(0, 10, predicted_seconds=12.0, predicted_low=9.0, predicted_high=15.0, **whole),
            segment(0, 10, predicted_seconds=6.0, predicted_low=5.0, predicted_high=8.0, **whole),
            segment(0, 10, predicted_seconds=10.0, **whole),
            segment(0, 10, predicted_seconds=99.0, to_epoch=2, planned_epochs=3),
            segment(0, 10, **whole),
        ]
    )
    assert errors is not None
    assert (len(errors.segments), errors.with_interval, errors.held) == (3, 2, 0.5)
    assert errors.mape == pytest.approx((0.2 + 0.4 + 0.0) / 3)
    figure, marks = forecast_figure(errors)
    title = "3 segments: mean absolute error 20.0 %\n90 % intervals hold 50.0 % of 2"
    assert figure.axes[0].get_title(loc="left") == title
    assert len(marks.labels) == 3


@given(ledgers())
def test_the_picture_has_a_key_for_each_cause(segments):
    spent = gcd_time(segments)
    assert spent is not None
    (legend,) = gcd_time_figure(spent).legends or [None]
    named = {text.get_text() for text in legend.get_texts()} if legend else set()
    assert named == {MEANINGS[cause] for cause in spent.seconds}
    assert spent.seconds.keys() <= {*HELD, *NOT_HELD}
