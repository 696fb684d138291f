"""Cost model: predicts the time and memory of a segment, and learns from measured segments.

A segment is one stretch of a trial's or member's training, sent as one job. The first prediction
adds the times of a step for arithmetic, memory traffic, launches of operations and exchange of
gradients, at guessed rates of the site's GCDs. An accelerator computes while the next operations
are launched, so only the longer of both counts, plus a little where they are equally long
(Williams, Waterman & Patterson, Commun. ACM 52, 65 (2009)). Finished segments then correct the
rates; see :mod:`~hydragnn_flow.placement.regression`. Every prediction is an interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.placement.regression import Case, Prior, Regression, quantile

T = TypeVar("T")
GIB = 2**30
# Weights, two moments, their running average and the best copy: memory in units of the weights.
COPIES_OF_WEIGHTS = 5
# Number of recent segments of a message-passing type that the fit uses: old ones are dropped, so
# that it follows changes of the machine.
WINDOW = 16

# Chosen on tests/placement/steps.csv. Errors of a machine's rates are mostly common to all of them;
# start-up and checkpoints have little to do with the rest.
_STEPS = Prior(noise=0.12, counts=4, common=0.8, terms=(0.2,) * 5, kinds=0.1)
_REST = Prior(noise=0.3, counts=4, common=0.1, terms=(2.0, 1.5, 0.4, 1.5), kinds=0.05)
_MEMORY = Prior(noise=0.05, counts=4, common=0.05, terms=(0.01,), kinds=0.05)


@dataclass(frozen=True)
class Gcd:
    """Speed and memory of one GCD: a device as torch counts it, or on a laptop a CPU slot."""

    memory_gib: float
    """Memory a segment may use [GiB]."""
    flops: float
    """Rate of fp32 operations on layers of the usual size [1/s]."""
    bandwidth: float
    """Rate of memory traffic [B/s]."""
    launch_seconds: float
    """Time to launch one operation (kernel) [s]."""
    process_gib: float
    """Memory a trainer process takes before it has a model [GiB]."""
    most_segments: int
    """Largest number of segments on one GCD at a time; 1 on CPU slots."""
    launches: bool = False
    """True if the GCD launches its operations itself, as a CPU core does: the times to launch and
    to compute then add up. False if it computes while the next ones are launched."""
    step_seconds: float = 1e-3
    """Time of a training step outside its operations: reading the batch, bookkeeping [s]."""
    start_seconds: float = 0.1
    """Time a segment takes to open its store and checkpoint and to build its network [s]."""
    epoch_seconds: float = 0.005
    """Time at the end of an epoch outside its validation: the checkpoint [s]."""
    node_bandwidth: float = 5e10
    """Rate at which a GCD exchanges gradients within its node [B/s]."""
    network_bandwidth: float = 1e10
    """Rate at which a GCD exchanges gradients with other nodes [B/s]."""


@dataclass(frozen=True)
class Work:
    """Work of one training step: FLOPs, bytes, kernel launches and memory of a network.

    It is counted from the network and the size of its batch.
    """

    flops: float
    bytes: float
    launches: float
    """Number of operations (kernels) that each GCD launches in a step, whatever the number of
    GCDs."""
    activation_bytes: float
    """Peak memory of a GCD in addition to the weights and their copies [B]."""
    parameter_bytes: float
    parts: float = 1
    """Number of GCDs over which the parameters are sharded (divided); 1 if each GCD holds all of
    them."""
    gathers: float = 0
    """Number of times in a step that a GCD gathers the sharded parameters from the others."""
    gathered_bytes: float = 0.0
    """Largest amount of parameters and gradients that a GCD holds in addition to its own shard
    [B]."""
    head_bytes: float = 0.0
    """Parameters of the heads [B], which GCDs may divide among them by branch (heads of one data
    set)."""
    update_flops: float = 0.0
    """Floating-point operations with which each GCD updates the weights."""

    def exchanged_bytes(self, width: int) -> float:
        """Compute the number of bytes that each of ``width`` GCDs sends in a training step.

        Collectives run around a ring (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 117
        (2009)): an all-reduce over *n* GCDs sends 2 (n - 1) / n of the data from each, an
        all-gather or a reduce-scatter half of that.
        """
        replicas = width / self.parts
        sums = 2 * (replicas - 1) / replicas * self.parameter_bytes / self.parts
        within = (self.parts - 1) / self.parts * self.parameter_bytes
        return sums + (1 + self.gathers) * within


@dataclass(frozen=True)
class Estimate:
    """Predicted time and memory of a segment (one stretch of training, sent as one job)."""

    seconds: float
    """Median of the predicted time, summed over the segment's GCDs [s]."""
    memory_gib: float
    """Peak memory of each GCD, process included [GiB]; exceeded by one segment in a hundred."""
    uncorrected_seconds: float
    """Time of the training steps at the guessed rates, summed over the GCDs [s]; no measurement has
    corrected it."""
    busy: float
    """Fraction of the time that the GCD computes rather than waits for a launch, 0 to 1."""
    uncorrected_memory_gib: float = 0.0
    """Peak memory of each GCD as counted from the network, without a margin [GiB]."""
    network_gib: float = 0.0
    """Median of the predicted peak memory of each GCD, without the process [GiB]."""
    low: float = 0.0
    """5th percentile of ``seconds`` [s]."""
    high: float = math.inf
    """95th percentile of ``seconds`` [s]."""
    step_work: tuple[float, ...] = ()
    """Values of the fields of :class:`Work` for one step, in their order."""


