"""CPU time of a suggestion and of learning what it was worth, thousands of trials running.

As users of a plain Optuna study meet it: the study in memory, one `ask` with its `suggest_…`, one
`tell`, and again.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import optuna
from optuna.samplers import RandomSampler, TPESampler
from results import Line

from hydragnn_flow.search.samplers.auto import AutoSampler
from hydragnn_flow.search.samplers.batched_tpe import IN_FLIGHT_PER_BATCH, BatchedTPESampler
from hydragnn_flow.search.space import suggest
from search_race.engines import DeepHyperEngine
from search_race.histories import SPACE, half_way, trials

# Optuna's own needs up to a second for each.
_OF_STOCK = 2
_MOST_MILLISECONDS = {20_000: 1.5, 100_000: 5.0}
_PEERS = {"tpe": "TPESampler()", "random": "RandomSampler()", "deephyper": "DeepHyper CBO"}


@dataclass(frozen=True)
class Latency:
    """Latency of one engine after a number of finished trials."""

    engine: str
    finished: int
    running: int
    milliseconds: float
    """CPU time of asking and telling once, the median of turns."""
    turns: tuple[float, ...] = ()
    """Of each."""


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
    """Ours, Optuna's TPE and its random sampler in turns.

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
    automatic = AutoSampler(SPACE, seed=0)
    contenders = [
        (_Cycle("batched_tpe", BatchedTPESampler(seed=0), finished, running), batch),
        (_Cycle("auto", automatic, finished, running), batch),
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
        automatic.close()
    return [
        Latency(name, finished, running, median(times), tuple(times))
        for name, times in found.items()
    ]


def lines(latencies: Sequence[Latency]) -> list[Line]:
    """Batched TPE beside the others, for each number of finished trials."""
    found = {(one.engine, one.finished): one for one in latencies}
    lines = []
    for finished in sorted({one.finished for one in latencies if one.engine == "tpe"}):
        ours = found["batched_tpe", finished]
        what = f"one ask and one tell, {finished:,} finished, {ours.running:,} running"
        lines.append(
            Line("latency", what, ours.milliseconds, "ms", at_most=_MOST_MILLISECONDS.get(finished))
        )
        for name, shown in _PEERS.items():
            if (name, finished) not in found:
                continue
            peer = found[name, finished]
            ratios = [theirs / mine for mine, theirs in zip(ours.turns, peer.turns, strict=False)]
            lines.append(
                Line(
                    "latency",
                    what,
                    1e3 / ours.milliseconds,
                    "1/s",
                    shown,
                    1e3 / peer.milliseconds,
                    median(ratios) if ratios else peer.milliseconds / ours.milliseconds,
                    at_least=120.0 if (name, finished) == ("tpe", 20_000) else None,
                    spread=(min(ratios), max(ratios)) if ratios else None,
                )
            )
    return lines


def measure_deephyper(
    finished: int, python: Path, say: Callable[[str], None], cycles: int = 3
) -> Latency:
    """DeepHyper's CBO, which ignores running trials."""
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
