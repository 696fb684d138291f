"""CPU time of a suggestion and of learning what it was worth, thousands of trials running."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import optuna
from optuna.samplers import RandomSampler, TPESampler

from hydragnn_flow.search.samplers.batched_tpe import IN_FLIGHT_PER_BATCH, BatchedTPESampler
from hydragnn_flow.search.space import suggest
from search_race.engines import DeepHyperEngine
from search_race.histories import SPACE, half_way, trials

# Optuna's own needs up to a second for each.
_OF_STOCK = 2


@dataclass(frozen=True)
class Latency:
    """Of one engine with so many trials finished."""

    engine: str
    finished: int
    running: int
    milliseconds: float
    """CPU time of asking and telling once, the median of turns."""


class _Cycle:
    """Asks for a trial and tells the oldest that runs, as a steady campaign does."""

    def __init__(
        self, name: str, sampler: optuna.samplers.BaseSampler, finished: int, running: int
    ) -> None:
        self.name = name
        self._study = half_way(sampler, finished, running)
        self._running = deque(range(finished, finished + running))
        self._rng = np.random.default_rng(1)

    def turn(self, count: int) -> float:
        """Milliseconds of CPU for each of ``count`` cycles."""
        values = self._rng.random(count).tolist()
        start = time.process_time()
        for value in values:
            trial = self._study.ask()
            suggest(trial, SPACE)
            self._study.tell(self._running.popleft(), value)
            self._running.append(trial.number)
        return 1e3 * (time.process_time() - start) / count


def measure(finished: int, running: int, rounds: int, say: Callable[[str], None]) -> list[Latency]:
    """Batched TPE, Optuna's TPE and its random sampler in turns.

    Parameters
    ----------
    finished
        Trials that have ended.
    running
        Trials that have not.
    rounds
        Turns of each.
    say
        Told what is being done.
    """
    # Whole batches, each of which is paid for by its first suggestion.
    batch = max(running // IN_FLIGHT_PER_BATCH, 1)
    say(f"{finished:,} finished: making the studies")
    contenders = [
        (_Cycle("batched_tpe", BatchedTPESampler(seed=0), finished, running), batch),
        (_Cycle("tpe", TPESampler(seed=0), finished, running), _OF_STOCK),
        (_Cycle("random", RandomSampler(seed=0), finished, running), batch),
    ]
    found: dict[str, list[float]] = {cycle.name: [] for cycle, _ in contenders}
    # The trials of one study must not slow down the garbage collection in another's turn.
    gc.collect()
    gc.freeze()
    try:
        for cycle, count in contenders:
            say(f"{finished:,} finished: {cycle.name} warms up")
            cycle.turn(count)
        for number in range(rounds):
            for cycle, count in contenders:
                say(f"{finished:,} finished: {cycle.name}, round {number + 1} of {rounds}")
                found[cycle.name].append(cycle.turn(count))
    finally:
        gc.unfreeze()
    return [Latency(name, finished, running, median(times)) for name, times in found.items()]


def measure_deephyper(
    finished: int, python: Path, say: Callable[[str], None], cycles: int = 3
) -> Latency:
    """DeepHyper's CBO, which does not look at what is running."""
    say(f"{finished:,} finished: DeepHyper")
    history = [(trial.params, trial.value or 0.0) for trial in trials(finished, 0)]
    with closing(DeepHyperEngine(SPACE, python, seed=0)) as engine:
        engine.learn(history)
        ((key, _),) = engine.ask(1)
        times = []
        for _ in range(cycles):
            engine.seconds = 0.0
            engine.tell(key, 0.5)
            ((key, _),) = engine.ask(1)
            times.append(1e3 * engine.seconds)
    return Latency("deephyper", finished, 0, median(times))
