"""Trials of known cost, a hundredfold apart, through the real loop of a campaign.

Their distribution is that of a simulation of Frontier: times on one GCD are log-normal from 36 s to
3,600 s, large networks take more memory and keep a GCD busier, and scale better over several.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results import Line, run_config
from rich.console import Console

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.dispatch import Dispatch
from hydragnn_flow.campaign.phases import run_phases
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.config import NetworkConfig, RunConfig
from hydragnn_flow.data import GraphStore
from hydragnn_flow.execution import Node, Rank, Site
from hydragnn_flow.files import unsynced
from hydragnn_flow.placement import CostModel, Estimate, Gcd, Sharing
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import SegmentResult, SegmentSpec
from hydragnn_flow.simulation.blocks import Conditions, VirtualClock
from hydragnn_flow.simulation.truth import Cost
from hydragnn_flow.simulation.workers import SimulatedWorkers

GCD_GIB, GCDS_OF_A_NODE = 58.0, 8
EPOCHS, STEPS = 100, 10
SECONDS_TO_START = 2.0
WIDEST = 32
_SHORTEST, _LONGEST = 36.0, 3600.0
_WIDTHS = (1, 2, 4, 8, 16, 32)
# Deviation of the logarithms of estimated over true times, and of busy parts.
_NOISE = 0.2
_MEMBERS, _SHARE = 15, 4
# What a trial is known by.
_NUMBER = "Training.Optimizer.learning_rate"
CALM = Conditions(node_seconds=0.0, noise=0.0, interference=0.0)
CONFIG = run_config("simulated")


@dataclass(frozen=True)
class Model:
    """Time and memory that a trial takes."""

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

    def on(self, width: int, batches: int = 1) -> float:
        """Time on a number of GCDs, with so many batches in a step [s].

        Where each GCD has a batch of its own, steps are fewer and as long; only gradients are to be
        exchanged.
        """
        within = 0.93 if width > GCDS_OF_A_NODE else 1.0
        serial = self.serial if batches < width else 0.0
        return self.seconds * (1 + serial * (width - 1)) / (width * within)


class Foreseen:
    """Estimates of these models that are off by a part drawn for each; and what they really take.

    A trial's own time rules once it has been at work.
    """

    def __init__(self, gcd: Gcd, most_gib: float) -> None:
        self.gcd, self._most = gcd, most_gib
        self.costs = CostModel(gcd)
        self._models: dict[float, Model] = {}

    def model(self, network: NetworkConfig) -> Model:
        return self.of({_NUMBER: network.Training.Optimizer.learning_rate})

    def of(self, parameters: Mapping[str, Any]) -> Model:
        """The model of a trial with some parameters."""
        number = parameters[_NUMBER]
        if number not in self._models:
            self._models[number] = Model.drawn(number, self._most)
        return self._models[number]

    @property
    def models(self) -> list[Model]:
        return [*self._models.values()]

    @property
    def sharing(self) -> Sharing:
        return Sharing(is_known=True, pays=True)

    def steps_per_epoch(self, network: NetworkConfig, batches: int = 1) -> int:
        return 1

    def learn(self, results: Sequence[SegmentResult]) -> None: ...

    def divide(
        self,
        network: NetworkConfig,
        epochs: int,
        width: int,
        results: Sequence[SegmentResult],
        batches: int = 1,
    ) -> tuple[NetworkConfig, Estimate]:
        model = self.model(network)
        chance = random.Random(network.Training.Optimizer.learning_rate + 1)
        wrong, wrong_busy = (math.exp(chance.gauss(0, _NOISE)) for _ in range(2))
        if any(result.to_epoch > result.from_epoch for result in results):
            wrong = 1.0
        seconds = model.on(width, batches) * width * epochs / EPOCHS
        return network, Estimate(
            seconds * wrong,
            model.memory_gib / width,
            uncorrected_seconds=seconds,
            busy=min(1.0, model.busy * wrong_busy),
        )

    def cost(self, rank: Rank) -> Cost:
        """Time and memory that a segment really takes."""
        model = self.model(rank.segment.network)
        epoch = model.on(rank.world, rank.segment.epochs.batches) / EPOCHS
        memory = model.memory_gib / rank.world
        return Cost(SECONDS_TO_START, epoch, epoch / STEPS, STEPS, model.busy, memory)


class NoCurves:
    """Errors that say nothing."""

    def errors(self, spec: SegmentSpec) -> list[float]:
        """Errors of each epoch, all alike."""
        return [1.0] * spec.epochs.until_epoch


@dataclass(frozen=True)
class Bounds:
    """Times that no schedule is shorter than [s]."""

    work: float
    """Time of computing, of memory, and of whole GCDs for what does not fit one."""
    longest: float
    """Time of the longest trial on the fewest GCDs that have its memory."""
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
    busy: float
    """Part of all GCDs' time in which they computed."""
    segments: int


