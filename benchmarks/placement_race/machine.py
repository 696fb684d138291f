"""A machine whose segments take known times of a clock that moves from end to end."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from hydragnn_flow.execution import Rank
from hydragnn_flow.placement import Host
from hydragnn_flow.segment import SegmentResult, SegmentSpec, TrainingOutcome

Event = TypeVar("Event")
SECONDS_TO_STOP = 2.0


@dataclass(frozen=True)
class Truth:
    """What a segment really takes."""

    seconds: float
    """On its GCDs, alone there [s]."""
    busy: float
    """Part of a GCD's time that it computes."""
    n: int = 1


@dataclass(eq=False)
class _Running:
    spec: SegmentSpec
    places: list[tuple[str, int]]
    truth: Truth
    parts: dict[str, Future[list[SegmentResult]]]
    ranks: dict[str, int]
    started: float
    left: float
    """Of its time alone [s]."""
    rate: float = 1.0
    since: float = 0.0
    number: int = 0
    stops: bool = False


@dataclass
class Machine:
    """GCDs that segments share as processors are shared: each is slowed down by what is busy.

    Parameters
    ----------
    hosts
        Nodes.
    truth
        What all of a segment, from its first epoch on, takes on a number of GCDs.
    overhead
        Time to begin a segment [s].
    """

    nodes: Sequence[Host]
    truth: Callable[[SegmentSpec, int], Truth]
    overhead: float = 0.0
    trace: list[float] = field(default_factory=list)
    gcds: int = 0
    mem: Any = None
    now: float = 0.0
    busy_seconds: float = 0.0
    """Time that GCDs computed, added up [s]."""
    held_seconds: float = 0.0
    """Time that GCDs had anything to do, added up [s]."""
    _ends: list[tuple[float, int, _Running]] = field(default_factory=list)
    _order: itertools.count[int] = field(default_factory=itertools.count)
    _on: dict[tuple[str, int], list[_Running]] = field(default_factory=dict)
    _held_since: dict[tuple[str, int], float] = field(default_factory=dict)
    _coming: dict[str, _Running] = field(default_factory=dict)
    _at: dict[str, _Running] = field(default_factory=dict)
    epochs: dict[tuple[str, int], float] = field(default_factory=dict)
    """Epochs that are done, by trial or member."""

    def monotonic(self) -> float:
        return self.now

    def next(self, events: SimpleQueue[Event], seconds: float) -> Event | None:
        until = self.now + seconds
        while events.empty() and self._ends and self._ends[0][0] <= until:
            self._pop()
        if events.empty():
            self.now = max(self.now, until)
            return None
        return events.get()

    def hosts(self) -> Sequence[Host]:
        return self.nodes

    def update(self, demand: int = 0) -> None: ...

    def waiting(self) -> str:
        return ""

    def record(self, node: str, work: Hashable, worked: bool) -> None: ...

    def avoid(self, node: str, reason: str) -> None: ...

    def call_off(self, node: str, attempt: str, reason: str) -> None: ...

    def release(self, node: str, attempt: str) -> None:
        running = self._at.get(attempt)
        if running is not None and not running.stops:
            self._progress(running)
            running.stops = True
            self._push(running, min(self.now + SECONDS_TO_STOP, self._end(running)))

    def run(self, ranks: Sequence[Rank], node: str) -> Future[list[SegmentResult]]:
        spec, future = ranks[0].spec, Future[list[SegmentResult]]()
        key = (spec.kind, spec.number)
        running = self._coming.get(spec.attempt)
        if running is None:
            done = max(self.epochs.get(key, 0.0), spec.after_epoch)
            whole = self.truth(spec, ranks[0].world)
            left = whole.seconds * (spec.until_epoch - done) / spec.until_epoch
            running = _Running(spec, [], whole, {}, {}, self.now, left + self.overhead)
            self._coming[spec.attempt] = self._at[spec.attempt] = running
        running.parts[node], running.ranks[node] = future, len(ranks)
        running.places += [(node, rank.gcd or 0) for rank in ranks]
        if len(running.places) == ranks[0].world:
            del self._coming[spec.attempt]
            running.started = running.since = self.now
            for place in running.places:
                there = self._on.setdefault(place, [])
                if not there:
                    self._held_since[place] = self.now
                there.append(running)
            self._pace(running.places)
        return future

    def _pop(self) -> None:
        end, number, running = heapq.heappop(self._ends)
        if number != running.number:
            return  # its pace has changed since
        self.now = max(self.now, end)
        while self.trace and self.now >= self.trace[0]:
            self.trace.pop(0)
            for there in {id(r): r for o in self._on.values() for r in o}.values():
                self._progress(there)
            print(f"{self.now:7.0f} busy {self.busy_seconds/self.gcds/self.now:.3f} now {sum(min(1, sum(r.truth.busy for r in o)) for o in self._on.values())/self.gcds:.3f} mem {sum(self.mem(r.spec)/r.truth.n for o in self._on.values() for r in o)/self.gcds/58:.3f} held {sum(map(bool, self._on.values()))/self.gcds:.3f} running {len(self._at)} per gcd {sum(map(len, self._on.values()))/self.gcds:.2f}", flush=True)
        self._progress(running)
        spec = running.spec
        del self._at[spec.attempt]
        for place in running.places:
            self._on[place].remove(running)
            if not self._on[place]:
                self.held_seconds += self.now - self._held_since.pop(place)
        self._pace(running.places)
        took = self.now - running.started
        key = (spec.kind, spec.number)
        done = max(self.epochs.get(key, 0.0), spec.after_epoch)
        part = max(0.0, running.left) / running.truth.seconds
        reached = min(float(spec.until_epoch), max(done, spec.until_epoch * (1 - part)))
        is_over = part < 1e-9
        self.epochs[key] = float(spec.until_epoch) if is_over else reached
        result = SegmentResult.of(
            spec,
            TrainingOutcome(
                status="ok" if is_over else "interrupted",
                reason="" if is_over else "asked to stop",
                from_epoch=int(done),
                to_epoch=spec.until_epoch if is_over else int(reached),
                best_val_error=1.0,
                best_val_loss=1.0,
                best_epoch=1,
                checkpoint=spec.checkpoint.name,
                seconds=took,
                started=1e9 + running.started,
                ended=1e9 + self.now,
            ),
        )
        for node, future in running.parts.items():
            future.set_result([result] * running.ranks[node])

    def _progress(self, running: _Running) -> None:
        passed = self.now - running.since
        running.left -= passed * running.rate
        self.busy_seconds += passed * running.rate * running.truth.busy * len(running.places)
        running.since = self.now

    def _pace(self, places: Sequence[tuple[str, int]]) -> None:
        for running in {one for place in places for one in self._on[place]}:
            self._progress(running)
            busy = max(sum(one.truth.busy for one in self._on[place]) for place in running.places)
            running.rate = min(1.0, 1.0 / busy)
            if not running.stops:
                self._push(running, self._end(running))

    def _end(self, running: _Running) -> float:
        return self.now + max(0.0, running.left) / running.rate

    def _push(self, running: _Running, end: float) -> None:
        running.number = next(self._order)
        heapq.heappush(self._ends, (end, running.number, running))
