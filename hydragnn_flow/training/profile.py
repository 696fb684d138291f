"""Time of a trial's step by its parts: reading, computing, exchanging gradients."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch_geometric.data import Batch

from hydragnn_flow.data import GraphStore
from hydragnn_flow.models import HydraModel, Model, network_cost, probed_cost
from hydragnn_flow.models.space import any_finite
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.batching import Step
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.energy import EnergyMeter
from hydragnn_flow.training.memory import forget_peak_memory, peak_memory_gib
from hydragnn_flow.training.trainer import Trainer

# Steps before the measurement: kernels are chosen, caches filled, memory taken.
WARM_UP = 3

REAL, CACHED, LOADER, ALONE = (
    "real data",
    "one cached batch",
    "loader alone",
    "one cached batch, no exchange",
)


@dataclass(frozen=True)
class Timing:
    """One way of going through steps.

    Attributes
    ----------
    mode
        What was done.
    steps
        How many.
    seconds, cpu_seconds
        Of a step, by the clock and of this process.
    graphs_per_second
        Over all ranks, by the clock.
    """

    mode: str
    steps: int
    seconds: float
    cpu_seconds: float
    graphs_per_second: float


@dataclass(frozen=True)
class TrainingProfile:
    """A trial's steps, taken apart.

    Attributes
    ----------
    timings
        ``real data``: training as it is. ``one cached batch``: the same batch again and again, so
        nothing is read. ``loader alone``: batches are read and not computed. With several ranks
        also ``one cached batch, no exchange``: as if there were no other rank.
    graphs, atoms, edges
        In a step, over all ranks, on average.
    flops
        Floating-point operations of a step, over all ranks.
    peak_memory_gib
        Of this rank [GiB].
    joules_per_graph
        While training on real data, of all this rank's counters see; None if nothing counts.
    """

    device: str
    ranks: int
    parameters: int
    graphs: float
    atoms: float
    edges: float
    flops: float
    peak_memory_gib: float
    joules_per_graph: float | None
    timings: dict[str, Timing] = field(default_factory=dict)

    @property
    def flops_per_second(self) -> float:
        """Achieved on one cached batch, over all ranks."""
        return self.flops / self.timings[CACHED].seconds

    @property
    def breakdown(self) -> dict[str, float]:
        """Seconds of a step by activity; they add up to those of real data.

        Reading beside computing costs nothing, so waiting is the time that real data take longer
        than a cached batch, and no longer than reading alone takes.
        """
        real, cached = self.timings[REAL].seconds, self.timings[CACHED].seconds
        alone = self.timings[ALONE].seconds if ALONE in self.timings else cached
        waiting = min(max(real - cached, 0.0), self.timings[LOADER].seconds)
        exchanging = min(max(cached - alone, 0.0), real - waiting)
        return {
            "computing": real - waiting - exchanging,
            "exchanging gradients": exchanging,
            "waiting for data": waiting,
        }


def profile_training(
    spec: SegmentSpec,
    store: GraphStore,
    device: torch.device,
    world: World | None = None,
    seconds: float = 5.0,
    say: Callable[[str], None] = lambda mode: None,
) -> TrainingProfile:
    """Take the training steps of a network apart. Nothing is written.

    Parameters
    ----------
    spec, store, device
        As for a segment.
    world
        This process's place among the ranks; all of them call this.
    seconds
        Time for each mode.
    say
        Told the mode that begins.
    """
    world = world or World()
    trainer = Trainer(spec, store, device, world)
    trainer.model.train()
    work = _Work(trainer, seconds, say)
    forget_peak_memory(device)
    meter = EnergyMeter(device)
    timings = {REAL: work.measure(REAL, work.train(work.real()))}
    joules = meter.joules()
    timings[CACHED] = work.measure(CACHED, work.train(work.cached()))
    if trainer.world.size > 1 and not trainer.parallel.is_sharded:
        alone = work.train(work.cached(), trainer.parallel.without_exchange)
        timings[ALONE] = work.measure(ALONE, alone)
    timings[LOADER] = work.measure(LOADER, work.real())
    steps = trainer.plan(0)
    n = len(steps)
    edges = sum(int(trainer.train.n_edges[step.order].sum()) for step in steps)
    graphs, atoms = sum(step.graphs for step in steps), sum(step.atoms for step in steps)
    model = trainer.model
    per_step = {"atoms": -(-atoms // n), "edges": -(-edges // n), "graphs": -(-graphs // n)}
    if isinstance(model, HydraModel):
        largest = int(trainer.train.n_atoms.max())
        cost = network_cost(model, **per_step, largest=largest, finite=any_finite(trainer.train))
    else:
        assert isinstance(model, Model)
        cost = probed_cost(copy.deepcopy(model).cpu(), trainer.train, **per_step)
    real = timings[REAL]
    return TrainingProfile(
        device=str(device),
        ranks=world.size,
        parameters=cost.parameters,
        graphs=graphs / n,
        atoms=atoms / n,
        edges=edges / n,
        flops=cost.flops,
        peak_memory_gib=peak_memory_gib(device),
        joules_per_graph=None if joules is None else joules * n / (real.steps * graphs),
        timings=timings,
    )


_Steps = Generator[tuple[Step, list[Batch]], None, None]


class _Work:
    """The steps of a trainer, in the ways that are to be compared."""

    def __init__(self, trainer: Trainer, seconds: float, say: Callable[[str], None]) -> None:
        self.trainer, self.seconds, self.say = trainer, seconds, say
        self.steps = trainer.plan(0)

    def real(self) -> _Steps:
        """Epoch after epoch, read as training reads."""
        for epoch in itertools.count():
            steps = self.trainer.plan(epoch)
            with closing(self.trainer.micro_batches(steps)) as batches:
                yield from zip(steps, batches, strict=True)

    def cached(self) -> Iterator[tuple[Step, list[Batch]]]:
        """The first steps of an epoch, read once; several, so that sizes are as they vary."""
        steps = self.steps[:8]
        batches = list(self.trainer.micro_batches(steps))
        return itertools.cycle(list(zip(steps, batches, strict=True)))

    def train(
        self,
        batches: Iterator[tuple[Step, list[Batch]]],
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> _Steps:
        """Train on each batch that is asked for."""
        for step, pieces in batches:
            with around():
                self.trainer.train_step(step, pieces)
            yield step, pieces

    def measure(self, mode: str, work: _Steps) -> Timing:
        """Go on until the time is up; all ranks take the same number of steps."""
        self.say(mode)
        with closing(work):
            for _ in range(WARM_UP):
                next(work)
            _wait(self.trainer.device)
            wall, cpu = time.perf_counter(), time.process_time()
            steps = graphs = 0
            while steps == 0 or self._time_left(wall):
                # Ranks agree on the time now and then; asking at every step would be measured too.
                for step, _ in itertools.islice(work, max(steps, 1)):
                    steps, graphs = steps + 1, graphs + step.graphs
                _wait(self.trainer.device)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return Timing(mode, steps, wall / steps, cpu / steps, graphs / wall)

    def _time_left(self, begin: float) -> bool:
        left = torch.tensor([self.seconds - (time.perf_counter() - begin)])
        if self.trainer.world.size > 1:
            left = self.trainer.world.sum(left.to(self.trainer.device)).cpu()
        return float(left) > 0


def _wait(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
