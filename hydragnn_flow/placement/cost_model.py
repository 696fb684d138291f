"""Cost model: seconds and memory of a segment, from its network and then from experience.

The first estimate adds up what a step computes, moves, launches and exchanges, at the guessed rates
of the site's GCDs; an accelerator computes while it launches, so that the longer of the two counts,
and a little more where they are as long (Williams, Waterman & Patterson, Commun. ACM 52, 65
(2009)). Whole segments then correct the rates; see :mod:`~hydragnn_flow.placement.regression`.
Every estimate is an interval.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.placement.regression import Case, Prior, Regression, quantile

T = TypeVar("T")
GIB = 2**30
# Weights, two moments, their running average and the best copy, in units of the weights.
COPIES_OF_WEIGHTS = 5
# The last segments of a message-passing type that count, so that a change of the machine is
# followed.
WINDOW = 16
# Mean number of segments on a GCD from which a segment there counts as one of a pack.
_SHARED = 1.5
# The effect of sharing is known once four segments of packs and four others were seen, and the
# deviation of its power is less than 0.3.
_ENOUGH, _KNOWN = 4, 0.3
# A fit is made again once so many more segments were seen, as a fraction of those that count.
_AGAIN_AFTER = 0.2

# Chosen on tests/placement/steps.csv. What is wrong with a machine's rates is mostly wrong with all
# of them; start-up and checkpoints have little to do with the rest.
_STEPS = Prior(noise=0.12, counts=4, common=0.8, terms=(0.2,) * 5, kinds=0.1)
_REST = Prior(noise=0.3, counts=4, common=0.1, terms=(2.0, 1.5, 0.4, 1.5), kinds=0.05)
_MEMORY = Prior(noise=0.05, counts=4, common=0.05, terms=(0.01,), kinds=0.05)
# Deviation of the logarithm of a step's time from that of an earlier segment of the same trial,
# and how many observations this guess is worth.
_REPEATED, _REPEATED_COUNTS = 0.1, 4.0
_REPEATS = 64

# Steps that the first one lasts longer than another: what it compiles and allocates.
_WARM_UP_STEPS = 1.0
# Of the time of a training step: prediction alone of as many graphs.
_PREDICTION = 0.4
# Processes differ by less than this factor before they have a model.
_PROCESS_MARGIN = 1.1
# Standard deviations to the largest of some thousand sums.
_FAR = 3.5
# Of a segment's time, where its steps as timed leave less.
_LEAST_REST = 1e-3


@dataclass(frozen=True)
class Gcd:
    """Speed and memory of one GCD; on a laptop, of one CPU slot."""

    memory_gib: float
    """Memory a segment may use [GiB]."""
    flops: float
    """Arithmetic rate in fp32 on layers of this size [1/s]."""
    bandwidth: float
    """Memory traffic [B/s]."""
    launch_seconds: float
    """Time to start one operation [s]."""
    process_gib: float
    """Memory a process takes before it has a model [GiB]."""
    most_segments: int
    """Largest number of segments side by side on one GCD; 1 on CPU slots."""
    launches: bool = False
    """Whether it starts operations itself, as a CPU core does: it is always busy then, and the
    times to start and to compute add up."""
    step_seconds: float = 1e-3
    """Time of a step beside its operations: reading the batch, bookkeeping [s]."""
    start_seconds: float = 0.1
    """Time a segment takes to open its store and checkpoint and to build its network [s]."""
    epoch_seconds: float = 0.005
    """Time at the end of an epoch beside its validation: the checkpoint [s]."""
    node_bandwidth: float = 5e10
    """Rate at which a GCD exchanges gradients within its node [B/s]."""
    network_bandwidth: float = 1e10
    """The same, between nodes [B/s]."""


@dataclass(frozen=True)
class Work:
    """One training step, counted from the network and the size of its batch."""

    flops: float
    bytes: float
    launches: float
    """Operations that each GCD starts, however many there are."""
    activation_bytes: float
    """Most memory of a GCD at a time, beyond weights and their copies."""
    parameter_bytes: float
    parts: float = 1
    """GCDs that hold the network together, each a part of it."""
    gathers: float = 0
    """Times in a step that each of these gathers the parameters."""
    gathered_bytes: float = 0.0
    """Most parameters and gradients that it holds beyond its part at a time."""
    head_bytes: float = 0.0
    """Those of the parameters that are of heads, and that GCDs may divide by branches."""

    def exchanged_bytes(self, width: int) -> float:
        """Bytes that each of some GCDs sends in a step.

        Around a ring (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 117 (2009)): a sum over
        *n* GCDs sends 2 (n - 1) / n of what is summed, to gather it or to scatter the sum half of
        that.
        """
        replicas = width / self.parts
        sums = 2 * (replicas - 1) / replicas * self.parameter_bytes / self.parts
        within = (self.parts - 1) / self.parts * self.parameter_bytes
        return sums + (1 + self.gathers) * within


@dataclass(frozen=True)
class Estimate:
    """Expected cost of a segment."""

    seconds: float
    """Time on its GCDs, added up over them [s]; as likely too low as too high."""
    memory_gib: float
    """Peak memory of each, process included [GiB], exceeded by one segment of a hundred."""
    uncorrected_seconds: float
    """Time of its training steps as the network alone says, before experience corrected it [s]."""
    busy: float
    """Fraction of the time the GCD computes rather than waits for the next launch, 0 to 1."""
    uncorrected_memory_gib: float = 0.0
    """Peak memory as the network alone says, without a margin [GiB]."""
    low: float = 0.0
    """5th percentile of ``seconds`` [s]."""
    high: float = math.inf
    """95th percentile of ``seconds`` [s]."""
    step_work: tuple[float, ...] = ()
    """Fields of the :class:`Work` of one of its steps."""


@dataclass(frozen=True)
class Taken:
    """Measured cost of a whole segment, beside its network's."""

    work: Work
    """One of its steps, as counted."""
    steps: int
    step_seconds: float
    """Mean time of a step, without the first [s]."""
    seconds: float
    """Time from its start to its end [s]."""
    epochs: int
    evaluated: float
    """Graphs of the validation split over those of a step."""
    memory: float | None = None
    """As :meth:`CostModel.observe_memory` takes it; None if the process is most of the memory."""
    together: float = 1.0
    """Mean number of segments on the GCD while it was there, itself included."""
    width: int = 1
    """GCDs it had."""
    joules: float | None = None
    """Energy that it was charged with on all of them [J]; None if that was not counted."""

    @property
    def is_pack(self) -> bool:
        """Whether it shared its GCD for most of the time."""
        return self.together >= _SHARED

    @property
    def is_sound(self) -> bool:
        """Whether these are measurements."""
        work, memory = self.work, 1.0 if self.memory is None else self.memory
        positive = (self.steps, self.step_seconds, self.seconds, self.together, self.width, memory)
        others = (work.flops, work.bytes, work.launches, work.parameter_bytes)
        return all(0 < value < math.inf for value in positive) and all(
            0 <= value < math.inf for value in (*others, self.epochs, self.evaluated)
        )