@dataclass(frozen=True)
class Taken:
    """Measured cost of a segment (job of training) that ran to its end, with the work of a step."""

    work: Work
    """Counted work of one training step."""
    steps: int
    step_seconds: float
    """Mean time of a training step, the first excluded [s]."""
    seconds: float
    """Time from the start of the segment to its end [s]."""
    epochs: int
    evaluated: float
    """Number of graphs validated after an epoch, divided by the number of graphs in a step."""
    memory: float | None = None
    """Measured peak memory divided by the counted one, both without the memory of the process; None
    if the process takes most of the memory."""
    together: float = 1.0
    """Mean number of segments on its GCD while it ran, itself included; 1 if it was alone."""
    width: int = 1
    """Number of GCDs that the segment ran on."""
    joules: float | None = None
    """Energy of the segment, summed over its GCDs [J]; None if it was not counted."""

    @property
    def is_pack(self) -> bool:
        """True if the segment shared its GCD most of the time: ``together`` is at least 1.5."""
        return self.together >= 1.5

    @property
    def is_sound(self) -> bool:
        """True if all measured values are finite and possible."""
        work, memory = self.work, 1.0 if self.memory is None else self.memory
        positive = (self.steps, self.step_seconds, self.seconds, self.together, self.width, memory)
        others = (work.flops, work.update_flops, work.bytes, work.launches, work.parameter_bytes)
        return all(0 < value < math.inf for value in positive) and all(
            0 <= value < math.inf for value in (*others, self.epochs, self.evaluated)
        )


class Sharing(NamedTuple):
    """Knowledge of whether segments that share a GCD (device) are faster than one after another."""

    is_known: bool
    """True if enough segments were measured, both co-located and alone."""
    pays: bool
    """False if co-located segments are known to be slower than one after the other; else True."""


