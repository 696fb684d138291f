"""Truth: costs of segments on a simulated machine, which the campaign has to learn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hydragnn_flow.campaign.estimates.estimator import Estimator
from hydragnn_flow.execution import Rank, Site
from hydragnn_flow.placement import Estimate, Work
from hydragnn_flow.placement.cost_model import COPIES_OF_WEIGHTS, GIB
from hydragnn_flow.segment import SegmentSpec, Status


@dataclass(frozen=True)
class Cost:
    """Cost of a segment that has its GCDs to itself."""

    start_seconds: float
    """Time before its first step [s]."""
    epoch_seconds: float
    """Time of an epoch, with its validation and checkpoint [s]."""
    step_seconds: float
    steps: int
    """Number of steps in an epoch."""
    busy: float
    """Fraction of its time in which it keeps a GCD busy."""
    memory_gib: float
    """Peak memory of each GCD, process included [GiB]."""
    graphs_per_step: float = 0.0
    """Mean number of graphs in a step over all ranks; 0 if unknown."""
    status: Status = "ok"
    """Status with which it ends, unless its node or batch job interferes."""


class Truth(Protocol):
    """True costs of segments."""

    def cost(self, rank: Rank) -> Cost:
        """Cost of the segment that a rank belongs to."""
        ...


def draws(seed: int, *of: int | str) -> np.random.Generator:
    """Make a generator that depends only on a seed and on the names in ``of``."""
    words = [int.from_bytes(str(word).encode()[:16].ljust(16, b"\0"), "little") for word in of]
    return np.random.default_rng([seed, *words])


class DrawnTruth:
    """Machine whose rates and constants are drawn by a seed, independently of the cost model.

    The work of a step is counted as by the campaign. The machine does it at its own rates, with a
    constant for each message-passing type and one for each trial. Over several GCDs the arithmetic
    is divided, and the launches of operations are not; ranks exchange gradients and wait for the
    slowest.

    Parameters
    ----------
    estimator
        Estimator that counts the work of networks; its experience is not used.
    site
        Machine around whose guessed rates the true ones are drawn.
    seed
        Seed of the random numbers.
    """

    def __init__(self, estimator: Estimator, site: Site, seed: int) -> None:
        self._estimator, self._site, self._seed = estimator, site, seed
        self._rates = np.exp(0.4 * draws(seed, "rates").standard_normal(3)).tolist()
        self._known: dict[tuple[int, int], tuple[Work, int, float, float]] = {}
        self._types: dict[str, float] = {}

    def cost(self, rank: Rank) -> Cost:
        """Cost of the segment that a rank belongs to."""
        work, steps, slower, larger = self._of_trial(rank.segment)
        gcd, width = self._site.node.gcd, rank.world
        micro_batches = rank.segment.network.Training.accumulation_steps
        arithmetic, traffic, launch = self._rates
        computing = (
            max(work.flops / gcd.flops / arithmetic, work.bytes / gcd.bandwidth / traffic) / width
        )
        launching = work.launches * gcd.launch_seconds * launch * micro_batches
        alone = computing + launching if gcd.launches else max(computing, launching)
        exchange = 0.0
        if width > 1:
            rate = 5e10 if rank.nodes == 1 else 1e10  # [B/s]
            exchange = work.exchanged_bytes(width) / rate + 5e-5 * math.log2(width)
        # Ranks, whose times differ by some 3 %, wait for the slowest in every step.
        slowest = math.exp(0.03 * math.sqrt(2 * math.log(width)))
        step = slower * (alone * slowest + exchange)
        if rank.segment.budget is not None and rank.segment.budget[0] == "seconds":
            each = rank.segment.budget[1] / rank.segment.network.Training.num_epoch
            steps = max(1, round(each / (step * width)))
        graphs = self._estimator.graphs_per_step(rank.segment.network, rank.segment.batches)
        evaluated = self._estimator.judged / (graphs * steps)
        # The largest batch has a quarter more graphs than the mean one.
        net = work.activation_bytes * 1.25 / (width * micro_batches)
        net += COPIES_OF_WEIGHTS * work.parameter_bytes / work.parts + work.gathered_bytes
        return Cost(
            start_seconds=1.0 if self._site.node.device == "cpu" else 8.0,
            # A forward pass takes two fifths of a training step, a checkpoint a tenth of a second.
            epoch_seconds=step * steps * (1 + 0.4 * evaluated) + 0.1,
            step_seconds=step,
            steps=steps,
            busy=1.0 if gcd.launches else min(1.0, computing / alone),
            memory_gib=gcd.process_gib + larger * net / GIB,
            graphs_per_step=graphs,
        )

    def _of_trial(self, spec: SegmentSpec) -> tuple[Work, int, float, float]:
        """Work of a step, steps of an epoch, and factors of time and memory."""
        key = spec.seed, spec.batches
        if key not in self._known:
            network = spec.network
            steps = self._estimator.steps_per_epoch(network, spec.batches)
            name = network.kind
            if name not in self._types:
                # Step times of types differ by up to a factor of two.
                drawn = draws(self._seed, "type", name).standard_normal()
                self._types[name] = math.exp(0.3 * drawn)
            time, memory = draws(self._seed, "trial", spec.seed).standard_normal(2).tolist()
            self._known[key] = (
                self._estimator.step_work(network, spec.batches),
                steps,
                self._types[name] * math.exp(0.12 * time),
                math.exp(0.15 * memory),
            )
        return self._known[key]


class EstimatedTruth:
    """Machine that follows a cost model, exactly or within its stated error.

    Parameters
    ----------
    estimator
        Estimator with the cost model; it must not learn meanwhile.
    seed
        Seed of the random numbers.
    off
        Systematic error of the estimates in standard deviations, common to all trials; further
        errors are drawn for each message-passing type and trial. By default there is none.
    """

    def __init__(self, estimator: Estimator, seed: int, off: float | None = None) -> None:
        self._estimator, self._seed, self._off = estimator, seed, off
        self._known: dict[tuple[int, int, int, int], Cost] = {}

    def cost(self, rank: Rank) -> Cost:
        """Cost of the segment that a rank belongs to."""
        spec, width = rank.segment, rank.world
        key = spec.seed, spec.network.Training.accumulation_steps, spec.batches, width
        if key not in self._known:
            one, two = (
                self._estimator.divide(spec.network, epochs, width, [], spec.batches)[1]
                for epochs in (1, 2)
            )
            factor = self._factor(spec, two)
            steps = self._estimator.steps_per_epoch(spec.network, spec.batches)
            epoch = max(0.0, two.seconds - one.seconds) / width * factor
            self._known[key] = Cost(
                start_seconds=max(0.0, one.seconds / width * factor - epoch),
                epoch_seconds=epoch,
                step_seconds=epoch / steps,
                steps=steps,
                busy=one.busy,
                memory_gib=one.uncorrected_memory_gib,
                graphs_per_step=self._estimator.graphs_per_step(spec.network, spec.batches),
            )
        return self._known[key]

    def _factor(self, spec: SegmentSpec, estimate: Estimate) -> float:
        """Ratio of a trial's true time to the expected one."""
        if self._off is None:
            return 1.0
        of_type = draws(self._seed, "type", spec.network.kind).standard_normal()
        own = draws(self._seed, "trial", spec.seed).standard_normal()
        # Half of the variance is common to all trials, because a site that was never measured is
        # off as a whole, a quarter to those of a type.
        off = math.sqrt(0.5) * self._off + 0.5 * of_type + 0.5 * own
        return math.exp(deviation(estimate) * off)


def deviation(estimate: Estimate) -> float:
    """Standard deviation of the logarithm of a segment's time; its upper end is the P95."""
    return math.log(estimate.high / estimate.seconds) / 1.645