class Sharing(NamedTuple):
    """What is known of segments that share a GCD."""

    is_known: bool
    """Whether enough were seen together, and alone."""
    pays: bool
    """Whether they may get on better together than one after the other, for all that is known."""


@dataclass(frozen=True)
class Experience:
    """What a cost model has seen, to be kept in a file."""

    segments: dict[str, list[Taken]]
    """The last segments of each message-passing type on GCDs of their own, the newest last."""
    memory: dict[str, list[float]]
    """Their peak memory over the counted one."""
    repeats: list[float]
    """Logarithms of measured over expected times of steps, where a trial's own were known."""
    process_gib: float
    """Most memory that a process takes before it has a model [GiB]."""
    packs: dict[str, list[Taken]] = field(default_factory=dict)
    """The last segments of each type that shared their GCD, which is not forgotten for others."""
    rest_watts: float | None = None
    """Power of a node beside what its segments use [W], of the last campaign that counted it."""

    def after(self, earlier: Experience) -> Experience:
        """This, after what was seen earlier, as far as that is not the same and still counts."""
        repeats = [one for one in earlier.repeats if one not in self.repeats]
        return Experience(
            _joined(earlier.segments, self.segments),
            _joined(earlier.memory, self.memory),
            [*repeats, *self.repeats][-_REPEATS:],
            min(self.process_gib, earlier.process_gib),
            _joined(earlier.packs, self.packs),
            earlier.rest_watts if self.rest_watts is None else self.rest_watts,
        )

    def without(self, earlier: Experience) -> Experience:
        """What was not seen earlier."""
        return Experience(
            _less(self.segments, earlier.segments),
            _less(self.memory, earlier.memory),
            [one for one in self.repeats if one not in earlier.repeats],
            self.process_gib,
            _less(self.packs, earlier.packs),
            self.rest_watts,
        )


