"""Timeline of the GCDs: rows, tracks and bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hydragnn_flow.segment import SegmentResult

# A gap in which nothing ran anywhere is cut out of the axis once it is longer than this [s] and
# than this fraction of the time in which something ran: a campaign killed at night and started
# again in the morning would otherwise be two specks at the ends of an empty chart.
_PAUSE_SECONDS, _PAUSE_FRACTION = 60.0, 0.25
# Width of a cut, as a fraction of the time shown.
_CUT_FRACTION = 0.03


@dataclass(frozen=True)
class Bar:
    """One segment on one GCD."""

    segment: SegmentResult
    row: int
    track: int
    """Position among the segments that ran on the GCD at that time, from 0."""
    tracks: int
    """Number of tracks of the row at that time."""
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
    """Fraction of the time, pauses left out, in which each row's GCD ran nothing."""
    pauses: tuple[Pause, ...]
    length: float
    """Length of the axis [s]."""
    untimed: int
    """Segments whose place or time is unknown: they were lost with their worker."""


def lay_out(segments: Sequence[SegmentResult]) -> Timeline:
    """Place every segment on the rows of the GCDs it used.

    Segments that overlap on a GCD are put into tracks of its row, each as wide as the others.
    """
    timed = [s for s in segments if s.gcds and s.started > 0 and s.ended >= s.started]
    untimed = len(segments) - len(timed)
    if not timed:
        return Timeline((), (), (), (), 0.0, untimed)
    running = union([(s.started, s.ended) for s in timed])
    axis = Axis(running)
    on: dict[tuple[str, str], list[SegmentResult]] = {}
    for segment in timed:
        for place in set(segment.places):
            on.setdefault(place, []).append(segment)
    rows = sorted(on, key=_by_number)
    bars: list[Bar] = []
    idle = []
    for index, row in enumerate(rows):
        for segment, track, tracks in _tracks(on[row]):
            ends = axis.at(segment.started), axis.at(segment.ended)
            bars.append(Bar(segment, index, track, tracks, *ends))
        busy = sum(end - start for start, end in union([(s.started, s.ended) for s in on[row]]))
        idle.append(1 - busy / axis.counted if axis.counted else 0.0)
    pauses = tuple(axis.pauses)
    return Timeline(tuple(rows), tuple(bars), tuple(idle), pauses, axis.at(running[-1][1]), untimed)


class Axis:
    """Unix time -> seconds on an axis without the pauses.

    Parameters
    ----------
    running
        Stretches of time in which anything ran, apart from each other and in order.
    """

    def __init__(self, running: list[tuple[float, float]]) -> None:
        self._first = running[0][0]
        busy = sum(end - start for start, end in running)
        limit = max(_PAUSE_SECONDS, _PAUSE_FRACTION * busy)
        gaps = [(a[1], b[0]) for a, b in pairwise(running)]
        self.gaps = [(start, end) for start, end in gaps if end - start > limit]
        """Stretches that are cut out."""
        cut = sum(end - start for start, end in self.gaps)
        self.counted = running[-1][1] - self._first - cut
        """Time that idle fractions refer to [s]."""
        self._width = _CUT_FRACTION * self.counted
        self.pauses = [
            Pause(self.at(start) + self._width / 2, end - start) for start, end in self.gaps
        ]

    def at(self, time: float) -> float:
        """Place of a Unix time on the axis [s]."""
        before = [gap for gap in self.gaps if gap[1] <= time]
        cut = sum(end - start for start, end in before)
        return time - self._first - cut + len(before) * self._width


def union(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Stretches of time that any of the intervals covers, in order."""
    joined: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _tracks(segments: list[SegmentResult]) -> list[tuple[SegmentResult, int, int]]:
    """Give each segment the first free track; count tracks per group of overlaps."""
    placed: list[tuple[SegmentResult, int, int]] = []
    group: list[tuple[SegmentResult, int]] = []
    ends: list[float] = []

    def close() -> None:
        placed.extend((segment, track, len(ends)) for segment, track in group)
        group.clear()
        ends.clear()

    for segment in sorted(segments, key=lambda s: (s.started, s.ended, s.kind, s.number)):
        if ends and segment.started >= max(ends):
            close()
        track = next((i for i, end in enumerate(ends) if end <= segment.started), len(ends))
        ends[track : track + 1] = [segment.ended]
        group.append((segment, track))
    close()
    return placed


def _by_number(row: tuple[str, str]) -> tuple[tuple[int, str], tuple[int, str]]:
    # "10" after "9", "node10" after "node9".
    return (len(row[0]), row[0]), (len(row[1]), row[1])
