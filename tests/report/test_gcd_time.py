"""Every second of every GCD is accounted for once, under the cause that the ledger shows."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow.report.gcd_time import CAUSES, gcd_time, gcd_time_table, spent
from hydragnn_flow.segment import SegmentResult

BEGINNING = 1_000_000.0
"""Unix time at which the runs of these tests begin [s]."""


def segment(begin, end, *gcds, sent=None, ready=None, **known):
    """One that ran for that time since the beginning [s]; sent and ready when it began."""
    sent = begin if sent is None else sent
    waited = sent - (sent if ready is None else ready)
    values = {"kind": "trial", "number": 0, "rung": 0, "status": "ok", "node": "a", "busy": 1.0}
    values |= {"away_seconds": end - sent, "waited_seconds": waited, "seconds": end - begin}
    values |= {"started": BEGINNING + begin, "ended": BEGINNING + end, "gcds": [*(gcds or "0")]}
    return SegmentResult(**{**values, **known})


def spent_by(*segments):
    found = spent(gcd_time(segments))
    return {cause: pytest.approx(seconds) for cause, seconds in found.items()}


EARLY = [segment(0, 30, "0"), segment(0, 20, "1")]
"""The second GCD is free 10 s before the first."""
LAST = segment(30, 40, "0")
"""Sent when all else of these tests is over, so that what is idle before is no tail."""
CASES: dict[str, tuple[list[SegmentResult], dict[str, float]]] = {
    "launches": ([segment(0, 40, busy=0.25)], {"busy": 10, "launches": 30}),
    "an older ledger": ([segment(0, 40, busy=None)], {"at work": 40}),
    "packs are busy by the sum of their shares, at most wholly": (
        [segment(0, 40, busy=0.25), segment(10, 20, busy=0.25), segment(20, 30, busy=0.9)],
        {"busy": 2.5 + 5 + 10 + 2.5, "launches": 7.5 + 5 + 7.5},
    ),
    "start-up": ([segment(4, 40, sent=0)], {"start-up": 4, "busy": 36}),
    "no start-up where another is at work": (
        [segment(4, 20, sent=0), segment(0, 20), LAST, segment(20, 30)],
        {"busy": 40},
    ),
    "a gang waits for all its GCDs": (
        [*EARLY, segment(30, 40, "0", "1", ready=20)],
        {"busy": 70, "gang": 10},
    ),
    "work is ready and not sent": (
        [*EARLY, segment(30, 40, "1", ready=20), LAST],
        {"busy": 70, "ready": 10},
    ),
    "no work": ([*EARLY, segment(30, 40, "1"), LAST], {"busy": 70, "no work": 10}),
    "the tail of the search, then the pause before the members": (
        [*EARLY, segment(32, 40, "0", kind="member"), segment(32, 40, "1", kind="member")],
        {"busy": 66, "tail": 10, "no work": 4},
    ),
    "a node that comes late, with work waiting for it, and has none after": (
        [segment(0, 90, "0"), segment(30, 60, "0", "1", node="b", ready=0)],
        {"busy": 150, "queue": 60, "away": 60},
    ),
    "nothing waits for a node that comes late": (
        [segment(0, 90, "0"), segment(30, 90, "0", node="b")],
        {"busy": 150},
    ),
    "a node without work is there for a while": (
        [segment(0, 10, "0", "1"), segment(29, 39, "0", "1")],
        {"busy": 40, "no work": 38},
    ),
    "stopped: nothing ran": ([segment(0, 100), segment(500, 600)], {"busy": 200}),
    "not said when it was sent": ([segment(0, 9, away_seconds=None)], {"busy": 9}),
}


@pytest.mark.parametrize(("segments", "expected"), CASES.values(), ids=CASES)
def test_time_goes_to_its_cause(segments, expected):
    assert spent_by(*segments) == expected


@st.composite
def ledgers(draw):
    found = []
    for number in range(draw(st.integers(1, 12))):
        ready = draw(st.integers(0, 300))
        sent = ready + draw(st.integers(0, 40))
        begin = sent + draw(st.integers(0, 5))
        end = begin + draw(st.integers(0, 60))
        gcds = sorted(draw(st.sets(st.sampled_from("012"), min_size=1)))
        known = {"kind": draw(st.sampled_from(("trial", "member"))), "number": number}
        known |= {"busy": draw(st.sampled_from((None, 0.0, 0.3, 0.7, 1.0)))}
        node = draw(st.sampled_from("ab"))
        found.append(segment(begin, end, *gcds, sent=sent, ready=ready, node=node, **known))
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
    spans = [(s.ended - (s.away_seconds or 0), s.ended, s.places) for s in seen]
    at_work = sum(
        any(begin <= t and end >= t + 1 for begin, end, places in spans if gcd in places)
        for t in np.arange(int(BEGINNING), int(now))
        for gcd in gcds
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


def test_the_table_has_the_largest_first_and_shares_of_what_was_held():
    late = [segment(2, 6, node="b", ready=0), segment(600, 610, status="lost")]
    frame = gcd_time([segment(0, 30, "0"), segment(0, 20, "1", busy=0.5), *late])
    table = gcd_time_table(frame)
    seconds = {"busy": 54, "launches": 10, "no work": 10, "tail": 10, "away": 34, "queue": 2}
    assert list(table["where the time went"]) == [CAUSES[cause] for cause in seconds]
    assert (3600 * table["GCD-hours"]).tolist() == pytest.approx([*seconds.values()])
    held = [*seconds.values()][:4]
    assert table["share"][:4].tolist() == pytest.approx([100 * of / 84 for of in held])
    assert table["share"][4:].isna().all()