@dataclass(frozen=True)
class _Fits:
    """What is known of steps, of the time beside them, and of memory."""

    steps: Regression
    rest: Regression
    memory: Regression


class CostModel:
    """Predicts seconds and memory of segments; learns from those that ran.

    Parameters
    ----------
    gcd
        The GCDs of the site.
    gcds_per_node
        Number of GCDs that exchange gradients without the network.

    Attributes
    ----------
    process_gib
        Memory that a process takes before it has a model [GiB], as far as that is known.
    rest_watts
        Power of a node beside what its segments use [W]; it is kept for later campaigns.
    """

    def __init__(self, gcd: Gcd, gcds_per_node: int = 1) -> None:
        self.gcd, self._gcds_per_node = gcd, gcds_per_node
        self.process_gib = gcd.process_gib
        self.rest_watts: float | None = None
        # An accelerator computes while the next operations are started.
        self._hidden = () if gcd.launches else ((0, 1), (2, 3))
        self._seen: dict[str, deque[Taken]] = {}
        self._packs: dict[str, deque[Taken]] = {}
        self._memory: dict[str, deque[float]] = {}
        self._repeats: deque[float] = deque(maxlen=_REPEATS)
        self._guess = self._fitted = self._fit()
        self._new = 0

    def estimate(
        self,
        kind: str,
        work: Work,
        steps: int,
        width: int = 1,
        own: Taken | None = None,
        *,
        epochs: int = 0,
        evaluated: float = 0.0,
    ) -> Estimate:
        """Predict a segment.

        Parameters
        ----------
        kind
            The message-passing type: segments of one type have a correction in common.
        work
            One training step.
        steps
            Number of steps.
        width
            GCDs it is to have.
        own
            An earlier segment of the same trial, whose times and memory take precedence.
        epochs
            Number of epochs, each of which ends with a validation.
        evaluated
            Graphs of the validation split over those of a step.
        """
        fits, case = self._fits(), self._step_case(kind, work, width)
        step = fits.steps.expect(case)
        log, deviation, freedom = step.log, step.deviation, step.freedom
        if own is not None and own.is_sound:
            before = self._step_case(kind, own.work, own.width, own.together)
            log += math.log(own.step_seconds) - fits.steps.expect(before).log
            deviation, freedom = self._repeated()
        seconds = math.exp(log)
        rest = fits.rest.expect(self._rest_case(seconds, epochs, evaluated))
        training, beside = steps * seconds, math.exp(rest.log)
        total = training + beside
        off = math.hypot(
            quantile(95, freedom) * deviation * training,
            quantile(95, rest.freedom) * rest.deviation * beside,
        )
        factor = math.exp(off / total)
        guess = self._guess.steps.expect(self._step_case(kind, work, width))
        net = _net_bytes(work) / GIB
        return Estimate(
            seconds=width * total,
            low=width * total / factor,
            high=width * total * factor,
            uncorrected_seconds=width * steps * math.exp(guess.log),
            memory_gib=self.process_gib + net * self._memory_factor(kind, own),
            uncorrected_memory_gib=self.gcd.process_gib + net,
            step_work=tuple(vars(work).values()),
            busy=1.0 if self.gcd.launches else min(1.0, float(step.parts[:2].sum())),
        )

    @property
    def sharing(self) -> Sharing:
        """How segments on a GCD get on: steps of each of n take n^a times as long as alone."""
        power, deviation, freedom = self._fits().steps.power(0)
        alone, together = (sum(map(len, of.values())) for of in (self._seen, self._packs))
        is_known = min(alone, together) >= _ENOUGH and deviation < _KNOWN
        is_worse = power - quantile(95, freedom) * deviation > 1
        return Sharing(is_known, pays=not (is_known and is_worse))

    def observe(self, kind: str, taken: Taken, own: Taken | None = None) -> None:
        """Learn from a segment that did all of its work.

        Parameters
        ----------
        kind
            As given to :meth:`estimate`.
        taken
            What it took.
        own
            The segment of the same trial before it, if there was one.
        """
        if not taken.is_sound:
            return
        if own is not None and own.is_sound:
            cases = [self._step_case(kind, t.work, t.width, t.together) for t in (taken, own)]
            expected, before = (self._fits().steps.expect(case).log for case in cases)
            ratio = math.log(taken.step_seconds / own.step_seconds)
            self._repeats.append(ratio - (expected - before))
        seen = self._packs if taken.is_pack else self._seen
        seen.setdefault(kind, deque(maxlen=WINDOW)).append(taken)
        self._new += 1

    def observe_memory(self, kind: str, ratio: float) -> None:
        """Learn from a measured peak, or from the memory that was not enough.

        Parameters
        ----------
        kind
            As given to :meth:`estimate`.
        ratio
            Peak memory over the counted one, both without the process.
        """
        if 0 < ratio < math.inf:
            self._memory.setdefault(kind, deque(maxlen=WINDOW)).append(ratio)
            self._new += 1

    def observe_process(self, peak_gib: float) -> None:
        """Learn from a measured peak that has the process in it, which took no more than that."""
        if peak_gib > 0:
            self.process_gib = min(self.process_gib, _PROCESS_MARGIN * peak_gib)

    def experience(self) -> Experience:
        """All that was seen and still counts."""
        return Experience(
            {kind: list(several) for kind, several in self._seen.items()},
            {kind: list(several) for kind, several in self._memory.items()},
            list(self._repeats),
            self.process_gib,
            {kind: list(several) for kind, several in self._packs.items()},
            self.rest_watts,
        )

    def recall(self, earlier: Experience) -> None:
        """Learn from what was seen before all that was observed here, as far as it is not the same.

        Parameters
        ----------
        earlier
            Of another model for the same GCDs, which may have seen some of the same segments.
        """
        for mine, theirs in (self._seen, earlier.segments), (self._packs, earlier.packs):
            sound = {kind: [one for one in them if one.is_sound] for kind, them in theirs.items()}
            self._new += _put_before(mine, sound)
        memory = {
            kind: [ratio for ratio in several if 0 < ratio < math.inf]
            for kind, several in earlier.memory.items()
        }
        self._new += _put_before(self._memory, memory)
        if not self._repeats:
            self._repeats.extend(filter(math.isfinite, earlier.repeats))
        self.observe_process(earlier.process_gib / _PROCESS_MARGIN)
        if self.rest_watts is None:
            self.rest_watts = earlier.rest_watts

    def _fits(self) -> _Fits:
        """The fits, made again once enough has been seen since."""
        all_of_it = (self._seen, self._packs, self._memory)
        seen = sum(len(several) for one in all_of_it for several in one.values())
        if self._new > _AGAIN_AFTER * seen:
            self._fitted, self._new = self._fit(), 0
        return self._fitted

    def _fit(self) -> _Fits:
        steps: list[tuple[Case, float]] = []
        rest: list[tuple[Case, float]] = []
        for kind, several in chain(self._seen.items(), self._packs.items()):
            for t in several:
                steps.append((self._step_case(kind, t.work, t.width, t.together), t.step_seconds))
                beside = t.seconds - t.steps * t.step_seconds
                least = _LEAST_REST * t.seconds
                rest_case = self._rest_case(t.step_seconds, t.epochs, t.evaluated, t.together)
                rest.append((rest_case, max(beside, least)))
        memory = [
            (Case(kind, (1.0,)), ratio) for kind, ratios in self._memory.items() for ratio in ratios
        ]
        return _Fits(
            Regression(_STEPS, 2, steps, self._hidden),
            Regression(_REST, 1, rest),
            Regression(_MEMORY, 0, memory),
        )

    def _step_case(self, kind: str, work: Work, width: int, together: float = 1.0) -> Case:
        gcd = self.gcd
        is_within = width <= self._gcds_per_node
        bandwidth = gcd.node_bandwidth if is_within else gcd.network_bandwidth
        terms = (
            work.flops / width / gcd.flops,
            work.bytes / width / gcd.bandwidth,
            work.launches * gcd.launch_seconds,
            gcd.step_seconds,
            work.exchanged_bytes(width) / bandwidth,
        )
        return Case(kind, terms, (math.log(together), math.log(width)))

    def _rest_case(
        self, step_seconds: float, epochs: int, evaluated: float, together: float = 1.0
    ) -> Case:
        terms = (
            self.gcd.start_seconds,
            _WARM_UP_STEPS * step_seconds,
            _PREDICTION * step_seconds * epochs * evaluated,
            self.gcd.epoch_seconds * epochs,
        )
        return Case("", terms, (math.log(together),))

    def _repeated(self) -> tuple[float, float]:
        """Deviation of a step's time from the trial's own, and its degrees of freedom."""
        freedom = _REPEATED_COUNTS + len(self._repeats)
        squares = _REPEATED_COUNTS * _REPEATED**2 + math.fsum(x * x for x in self._repeats)
        return math.sqrt(squares / freedom), freedom

    def _memory_factor(self, kind: str, own: Taken | None) -> float:
        expected = self._fits().memory.expect(Case(kind, (1.0,)))
        log, deviation = expected.log, expected.deviation
        if own is not None and own.memory is not None:
            log, deviation = math.log(own.memory), _MEMORY.noise
        return math.exp(log + quantile(99, expected.freedom) * deviation)


