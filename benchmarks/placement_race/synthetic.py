"""Trials of known cost, a hundredfold apart, through the real loop of a campaign.

Their distribution is that of a simulation of Frontier: times on one GCD are log-normal from 36 s to
3,600 s, large networks take more memory and keep a GCD busier, and scale better over several.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.config import NetworkConfig, RunConfig
from hydragnn_flow.data import GraphStore
from hydragnn_flow.execution import Node, Site
from hydragnn_flow.placement import Estimate, Gcd, Host
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import SegmentResult, SegmentSpec
from placement_race.machine import Machine, Truth

GCD_GIB, GCDS_OF_A_NODE, EPOCHS = 58.0, 8, 100
_SHORTEST, _LONGEST = 36.0, 3600.0
_WIDEST = 32
_WIDTHS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Model:
    """What a trial takes."""

    seconds: float
    """On one GCD [s]."""
    memory_gib: float
    busy: float
    serial: float
    """Part of a GCD's time that each more of them loses."""

    @classmethod
    def drawn(cls, seed: float, most_gib: float) -> Model:
        """The model of a trial, by a number that is its own."""
        chance = random.Random(seed)
        middle = math.log(math.sqrt(_SHORTEST * _LONGEST))
        sigma = math.log(_LONGEST / _SHORTEST) / 4
        seconds = min(max(math.exp(chance.gauss(middle, sigma)), _SHORTEST), _LONGEST)
        size = math.log(seconds / _SHORTEST) / math.log(_LONGEST / _SHORTEST)
        size = min(1.0, max(0.0, 0.6 * size + 0.4 * chance.random()))
        busy = min(0.97, max(0.05, 0.05 + 0.62 * size + chance.gauss(0, 0.1)))
        return cls(seconds, most_gib**size, busy, 0.02 + 0.2 * (1 - busy) ** 2)

    @property
    def fewest(self) -> int:
        """GCDs that have its memory."""
        return next(width for width in _WIDTHS if self.memory_gib <= width * GCD_GIB)

    def on(self, width: int) -> float:
        """Time on a number of GCDs [s]."""
        within = 0.93 if width > GCDS_OF_A_NODE else 1.0
        return self.seconds * (1 + self.serial * (width - 1)) / (width * within)


class Foreseen:
    """Estimates of these models that are off by a part drawn for each."""

    def __init__(self, gcd: Gcd, most_gib: float, noise: float) -> None:
        self.gcd, self._most, self._noise = gcd, most_gib, noise
        self._models: dict[float, Model] = {}

    def model(self, network: NetworkConfig) -> Model:
        number = network.Training.Optimizer.learning_rate
        if number not in self._models:
            self._models[number] = Model.drawn(number, self._most)
        return self._models[number]

    @property
    def models(self) -> list[Model]:
        return [*self._models.values()]

    def steps_per_epoch(self, network: NetworkConfig) -> int:
        return 1

    def learn(self, results: Sequence[SegmentResult]) -> None: ...

    def divide(
        self, network: NetworkConfig, epochs: int, width: int, results: Sequence[SegmentResult]
    ) -> tuple[NetworkConfig, Estimate]:
        model = self.model(network)
        chance = random.Random(network.Training.Optimizer.learning_rate + 1)
        wrong, wrong_busy = (math.exp(chance.gauss(0, self._noise)) for _ in range(2))
        seconds = model.on(width) * width * epochs / EPOCHS
        if done := sum(r.to_epoch - r.from_epoch for r in results):
            took = sum(r.seconds * len(r.gcds or [0]) for r in results)
            del done, took  # TODO
        estimate = Estimate(
            seconds * wrong,
            model.memory_gib / width,
            uncorrected_seconds=seconds,
            busy=min(1.0, model.busy * wrong_busy) if width == 1 else 1.0,
        )
        return network, estimate


@dataclass(frozen=True)
class Bounds:
    """Times that no schedule is shorter than [s]."""

    work: float
    """Of computing, of memory, and of whole GCDs for what does not fit one."""
    longest: float
    """Of the longest trial on the fewest GCDs that have its memory."""
    longest_of_any_width: float

    @classmethod
    def of(cls, models: Sequence[Model], gcds: int) -> Bounds:
        small = [model for model in models if model.fewest == 1]
        wide = [model for model in models if model.fewest > 1]
        computing = sum(model.busy * model.seconds for model in small)
        memory = sum(model.memory_gib / GCD_GIB * model.seconds for model in small)
        whole = sum(model.on(model.fewest) * model.fewest for model in wide)
        return cls(
            (max(computing, memory) + whole) / gcds,
            max(model.on(model.fewest) for model in models),
            max(min(model.on(w) for w in _WIDTHS if w >= model.fewest) for model in models),
        )


def fifo(models: Sequence[Model], gcds: int, width: int = GCDS_OF_A_NODE) -> float:
    """Time of one trial after the other on so many GCDs each, as HydraGNN's examples run [s]."""
    free = [0.0] * (gcds // width)
    for model in models:
        heapq.heapreplace(free, free[0] + model.on(max(width, model.fewest)))
    return max(free)


@dataclass(frozen=True)
class Ran:
    """A campaign that was simulated."""

    seconds: float
    models: list[Model]
    gcds: int
    cpu_seconds: float
    busy: float
    """Part of all GCDs' time in which they computed."""
    held: float
    segments: int


def campaign(
    folder: Path, store: GraphStore, config: dict[str, Any], trials: int, gcds: int, most_gib: float, noise: float = 0.2,
    share: int = 4,
) -> Ran:
    """Run a search of these models to its end."""
    run = RunConfig.model_validate(
        {
            **config,
            "search": {
                "trials": trials,
                "sampler": "random",
                "rungs": "none",
                "space": {"Training.Optimizer.learning_rate": {"float": [1e-5, 1e-2], "log": True}},
            },
            "ensemble": {"size": 2, "epochs": EPOCHS},
        }
    )
    directory = RunDirectory(folder)
    directory.record_start(run)
    gcd = Gcd(GCD_GIB, 1e13, 1e12, 1e-5, 0.6, share)
    node = Node(tuple(map(str, range(GCDS_OF_A_NODE))), gcd, 1, "hip")
    site = Site("simulated", gcds // GCDS_OF_A_NODE, node, lambda directory: None)
    context = Context(run, site, directory, store, "token", CampaignView(Console(quiet=True)))
    foreseen = Foreseen(gcd, most_gib, noise)
    context.estimator = foreseen  # type: ignore[assignment]
    context.widest = lambda network: _WIDEST  # type: ignore[method-assign]

    def truth(spec: SegmentSpec, width: int) -> Truth:
        model = foreseen.model(spec.network)
        return Truth(model.on(width), model.busy, width)

    hosts = [Host(f"n{n}", "block") for n in range(site.nodes)]
    machine = Machine(hosts, truth, overhead=2.0)
    context.clock = machine
    import os
    machine.trace = [float(t) for t in range(250, 9000, 250)] if "TRACE" in os.environ else []
    machine.gcds = gcds
    machine.mem = lambda spec: foreseen.model(spec.network).memory_gib
    begin = time.process_time()
    TrialPhase(context).run(machine)
    return Ran(
        machine.now,
        foreseen.models,
        gcds,
        time.process_time() - begin,
        machine.busy_seconds / gcds / machine.now,
        machine.held_seconds / gcds / machine.now,
        sum(1 for _ in directory.results()),
    )