@dataclass(frozen=True)
class Experience:
    """Measurements of segments that a cost model has learnt from, as they are kept in a file."""

    segments: dict[str, list[Taken]]
    """Recent segments that had their GCDs to themselves, by message-passing type, newest last."""
    memory: dict[str, list[float]]
    """Ratios of measured to counted peak memory of recent segments, by message-passing type."""
    repeats: list[float]
    """Logarithms of measured over predicted step times, for trials that had been measured
    before."""
    process_gib: float
    """Upper bound of the memory that a process takes before it has a model [GiB]."""
    packs: dict[str, list[Taken]] = field(default_factory=dict)
    """Recent co-located segments by message-passing type; kept here so that segments alone do not
    evict them."""
    rest_watts: float | None = None
    """Power of a node outside its segments [W], as last counted; None if no campaign has counted
    it."""

    def after(self, earlier: Experience) -> Experience:
        """Return these measurements merged with earlier ones, without duplicates.

        Earlier measurements come first. The last 16 of each message-passing type are kept.
        """
        repeats = [one for one in earlier.repeats if one not in self.repeats]
        return Experience(
            _joined(earlier.segments, self.segments),
            _joined(earlier.memory, self.memory),
            [*repeats, *self.repeats][-4 * WINDOW :],
            min(self.process_gib, earlier.process_gib),
            _joined(earlier.packs, self.packs),
            earlier.rest_watts if self.rest_watts is None else self.rest_watts,
        )

    @property
    def sound(self) -> Experience:
        """These measurements, without values that are infinite, NaN or impossible."""
        return replace(
            self,
            segments=_kept(self.segments, lambda taken: taken.is_sound),
            memory=_kept(self.memory, lambda ratio: 0 < ratio < math.inf),
            repeats=[*filter(math.isfinite, self.repeats)],
            process_gib=self.process_gib if self.process_gib > 0 else math.inf,
            packs=_kept(self.packs, lambda taken: taken.is_sound),
        )

    def __len__(self) -> int:
        several = (self.segments, self.packs, self.memory)
        return sum(len(of) for one in several for of in one.values())

    def without(self, earlier: Experience) -> Experience:
        """Return these measurements without those that ``earlier`` contains too."""
        return replace(
            self,
            segments=_less(self.segments, earlier.segments),
            memory=_less(self.memory, earlier.memory),
            repeats=[one for one in self.repeats if one not in earlier.repeats],
            packs=_less(self.packs, earlier.packs),
        )


@dataclass(frozen=True)
class _Fits:
    steps: Regression
    rest: Regression
    memory: Regression