@dataclass(frozen=True)
class Stage:
    """Simulated GCDs for these models, and a campaign that may run on them."""

    context: Context
    foreseen: Foreseen
    workers: SimulatedWorkers

    @property
    def dispatch(self) -> Dispatch:
        """Sends the campaign's segments to the GCDs."""
        return Dispatch(self.context, self.workers)


def staged(
    folder: Path,
    store: GraphStore,
    trials: int,
    gcds: int,
    most_gib: float,
    *,
    widest: int = WIDEST,
    sections: Mapping[str, Any] | None = None,
) -> Stage:
    """Set the stage for a campaign of these models.

    Parameters
    ----------
    folder
        For the run directory; one that is there is gone on with.
    store
        Store that nobody reads.
    trials, gcds
        Their numbers.
    most_gib
        Memory of the largest model [GiB].
    widest
        Most GCDs of a segment.
    sections
        Sections of the configuration that differ.
    """
    search = {**CONFIG["search"], "trials": trials}
    run = RunConfig.model_validate({**CONFIG, "search": search, **(sections or {})})
    directory = RunDirectory(folder)
    gcd = Gcd(GCD_GIB, 1e13, 1e12, 1e-5, 0.6, _SHARE)
    node = Node(tuple(map(str, range(GCDS_OF_A_NODE))), gcd, 1, "hip")
    site = Site("simulated", gcds // GCDS_OF_A_NODE, node, lambda directory: None)
    directory.record_start(run)
    clock = VirtualClock()
    view = CampaignView(Console(quiet=True))
    context = Context(run, site, directory, store, "token", view, clock)
    foreseen = Foreseen(gcd, most_gib)
    context.estimator = foreseen  # type: ignore[assignment]
    for name in ("widest", "_most_batches"):
        setattr(context, name, lambda network: min(widest, site.gcds_of_a_block))
    workers = SimulatedWorkers(site, clock, foreseen, NoCurves(), CALM, 0)
    return Stage(context, foreseen, workers)


def campaign(
    folder: Path, store: GraphStore, trials: int, gcds: int, most_gib: float, **changes: Any
) -> Ran:
    """Run a search of these models to its end, in virtual time; arguments as of :func:`staged`."""
    with unsynced():
        stage = staged(folder, store, trials, gcds, most_gib, **changes)
        TrialPhase(stage.context).run(stage.dispatch)
    workers = stage.workers
    return Ran(
        workers.search_ended,
        stage.foreseen.models,
        workers.gcds.busy / gcds / workers.search_ended,
        sum(1 for _ in stage.context.directory.results()),
    )


def whole(folder: Path, store: GraphStore, nodes: int, trials: int) -> Line:
    """Search and ensemble on nodes that are held from the first segment to the last."""
    sections = {
        "ensemble": {"size": _MEMBERS, "epochs": 3 * EPOCHS, "strategy": "top"},
        "resources": {"batch_per_gcd": True},
    }
    gcds = nodes * GCDS_OF_A_NODE
    with unsynced():
        stage = staged(folder, store, trials, gcds, 56.0, widest=64, sections=sections)
        run_phases(stage.context, lambda: stage.workers)
    share = 100 * stage.workers.gcds.occupied / gcds / stage.workers.ended
    what = f"{trials:,} trials and {_MEMBERS} members on {nodes} nodes: GCD time at work"
    return Line(what, share, "%", at_least=85.0)
