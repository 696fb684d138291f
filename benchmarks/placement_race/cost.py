"""How far the cost model is off, after the trials that a campaign begins with.

All networks are measured first (:mod:`~placement_race.networks`). Then the model learns from some
of them, drawn at random, and predicts the others; that is done for many draws.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import numpy as np
from results import Line
from scipy.stats import spearmanr

from hydragnn_flow.execution.site import guessed_gcd
from hydragnn_flow.placement import CostModel, Estimate, Taken, Work
from hydragnn_flow.placement.cost_model import COPIES_OF_WEIGHTS
from placement_race.networks import Measured, Settings, measured

CALIBRATION = 20
"""Trials that the model has learned from."""
DRAWS = 200
"""Divisions of the networks into these and others."""
STEPS = 10_000
"""Of a segment: so many that its start does not count."""
_GCD = guessed_gcd("cpu", 8.0)
_GIB = 2**30
_FLOOR_POINTS = 0.03


@dataclass(frozen=True)
class Draw:
    """How far the model is off on the networks that it had not seen."""

    error: float
    """Mean of the absolute errors of a step's time over the time."""
    order: float
    """Spearman's rank correlation."""
    held: float
    """Fraction within the 90 % intervals."""
    own: float
    """The same for trials whose own steps were measured before."""
    width: float
    """Median of the intervals' ends over each other."""
    short: float
    """Fraction of the networks that need more memory than predicted."""
    over: float
    """Median of predicted over measured memory."""


def cost(folder: Path, settings: Settings, say: Callable[[str], None]) -> list[Line]:
    """Measure networks of all types, print how far predictions are off, and return that.

    Parameters
    ----------
    folder
        For the graphs.
    settings
        How much to measure.
    say
        Told which network is next.
    """
    lines = lines_of(measured(folder, settings, say))
    for line in lines:
        spread = "" if line.spread is None else f" ({line.spread[0]:.3g} to {line.spread[1]:.3g})"
        print(f"{line.what}: {line.value:.3g} {line.unit}{spread}")
    return lines


def lines_of(networks: Sequence[Measured]) -> list[Line]:
    """Errors, order, intervals and memory over all draws; by how much two measurements differ."""
    calibration = min(CALIBRATION, len(networks) // 2)
    draws = [draw(networks, calibration, seed) for seed in range(DRAWS)]
    first, second = ([getattr(n, name) for n in networks] for name in ("seconds", "again"))
    floor = mean(abs(b / a - 1) for a, b in zip(first, second, strict=True))
    same = float(spearmanr(first, second)[0])
    before = draw(networks, 0, 0)
    others = f"{calibration} trials known, {len(networks) - calibration} others"

    def line(
        what: str,
        name: str,
        scale: float = 1.0,
        unit: str = "",
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> Line:
        values = [scale * getattr(one, name) for one in draws]
        low, high = np.quantile(values, (0.05, 0.95)).tolist()
        return Line(
            *("cost", f"{what}, {others}", mean(values), unit),
            at_least=at_least,
            at_most=at_most,
            spread=(low, high),
        )

    return [
        Line("cost", "step time, two measurements: mean difference", 100 * floor, "%"),
        Line("cost", "step time, two measurements: rank correlation", same, ""),
        Line("cost", "step time, nothing known: rank correlation", before.order, ""),
        line(
            *("step time: mean absolute error", "error", 100, "%"),
            at_most=100 * max(0.10, floor + _FLOOR_POINTS),
        ),
        line("step time: rank correlation", "order", at_least=0.98),
        line("90 % intervals: within, which may be 95 at most", "held", 100, "%", at_least=85),
        line("90 % intervals of trials that have run: within", "own", 100, "%", at_least=85),
        line("90 % intervals: upper over lower end", "width"),
        line("memory: measured above predicted", "short", 100, "%", at_most=1),
        line("memory: predicted over measured", "over", at_most=1.5),
        Line("cost", "memory, nothing known: measured above predicted", 100 * before.short, "%"),
        Line("cost", "memory, nothing known: predicted over measured", before.over, ""),
    ]


def draw(networks: Sequence[Measured], calibration: int, seed: int) -> Draw:
    """Learn from some networks, and predict the others.

    Parameters
    ----------
    networks
        All of them.
    calibration
        Number of those that are learned from.
    seed
        Decides which.
    """
    chance = random.Random(seed)
    shuffled = chance.sample(networks, len(networks))
    model = CostModel(_GCD)
    for network in shuffled[:calibration]:
        taken = _taken(network, network.seconds)
        assert taken.memory is not None
        model.observe(network.kind, taken)
        model.observe_memory(network.kind, taken.memory)
        # Some have a second segment; how far the two differ is learned too.
        if chance.random() < 0.5:
            again = _taken(network, network.again)
            model.observe(network.kind, again, taken)
    others = shuffled[calibration:]
    found = [model.estimate(n.kind, _work(n), STEPS) for n in others]
    known = [model.estimate(n.kind, _work(n), STEPS, own=_taken(n, n.seconds)) for n in others]
    times = np.array([STEPS * n.again for n in others])
    predicted = np.array([estimate.seconds for estimate in found])
    memory = [_memory(n) for n in others]
    net = [(estimate.memory_gib - _GCD.process_gib) * _GIB for estimate in found]
    return Draw(
        error=float(np.abs(predicted / times - 1).mean()),
        order=float(spearmanr(predicted, times)[0]),
        held=_held(found, times.tolist()),
        own=_held(known, times.tolist()),
        width=median(estimate.high / estimate.low for estimate in found),
        short=mean(float(m > p) for m, p in zip(memory, net, strict=True)),
        over=median(p / m for m, p in zip(memory, net, strict=True)),
    )


def _held(found: Sequence[Estimate], times: Sequence[float]) -> float:
    return mean(float(e.low <= time <= e.high) for e, time in zip(found, times, strict=True))


def _work(network: Measured) -> Work:
    cost = network.cost
    return Work(
        flops=cost.flops,
        bytes=cost.bytes,
        launches=cost.launches,
        activation_bytes=cost.peak_bytes * network.larger,
        parameter_bytes=4 * cost.parameters,
    )


def _taken(network: Measured, step: float) -> Taken:
    """A segment of steps of so many seconds."""
    work = _work(network)
    counted = work.activation_bytes + COPIES_OF_WEIGHTS * work.parameter_bytes
    return Taken(
        work,
        STEPS,
        step,
        seconds=(STEPS + 1) * step,
        epochs=1,
        evaluated=0.0,
        memory=_memory(network) / counted,
    )


def _memory(network: Measured) -> float:
    """Measured peak, with what was there before the step: weights, moments and copies [B]."""
    return network.peak_bytes + COPIES_OF_WEIGHTS * 4 * network.cost.parameters
