"""Utilisation of the GCDs: where their time went, by cause, as far as the ledger tells it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.report.timeline import Axis, Pause, union
from hydragnn_flow.segment import Kind, SegmentResult

Cause = Literal[
    "busy", "launches", "at work", "start-up", "gang", "ready", "no work", "tail", "unknown",
    "queue", "away",
]  # fmt: skip
HELD: tuple[Cause, ...] = (
    "busy", "at work", "launches", "start-up", "gang", "ready", "no work", "tail", "unknown",
)  # fmt: skip
"""What a GCD of a node that is there does."""
NOT_HELD: tuple[Cause, ...] = ("queue", "away")
"""GCDs of nodes that have not come yet, and of nodes with nothing to do, given back or not."""
SECONDS_IDLE = 20.0
"""A job whose nodes have nothing to do for longer is given back, so that from then on nobody knows
whether a node without work is still there."""
_BINS = 160

Floats = NDArray[np.float64]
_Span = tuple[float, float]
_Place = tuple[str, str]


@dataclass(frozen=True)
class GcdTime:
    """Time of all GCDs that were ever given work."""

    seconds: dict[Cause, float]
    """GCD-seconds by cause; causes that took none are left out."""
    edges: Floats
    """Ends of stretches of time on the axis [s], [n_stretches + 1]."""
    gcds: dict[Cause, Floats]
    """Mean number of GCDs by cause in each of them, [n_stretches]."""
    pauses: tuple[Pause, ...]
    """Stretches in which nothing ran or was ready, cut out of the axis."""

    @property
    def held(self) -> float:
        """GCD-seconds of nodes that were there."""
        return sum(self.seconds.get(cause, 0.0) for cause in HELD)

    def share(self, *causes: Cause) -> float:
        """Fraction of the time held that went there."""
        return sum(self.seconds.get(cause, 0.0) for cause in causes) / (self.held or 1.0)


@dataclass
class _Pieces:
    """Stretches of time, each with a number of GCDs."""

    starts: list[float]
    ends: list[float]
    weights: list[float]

    @classmethod
    def of(cls, spans: Iterable[_Span]) -> _Pieces:
        pieces = cls([], [], [])
        for start, end in spans:
            pieces.add(start, end)
        return pieces

    def add(self, start: float, end: float, weight: float = 1.0) -> None:
        if end > start and weight:
            self.starts.append(start)
            self.ends.append(end)
            self.weights.append(weight)

    def over(self, times: Floats) -> Floats:
        """Sum of the weights between each two of these times, which hold all starts and ends."""
        steps = np.zeros(len(times))
        np.add.at(steps, np.searchsorted(times, self.starts), self.weights)
        np.subtract.at(steps, np.searchsorted(times, self.ends), self.weights)
        return np.maximum(np.cumsum(steps)[:-1], 0.0)


def gcd_time(segments: Sequence[SegmentResult], to_come: Collection[Kind] = ()) -> GcdTime | None:
    """Account for the time of every GCD from the first segment that was ready to the last end.

    A GCD at work is busy for the sum of the predicted shares of the segments there, at most
    wholly. Before a segment begins to train its GCDs start up. What is left is idle, with
    the cause that the ledger shows for that moment: a segment of several GCDs, or of one, waits
    although it could run; nothing is ready, and either nothing of the kind that runs is sent any
    more (the tail) or it is. Lines that do not say when a segment was sent leave it unknown.

    Parameters
    ----------
    segments
        Segments of trials and members; of a live run also those at work, as if they ended now, and
        those that are ready, which have no node yet.
    to_come
        Kinds of which more are yet to become ready.

    Returns
    -------
    GcdTime or None
        None if no segment has a place and a time.
    """
    timed = [s for s in segments if s.gcds and 0 < s.started <= s.ended]
    if not any(s.node for s in timed):
        return None
    alive = union([(_ready(s), s.ended) for s in timed])
    axis = Axis(alive)
    first, last = alive[0][0], alive[-1][1]
    (spans, by_node, pieces), idle = _at_work([s for s in timed if s.node]), _Pieces([], [], [])
    for places in by_node.values():
        here = [span for place in places for span in spans[place]]
        held = _joined(union(here))
        for place in places:
            for start, end in _between(union(spans[place]), held):
                idle.add(start, end)
        size = float(len(places))
        pieces["queue"].add(first, held[0][0], size)
        for (_, start), (end, _) in pairwise([*held, (last, last)]):
            pieces["away"].add(start, end, size)
    waiting = _Pieces.of((_ready(s), _sent(s)) for s in timed)
    gangs = _Pieces.of((_ready(s), _sent(s)) for s in timed if len(s.gcds) > 1)
    running = {
        kind: _Pieces.of((_sent(s), s.ended) for s in timed if s.kind == kind)
        for kind in {s.kind for s in timed}
    }
    stretches = np.linspace(0.0, axis.at(last), _BINS + 1)
    every = [*pieces.values(), idle, waiting, gangs, *running.values()]
    times = np.unique(
        np.concatenate(
            [
                [first, last],
                _unix(axis, alive, stretches),
                *([span for gap in axis.gaps for span in gap],) * bool(axis.gaps),
                *(np.array(of.starts + of.ends) for of in every),
            ]
        )
    )
    middle, lasts = (times[1:] + times[:-1]) / 2, np.diff(times)
    counted = np.ones(len(lasts), dtype=bool)
    for start, end in axis.gaps:
        counted &= (middle < start) | (middle > end)
    counts = {cause: of.over(times) for cause, of in pieces.items()}
    # Before a node comes nothing is lost unless work waits for it.
    counts["queue"] = np.where(waiting.over(times) > 0, counts["queue"], 0.0)
    cause = _causes(timed, times, waiting.over(times), gangs.over(times), running, to_come)
    for name in ("gang", "ready", "no work", "tail", "unknown"):
        counts[name] = np.where(cause == name, idle.over(times), 0.0)
    which = np.searchsorted(_unix(axis, alive, stretches), middle) - 1
    which = np.clip(which, 0, _BINS - 1)
    length = np.bincount(which, lasts * counted, _BINS)
    seconds, shown = {}, {}
    for name in (*HELD, *NOT_HELD):
        spent = lasts * counted * counts.get(name, np.zeros(len(lasts)))
        if total := float(spent.sum()):
            seconds[name] = total
            found = np.bincount(which, spent, _BINS)
            shown[name] = np.divide(found, length, out=np.zeros(_BINS), where=length > 0)
    return GcdTime(seconds, stretches, shown, tuple(axis.pauses))


def _at_work(
    timed: Sequence[SegmentResult],
) -> tuple[dict[_Place, list[_Span]], dict[str, list[_Place]], defaultdict[Cause, _Pieces]]:
    """When GCDs had segments, those of each node, and how long they were at work or starting up."""
    on: defaultdict[_Place, list[SegmentResult]] = defaultdict(list)
    for segment in timed:
        for place in set(segment.places):
            on[place].append(segment)
    pieces: defaultdict[Cause, _Pieces] = defaultdict(lambda: _Pieces([], [], []))
    spans: dict[_Place, list[_Span]] = {}
    by_node: dict[str, list[_Place]] = {}
    for place, here in on.items():
        by_node.setdefault(place[0], []).append(place)
        spans[place] = [(_sent(s), s.ended) for s in here]
        for start, end, present in _crowds(here):
            shares = [s.busy for s in present if s.busy is not None]
            if len(shares) < len(present):
                pieces["at work"].add(start, end)
            else:
                share = min(1.0, sum(shares))
                pieces["busy"].add(start, end, share)
                pieces["launches"].add(start, end, 1.0 - share)
        at_work = union([(s.started, s.ended) for s in here])
        for start, end in _between(at_work, union(spans[place])):
            pieces["start-up"].add(start, end)
    return spans, by_node, pieces


def _crowds(here: Sequence[SegmentResult]) -> Iterable[tuple[float, float, list[SegmentResult]]]:
    """Stretches in which the same segments are on a GCD."""
    events = sorted(
        [(s.started, 1, n) for n, s in enumerate(here)]
        + [(s.ended, 0, n) for n, s in enumerate(here)]
    )
    present: set[int] = set()
    for (time, begins, number), following in pairwise([*events, (events[-1][0], 0, 0)]):
        if begins and here[number].ended > time:
            present.add(number)
        else:
            present.discard(number)
        if present and following[0] > time:
            yield time, following[0], [here[n] for n in present]


def _causes(
    timed: Sequence[SegmentResult],
    times: Floats,
    waiting: Floats,
    gangs: Floats,
    running: dict[Kind, _Pieces],
    to_come: Collection[Kind],
) -> NDArray[np.str_]:
    """Why a GCD with nothing to do has nothing, between each two of the times."""
    is_known = all(s.waited_seconds is not None and s.away_seconds is not None for s in timed)
    begins = times[:-1]
    tail = np.ones(len(begins), dtype=bool)
    anything = np.zeros(len(begins), dtype=bool)
    for kind, of in running.items():
        at_work = of.over(times) > 0
        anything |= at_work
        if kind in to_come:
            tail &= ~at_work
        tail &= ~at_work | (begins >= max(of.starts, default=np.inf))
    # While nothing runs at all, one phase has ended and the next has not begun.
    quiet = np.where(tail & anything, "tail", "no work" if is_known else "unknown")
    if not is_known:
        return quiet
    return np.where(gangs > 0, "gang", np.where(waiting > 0, "ready", quiet))


def _sent(segment: SegmentResult) -> float:
    """Unix time at which it was sent, or began where that is not known [s]."""
    if segment.away_seconds is None:
        return segment.started
    return min(segment.started, segment.ended - segment.away_seconds)


def _ready(segment: SegmentResult) -> float:
    """Unix time from which it could have run [s]."""
    return _sent(segment) - (segment.waited_seconds or 0.0)


def _joined(spans: list[_Span]) -> list[_Span]:
    """Stretches in which a node was there: those at work, and what is short between them."""
    joined = [spans[0]]
    for start, end in spans[1:]:
        if start - joined[-1][1] <= SECONDS_IDLE:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _between(taken: list[_Span], within: list[_Span]) -> Iterable[_Span]:
    """What stretches leave of others in which they all lie; both apart and in order."""
    number = 0
    for start, end in within:
        at = start
        while number < len(taken) and taken[number][0] < end:
            if taken[number][0] > at:
                yield at, taken[number][0]
            at = max(at, taken[number][1])
            number += 1
        if at < end:
            yield at, end


def _unix(axis: Axis, alive: list[_Span], at: Floats) -> Floats:
    """Unix times of places on the axis [s]."""
    known = [time for span in alive for time in span]
    return np.interp(at, [axis.at(time) for time in known], known)
