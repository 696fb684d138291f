"""Which GCD ran what when, as rows, lanes and bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hydragnn_flow.segment import SegmentResult

# A gap in which nothing ran anywhere is cut out of the axis once it is longer than this [s] and
# than this share of the time in which something ran: a campaign killed at night and started again
# in the morning would otherwise be two specks at the ends of an empty chart.
_PAUSE_SECONDS, _PAUSE_SHARE = 60.0, 0.25
# Its remaining width, as a share of the time shown.
_CUT_SHARE = 0.03


@dataclass(frozen=True)
class Bar:
    """One segment on one GCD."""

    segment: SegmentResult
    row: int
    lane: int
    """Position among the segments that shared the GCD, from 0."""
    lanes: int
    """How many lanes the row has at that time."""
    start: float
    """On the axis [s]."""
    end: float


@dataclass(frozen=True)
class Pause:
    """A stretch cut out of the axis because nothing ran."""

    at: float
    """Middle of its shortened image on the axis [s]."""
    seconds: float


@dataclass(frozen=True)
class Timeline:
    """Rows of bars over a common axis that starts at zero."""

    rows: tuple[tuple[str, str], ...]
    """(node, GCD) of each row."""
    bars: tuple[Bar, ...]
    idle: tuple[float, ...]
    """Idle share of each row's GCD, pauses left out."""
    pauses: tuple[Pause, ...]
    length: float
    """Of the axis [s]."""
    untimed: int
    """Segments whose place and time are not known: they were lost with their worker."""


def lay_out(segments: Sequence[SegmentResult]) -> Timeline:
    """Place every segment on the rows of the GCDs it used.

    Segments that overlap on a GCD are put into lanes of its row, each as wide as the others.
    """
    timed = [s for s in segments if s.gcds and s.started > 0 and s.ended >= s.started]
    untimed = len(segments) - len(timed)
    if not timed:
        return Timeline((), (), (), (), 0.0, untimed)
    running = _union([(s.started, s.ended) for s in timed])
    axis = _Axis(running)
    on: dict[tuple[str, str], list[SegmentResult]] = {}
    for segment in timed:
        for place in set(segment.places):
            on.setdefault(place, []).append(segment)
    rows = sorted(on, key=_by_number)
    bars: list[Bar] = []
    idle = []
    for index, row in enumerate(rows):
        for segment, lane, lanes in _lanes(on[row]):
            ends = axis.at(segment.started), axis.at(segment.ended)
            bars.append(Bar(segment, index, lane, lanes, *ends))
        busy = sum(end - start for start, end in _union([(s.started, s.ended) for s in on[row]]))
        idle.append(1 - busy / axis.counted if axis.counted else 0.0)
    pauses = tuple(axis.pauses)
    return Timeline(tuple(rows), tuple(bars), tuple(idle), pauses, axis.at(running[-1][1]), untimed)


class _Axis:
    """Unix time -> seconds on an axis without the pauses."""

    def __init__(self, running: list[tuple[float, float]]) -> None:
        self._first = running[0][0]
        busy = sum(end - start for start, end in running)
        limit = max(_PAUSE_SECONDS, _PAUSE_SHARE * busy)
        gaps = [(a[1], b[0]) for a, b in pairwise(running)]
        self._gaps = [(start, end) for start, end in gaps if end - start > limit]
        cut = sum(end - start for start, end in self._gaps)
        self.counted = running[-1][1] - self._first - cut
        """Time that idle shares refer to [s]."""
        self._width = _CUT_SHARE * self.counted
        self.pauses = [
            Pause(self.at(start) + self._width / 2, end - start) for start, end in self._gaps
        ]

    def at(self, time: float) -> float:
        before = [gap for gap in self._gaps if gap[1] <= time]
        cut = sum(end - start for start, end in before)
        return time - self._first - cut + len(before) * self._width


def _union(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _lanes(segments: list[SegmentResult]) -> list[tuple[SegmentResult, int, int]]:
    """Give each segment the first lane that is free; count lanes per group of overlaps."""
    placed: list[tuple[SegmentResult, int, int]] = []
    group: list[tuple[SegmentResult, int]] = []
    ends: list[float] = []

    def close() -> None:
        placed.extend((segment, lane, len(ends)) for segment, lane in group)
        group.clear()
        ends.clear()

    for segment in sorted(segments, key=lambda s: (s.started, s.ended, s.kind, s.number)):
        if ends and segment.started >= max(ends):
            close()
        lane = next((i for i, end in enumerate(ends) if end <= segment.started), len(ends))
        ends[lane : lane + 1] = [segment.ended]
        group.append((segment, lane))
    close()
    return placed


def _by_number(row: tuple[str, str]) -> tuple[tuple[int, str], tuple[int, str]]:
    # "10" after "9", "node10" after "node9".
    return (len(row[0]), row[0]), (len(row[1]), row[1])