class CostModel:
    """Predictor of the time and memory of segments, which learns from measured ones.

    Parameters
    ----------
    gcd
        Speed and memory of each GCD of the site.
    gcds_per_node
        Number of GCDs of a node, which exchange gradients without the network.
    """

    def __init__(self, gcd: Gcd, gcds_per_node: int = 1) -> None:
        self.gcd, self._gcds_per_node = gcd, gcds_per_node
        # An accelerator computes while the next operations are started.
        self._hidden = () if gcd.launches else ((0, 1), (2, 3))
        self.experience = Experience({}, {}, [], gcd.process_gib)
        """Recent measurements that the predictions follow from."""
        self._guess = self._fitted = self._fit()
        self._new = 0

    @property
    def process_gib(self) -> float:
        """Upper bound of the memory of a trainer process before it has a model [GiB]."""
        return self.experience.process_gib

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
        """Predict the time and memory of a segment (job of training).

        Parameters
        ----------
        kind
            Message-passing type of the network. Segments of one type have a correction in common.
        work
            Counted work of one training step.
        steps
            Number of training steps.
        width
            Number of GCDs that the segment will run on.
        own
            Measured cost of an earlier segment of the trial, whose step time and memory take
            precedence; None if there was none.
        epochs
            Number of epochs, each of which ends with a validation.
        evaluated
            Number of graphs validated after an epoch, divided by the number of graphs in a step.
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
            quantile(0.95, freedom) * deviation * training,
            quantile(0.95, rest.freedom) * rest.deviation * beside,
        )
        factor = math.exp(off / total)
        guess = self._guess.steps.expect(self._step_case(kind, work, width))
        net = _net_bytes(work) / GIB
        ratio, margin = self._memory_factor(kind, own)
        return Estimate(
            seconds=width * total,
            low=width * total / factor,
            high=width * total * factor,
            uncorrected_seconds=width * steps * math.exp(guess.log),
            memory_gib=self.process_gib + net * ratio * margin,
            network_gib=net * ratio,
            uncorrected_memory_gib=self.gcd.process_gib + net,
            step_work=tuple(vars(work).values()),
            busy=1.0 if self.gcd.launches else min(1.0, float(step.parts[:2].sum())),
        )

    @property
    def sharing(self) -> Sharing:
        """Knowledge from the measurements of whether it pays that segments share a GCD (device).

        A step of each of *n* such segments takes n^a times as long as alone. Sharing does not pay
        if the power *a* is surely above 1.
        """
        power, deviation, freedom = self._fits().steps.power(0)
        known = self.experience
        alone, together = (sum(map(len, of.values())) for of in (known.segments, known.packs))
        # Known from four co-located segments and four others on.
        is_known = min(alone, together) >= 4 and deviation < 0.3
        is_worse = power - quantile(0.95, freedom) * deviation > 1
        return Sharing(is_known, pays=not (is_known and is_worse))

    def observe(self, kind: str, taken: Taken, own: Taken | None = None) -> None:
        """Correct the predictions by the measured cost of a segment that finished all its work.

        Parameters
        ----------
        kind
            Message-passing type, as in :meth:`estimate`.
        taken
            Measured cost of the segment.
        own
            Measured cost of the trial's previous segment; None if there was none.
        """
        if not taken.is_sound:
            return
        if own is not None and own.is_sound:
            cases = [self._step_case(kind, t.work, t.width, t.together) for t in (taken, own)]
            expected, before = (self._fits().steps.expect(case).log for case in cases)
            ratio = math.log(taken.step_seconds / own.step_seconds)
            repeats = [*self.experience.repeats, ratio - (expected - before)]
            self.experience = replace(self.experience, repeats=repeats[-4 * WINDOW :])
        self._add("packs" if taken.is_pack else "segments", kind, taken)

    def observe_memory(self, kind: str, ratio: float) -> None:
        """Correct predictions of memory by a measured peak, or by an amount that was too small.

        Parameters
        ----------
        kind
            Message-passing type, as in :meth:`estimate`.
        ratio
            Measured over counted peak memory, both without the memory of the process.
        """
        if 0 < ratio < math.inf:
            self._add("memory", kind, ratio)

    def _add(self, name: str, kind: str, one: object) -> None:
        seen = getattr(self.experience, name)
        more: dict[str, Any] = {name: {**seen, kind: [*seen.get(kind, ()), one][-WINDOW:]}}
        self.experience = replace(self.experience, **more)
        self._new += 1

    def observe_process(self, peak_gib: float) -> None:
        """Lower the estimate of the memory of a trainer process before it has a network.

        The estimate becomes at most 1.1 times ``peak_gib``, the measured peak of a process with a
        network [GiB].
        """
        # Processes differ by a tenth before they have a model.
        self.recall(Experience({}, {}, [], 1.1 * peak_gib))

    def observe_rest(self, watts: float) -> None:
        """Record the power of a node outside its segments [W], for later campaigns."""
        self.experience = replace(self.experience, rest_watts=watts)

    def recall(self, earlier: Experience) -> None:
        """Learn from another cost model's measurements, as if made before this model's own.

        Parameters
        ----------
        earlier
            Measurements on the same GCDs; those that this model has already are skipped.
        """
        before = len(self.experience)
        self.experience = self.experience.after(earlier.sound)
        self._new += len(self.experience) - before

    def _fits(self) -> _Fits:
        """Return the regressions, fitted anew if a fifth of the measurements are new."""
        if self._new > 0.2 * len(self.experience):
            self._fitted, self._new = self._fit(), 0
        return self._fitted

    def _fit(self) -> _Fits:
        steps: list[tuple[Case, float]] = []
        rest: list[tuple[Case, float]] = []
        known = self.experience
        for kind, several in chain(known.segments.items(), known.packs.items()):
            for t in several:
                steps.append((self._step_case(kind, t.work, t.width, t.together), t.step_seconds))
                beside = t.seconds - t.steps * t.step_seconds
                least = 1e-3 * t.seconds  # the clocks may even say that there was none
                rest_case = self._rest_case(t.step_seconds, t.epochs, t.evaluated, t.together)
                rest.append((rest_case, max(beside, least)))
        memory = [
            (Case(kind, (1.0,)), ratio) for kind, ratios in known.memory.items() for ratio in ratios
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
            (work.flops / width + work.update_flops) / gcd.flops,
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
            step_seconds,  # the first step compiles and allocates, and takes twice as long
            0.4 * step_seconds * epochs * evaluated,  # forward passes without the backward ones
            self.gcd.epoch_seconds * epochs,
        )
        return Case("", terms, (math.log(together),))

    def _repeated(self) -> tuple[float, float]:
        """Return the scatter of a trial's log step time, and its degrees of freedom."""
        # The guess, a deviation of 0.1 of the logarithm, is worth four observations.
        repeats = self.experience.repeats
        freedom = 4.0 + len(repeats)
        squares = 4.0 * 0.1**2 + math.fsum(x * x for x in repeats)
        return math.sqrt(squares / freedom), freedom

    def _memory_factor(self, kind: str, own: Taken | None) -> tuple[float, float]:
        """Return the ratio of needed to counted memory, and by what factor it is more at most."""
        expected = self._fits().memory.expect(Case(kind, (1.0,)))
        log, deviation = expected.log, expected.deviation
        if own is not None and own.memory is not None:
            log, deviation = math.log(own.memory), _MEMORY.noise
        return math.exp(log), math.exp(quantile(0.99, expected.freedom) * deviation)


