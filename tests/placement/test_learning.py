"""Learning from some segments against the recorded steps of 104 networks.

`steps.csv` has what was counted of 13 message-passing types with 16 to 128 features and one to
four layers, on batches of 16 alloys of 8 to 16 atoms, and what was measured on one core: CPU
seconds of a training step (the least of two runs of several rounds, which differ by 1 %), and the
bytes that torch had allocated at a time, for a batch that was `atoms` times the mean one.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import spearmanr

from hydragnn_flow.execution.site import guessed_gcd
from hydragnn_flow.placement import CostModel, Taken, Work
from hydragnn_flow.placement.cost_model import COPIES_OF_WEIGHTS

Array = NDArray[np.float64]

GCD = guessed_gcd("cpu", 8.0)
# Times as slow as the core that the rates were guessed from.
SLOWER = 2.64


@dataclass(frozen=True)
class Network:
    """One row."""

    kind: str
    work: Work
    seconds: float
    memory: float
    """Measured over counted."""


def read() -> list[Network]:
    networks = []
    with Path(__file__).with_name("steps.csv").open() as file:
        for row in csv.DictReader(file):
            saved = float(row["saved_bytes"]) * float(row["atoms"])
            weights = float(row["parameter_bytes"])
            # The weights themselves, their moments and copies were there before.
            measured = float(row["peak_bytes"]) + (COPIES_OF_WEIGHTS - 1) * weights
            networks.append(
                Network(
                    row["type"],
                    Work(
                        float(row["flops"]),
                        float(row["bytes"]),
                        int(row["launches"]),
                        saved,
                        weights,
                    ),
                    SLOWER * float(row["seconds"]),
                    measured / (saved + COPIES_OF_WEIGHTS * weights),
                )
            )
    return networks


NETWORKS = read()
KINDS = sorted({network.kind for network in NETWORKS})
SECONDS = np.array([network.seconds for network in NETWORKS])


def predicted(model: CostModel) -> Array:
    return np.array([model.estimate(n.kind, n.work, 1).seconds for n in NETWORKS])


BEFORE = predicted(CostModel(GCD))


def learned_from(chosen: list[int], together: Callable[[], int] = lambda: 1) -> CostModel:
    """After segments of which so many shared a GCD, where each took the root of that as long."""
    model = CostModel(GCD)
    for i in chosen:
        n = together()
        steps = SECONDS[i] / BEFORE[i] * n**0.5
        taken = Taken(steps=steps, memory=NETWORKS[i].memory, together=n)
        model.observe(NETWORKS[i].kind, taken)
    return model


def order(prediction: Array, among: list[int] | slice = slice(None)) -> float:
    return float(spearmanr(prediction[among], SECONDS[among])[0])


def error(prediction: Array, among: list[int] | slice = slice(None)) -> float:
    return float(np.abs(prediction[among] / SECONDS[among] - 1).mean())


@pytest.mark.parametrize("most_together", [1, 4])
@pytest.mark.parametrize("of_each", [1, 3, 8])
def test_learning_from_some_types_spoils_no_order(of_each: int, most_together: int) -> None:
    """Those that were seen do not rise, or fall, past those that were not."""
    chance = random.Random(of_each)
    changes, errors = [], []
    for _ in range(100):
        types = set(chance.sample(KINDS, chance.randint(1, len(KINDS) - 1)))
        left = dict.fromkeys(types, of_each)
        chosen = []
        for i in chance.sample(range(len(NETWORKS)), len(NETWORKS)):
            if left.get(NETWORKS[i].kind, 0):
                left[NETWORKS[i].kind] -= 1
                chosen.append(i)
        after = predicted(learned_from(chosen, lambda: chance.randint(1, most_together)))
        errors.append(error(after))
        changes.append(order(after) - order(BEFORE))
    # How much sharing takes is not known after one segment of one type.
    assert (max(errors) if most_together == 1 else np.mean(errors)) < error(BEFORE)
    # Two measurements of all of them agree to 0.9993.
    assert min(changes) > -0.002
    assert np.mean(changes) > -0.0002


def test_twenty_trials_are_enough_to_know_the_others() -> None:
    orders, before, errors = [], [], []
    for seed in range(20):
        shuffled = random.Random(seed).sample(range(len(NETWORKS)), len(NETWORKS))
        chosen, others = shuffled[:20], shuffled[20:]
        after = predicted(learned_from(chosen))
        orders.append(order(after, others))
        before.append(order(BEFORE, others))
        errors.append(error(after, others))
    assert np.mean(errors) < 0.16
    assert np.mean(orders) >= np.mean(before) > 0.98


def test_few_networks_need_more_memory_than_predicted() -> None:
    """Of types nobody has measured, of those that were, and of trials that have run."""

    def above(model: CostModel, among: list[int], own: bool = False) -> float:
        count = 0
        for i in among:
            n = NETWORKS[i]
            taken = Taken(steps=1.0, memory=n.memory) if own else None
            estimate = model.estimate(n.kind, n.work, 1, own=taken)
            net = (estimate.uncorrected_memory_gib - GCD.process_gib) * n.memory
            count += GCD.process_gib + net > estimate.memory_gib
        return count / len(among)

    everyone = list(range(len(NETWORKS)))
    assert above(CostModel(GCD), everyone) < 0.15
    shares, seen_shares = [], []
    for seed in range(20):
        shuffled = random.Random(seed).sample(everyone, len(everyone))
        model = learned_from(shuffled[:20])
        seen = {NETWORKS[i].kind for i in shuffled[:20]}
        others = shuffled[20:]
        shares.append(above(model, others))
        seen_shares.append(above(model, [i for i in others if NETWORKS[i].kind in seen]))
        assert above(model, others, own=True) == 0.0
    assert np.mean(shares) < 0.08
    assert np.mean(seen_shares) < 0.08
