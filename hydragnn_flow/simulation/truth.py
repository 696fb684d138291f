"""True costs and learning curves of simulated segments, drawn at random.

Drawn errors fall by a power of the epochs towards a floor, as those of many networks do (Hestness
et al., arXiv:1712.00409). The floor is a bowl over the search space, with its minimum drawn by a
seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hydragnn_flow.campaign.estimator import Estimator
from hydragnn_flow.config import NetworkConfig
from hydragnn_flow.config.domain import Parameter
from hydragnn_flow.config.run import value_at
from hydragnn_flow.execution import Rank
from hydragnn_flow.placement import Estimate
from hydragnn_flow.segment import SegmentSpec


@dataclass(frozen=True)
class Cost:
    """True cost of a simulated segment that has its GCDs to itself: times [s], memory [GiB]."""

    start_seconds: float
    """Time before the first training step [s]."""
    epoch_seconds: float
    """Time of an epoch, with its validation and checkpoint [s]."""
    step_seconds: float
    """Time of a training step [s]."""
    steps: int
    """Number of training steps in an epoch."""
    busy: float
    """Fraction of its time in which the segment keeps a GCD busy, 0 to 1."""
    memory_gib: float
    """Peak memory of each GCD, process included [GiB]."""
    graphs_per_step: float = 0.0
    """Mean number of graphs in a training step over all ranks; 0 if unknown."""


class Truth(Protocol):
    """Interface of the true costs of segments, which a simulation follows."""

    def cost(self, rank: Rank) -> Cost:
        """Return true times [s] and memory [GiB] of the segment that process ``rank`` works on."""
        ...


def draws(seed: int, *of: int | str) -> np.random.Generator:
    """Return a random generator that depends only on a seed and on the names in ``of``."""
    words = [int.from_bytes(str(word).encode()[:16].ljust(16, b"\0"), "little") for word in of]
    return np.random.default_rng([seed, *words])


class EstimatedTruth:
    """Source of true segment costs: a cost model's estimates with random errors of stated size.

    Parameters
    ----------
    estimator
        Estimator with the cost model; it must learn from no segments during the simulation.
    seed
        Seed of the random numbers.
    off
        Error common to the times of all trials, in standard deviations of the estimates. Further
        errors are drawn for each message-passing type and trial.
    """

    def __init__(self, estimator: Estimator, seed: int, off: float) -> None:
        self._estimator, self._seed, self._off = estimator, seed, off
        self._known: dict[tuple[int, int, int, int], Cost] = {}

    def cost(self, rank: Rank) -> Cost:
        """Return true times [s] and memory [GiB] of the segment that process ``rank`` works on."""
        spec, width = rank.segment, rank.world
        key = spec.seed, spec.network.Training.accumulation_steps, spec.epochs.batches, width
        if key not in self._known:
            one, two = (
                self._estimator.divide(spec.network, epochs, width, [], spec.epochs.batches)[1]
                for epochs in (1, 2)
            )
            factor = self._factor(spec, two)
            steps = self._estimator.steps_per_epoch(spec.network, spec.epochs.batches)
            epoch = max(0.0, two.seconds - one.seconds) / width * factor
            self._known[key] = Cost(
                start_seconds=max(0.0, one.seconds / width * factor - epoch),
                epoch_seconds=epoch,
                step_seconds=epoch / steps,
                steps=steps,
                busy=one.busy,
                memory_gib=one.uncorrected_memory_gib,
                graphs_per_step=self._estimator.graphs_per_step(spec.network, spec.epochs.batches),
            )
        return self._known[key]

    def _factor(self, spec: SegmentSpec, estimate: Estimate) -> float:
        """Return the ratio of a trial's true time to the estimated one."""
        of_type = draws(self._seed, "type", spec.network.kind).standard_normal()
        own = draws(self._seed, "trial", spec.seed).standard_normal()
        # Half of the variance is common to all trials, because a site that was never measured is
        # off as a whole, a quarter to those of a type.
        off = math.sqrt(0.5) * self._off + 0.5 * of_type + 0.5 * own
        return math.exp(deviation(estimate) * off)


def deviation(estimate: Estimate) -> float:
    """Return the standard deviation of the logarithm of a segment's estimated time.

    It follows from the estimate and its 95th percentile.
    """
    return math.log(estimate.high / estimate.seconds) / 1.645


class Curves(Protocol):
    """Interface of simulated learning curves: validation errors of trials and members."""

    def errors(self, spec: SegmentSpec) -> list[float]:
        """Return the criterion (relative validation error) after each epoch, [n_epochs].

        Epochs are counted from the trial's first to the segment's last.
        """
        ...


class DrawnCurves:
    """Simulated learning curves that fall towards a floor, which hyper-parameters determine.

    The floor is smallest at one point of the search space, which the seed draws, and rises around
    it.

    Parameters
    ----------
    space
        Domain of each hyper-parameter by its dotted path.
    seed
        Seed of the random numbers.
    """

    def __init__(self, space: Mapping[str, Parameter], seed: int) -> None:
        self._space, self._seed = space, seed
        drawn = draws(seed, "bowl")
        self._best = {name: drawn.uniform(0.2, 0.8) for name in space}
        weights = drawn.dirichlet(np.ones(len(space)))
        self._weights = dict(zip(space, weights.tolist(), strict=True))

    def errors(self, spec: SegmentSpec) -> list[float]:
        """Return the criterion (relative validation error) after each epoch, [n_epochs].

        Epochs are counted from the trial's first to the segment's last.
        """
        drawn = draws(self._seed, "curve", spec.seed)
        floor = self._floor(spec.network) * math.exp(0.1 * drawn.standard_normal())
        epochs = np.arange(1, spec.epochs.until_epoch + 1)
        falling = floor + (1 - floor) * (1 + epochs / 0.5) ** -0.8
        noise = np.exp(0.03 * drawn.standard_normal(len(epochs)))
        errors: list[float] = (falling * noise).tolist()
        return errors

    def _floor(self, network: NetworkConfig) -> float:
        bowl = sum(
            self._weights[name] * ((place - self._best[name]) / 0.8) ** 2
            for name, domain in self._space.items()
            if (place := _place(domain, value_at(network, name))) is not None
        )
        return 0.05 * math.exp(3 * bowl)


def _place(domain: Parameter, value: Any) -> float | None:
    """Return the relative position of a value in its domain, 0 to 1; None if it has none."""
    if domain.choices is not None:
        if value not in domain.choices:
            return None
        return (domain.choices.index(value) + 0.5) / len(domain.choices)
    if domain.bounds is None or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    low, high = domain.bounds
    if high <= low:
        return None
    if domain.log:
        return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return (value - low) / (high - low)