def _joined(earlier: dict[str, list[T]], later: dict[str, list[T]]) -> dict[str, list[T]]:
    """Merge earlier and later measurements of each message-passing type; keep the last 16."""
    new = {**dict.fromkeys(later, ()), **_less(earlier, later)}
    return {kind: [*before, *later.get(kind, ())][-WINDOW:] for kind, before in new.items()}


def _less(seen: dict[str, list[T]], earlier: dict[str, list[T]]) -> dict[str, list[T]]:
    return {
        kind: [one for one in several if one not in earlier.get(kind, ())]
        for kind, several in seen.items()
    }


def _kept(seen: dict[str, list[T]], is_sound: Callable[[T], bool]) -> dict[str, list[T]]:
    return {kind: [*filter(is_sound, several)] for kind, several in seen.items()}


def _net_bytes(work: Work) -> float:
    """Return the counted peak memory of a GCD, without the process [B]."""
    held = COPIES_OF_WEIGHTS * work.parameter_bytes / work.parts + work.gathered_bytes
    return work.activation_bytes + held


@dataclass(frozen=True)
class Sizes:
    """Statistics of the sizes of graphs: mean, standard deviation, skewness and largest.

    A size is a number of atoms, or of edges.
    """

    mean: float
    deviation: float
    skewness: float
    largest: float

    @classmethod
    def of(cls, sizes: NDArray[np.int64]) -> Sizes:
        """Compute the statistics from the size of each graph [n_graphs], in atoms or edges."""
        mean, deviation = float(sizes.mean()), float(sizes.std())
        skewness = float((((sizes - mean) / (deviation or 1.0)) ** 3).mean())
        return cls(mean, deviation, skewness, float(sizes.max()))

    def largest_batch(self, graphs: float) -> float:
        """Estimate the ratio of the largest batch to the mean batch, in size (atoms or edges).

        The largest batch is that of some thousand random batches: its size is the quantile of a sum
        to second order at 3.5 standard deviations (Cornish and Fisher, Rev. Inst. Int. Stat. 5, 307
        (1938)).

        Parameters
        ----------
        graphs
            Number of graphs in a batch.
        """
        graphs = max(graphs, 1.0)
        far = 3.5 + (3.5**2 - 1) / 6 * max(0.0, self.skewness) / math.sqrt(graphs)
        above = far * self.deviation / math.sqrt(graphs)
        return max(1.0, min(self.mean + above, self.largest) / self.mean)