def _put_before(seen: dict[str, deque[T]], earlier: dict[str, list[T]]) -> int:
    """Put what was seen earlier before the rest, as far as it is not there; returns how much."""
    new = 0
    for kind, several in earlier.items():
        mine = seen.get(kind, ())
        before = [one for one in several if one not in mine]
        seen[kind] = deque([*before, *mine], maxlen=WINDOW)
        new += len(before)
    return new


def _joined(earlier: dict[str, list[T]], later: dict[str, list[T]]) -> dict[str, list[T]]:
    """The last of what was seen, earlier or later."""
    seen = {kind: deque(several, WINDOW) for kind, several in later.items()}
    _put_before(seen, earlier)
    return {kind: list(several) for kind, several in seen.items()}


def _less(seen: dict[str, list[T]], earlier: dict[str, list[T]]) -> dict[str, list[T]]:
    """What was seen but not earlier."""
    return {
        kind: [one for one in several if one not in earlier.get(kind, ())]
        for kind, several in seen.items()
    }


def _net_bytes(work: Work) -> float:
    """Memory of a GCD, as counted, without the process [B]."""
    held = COPIES_OF_WEIGHTS * work.parameter_bytes / work.parts + work.gathered_bytes
    return work.activation_bytes + held


@dataclass(frozen=True)
class Sizes:
    """How the sizes of graphs are distributed."""

    mean: float
    deviation: float
    skewness: float
    largest: float

    @classmethod
    def of(cls, sizes: NDArray[np.int64]) -> Sizes:
        """Sizes from the number of atoms, or of edges, of each graph."""
        mean, deviation = float(sizes.mean()), float(sizes.std())
        skewness = float((((sizes - mean) / (deviation or 1.0)) ** 3).mean())
        return cls(mean, deviation, skewness, float(sizes.max()))

    def largest_batch(self, graphs: float) -> float:
        """How much larger the largest of some thousand random batches is than the mean one.

        The quantile of a sum to the second order (Cornish and Fisher, Rev. Inst. Int. Stat. 5, 307
        (1938)), at 3.5 standard deviations.

        Parameters
        ----------
        graphs
            In a batch.
        """
        graphs = max(graphs, 1.0)
        far = _FAR + (_FAR**2 - 1) / 6 * max(0.0, self.skewness) / math.sqrt(graphs)
        above = far * self.deviation / math.sqrt(graphs)
        return max(1.0, min(self.mean + above, self.largest) / self.mean)
