"""Profile of a trial's steps: where their time goes, and how far they are from the roofline."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile
from torch_geometric.data import Batch

from hydragnn_flow.data import GraphStore
from hydragnn_flow.files import replacing
from hydragnn_flow.models import (
    HydraModel,
    Model,
    NetworkCost,
    build_model,
    network_cost,
    probed_cost,
)
from hydragnn_flow.models.space import any_finite
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.energy import EnergyMeter
from hydragnn_flow.training.loading import reads_ahead
from hydragnn_flow.training.memory import forget_peak_memory, peak_memory_gib
from hydragnn_flow.training.monitor import Stopped
from hydragnn_flow.training.plan.batching import Step
from hydragnn_flow.training.profiles.peaks import measured_peaks, waited
from hydragnn_flow.training.profiles.profile_result import (
    ALONE,
    CACHED,
    LOADER,
    MARKED,
    REAL,
    Parts,
    Peaks,
    Timing,
    TrainingProfile,
)
from hydragnn_flow.training.profiles.step_parts import Clock, MarkedTrainer, Marks, parts_of

# Untimed steps before a mode's first turn, in which kernels are chosen, caches filled and memory
# allocated. On an accelerator before every turn, to use up batches read ahead meanwhile.
WARM_UP = 3
# Length of a turn [s]. The modes take turns in alternating order, so that other load on the machine
# affects all of them equally. On busy cores, turns of a second made identical modes differ by a
# tenth.
SECONDS_OF_A_TURN, LEAST_TURNS = 0.25, 4
# Number of steps in a trace.
TRACED = 5


def profile_training(
    spec: SegmentSpec,
    store: GraphStore,
    device: torch.device,
    world: World | None = None,
    seconds: float = 5.0,
    should_stop: Callable[[], bool] = lambda: False,
    energy_fraction: Callable[[], float] = lambda: 1.0,
) -> TrainingProfile:
    """Profile the training steps of a network. The only file written is a trace, if asked for.

    Parameters
    ----------
    spec, store, device
        Segment to profile, its store and the device that computes. If the segment asks for a trace,
        the first rank writes a Chrome trace of some steps, whole or not at all.
    world
        Rank of this process and number of ranks (a collective call).
    seconds
        Time spent on each mode [s].
    should_stop
        Function called between turns; if it returns true on any rank all stop.
    energy_fraction
        Function that returns the segment's fraction of the energy that this rank's counters see.

    Raises
    ------
    Stopped
        If ``should_stop`` returned true.
    """
    world = world or World()
    trainer = MarkedTrainer(spec, store, device, world)
    try:
        profile = _profile(trainer, store, seconds, should_stop, energy_fraction)
    except Stopped:
        trainer.leave()
        raise
    # Leave while there is a process group: later, DDP's reducer would destroy it when freed, and
    # wait for its thread while holding the GIL, which that thread needs (torch 2.13).
    trainer.leave()
    return profile


def _profile(
    trainer: MarkedTrainer,
    store: GraphStore,
    seconds: float,
    should_stop: Callable[[], bool],
    energy_fraction: Callable[[], float],
) -> TrainingProfile:
    world, device, spec = trainer.world, trainer.device, trainer.spec
    trainer.model.train()
    forget_peak_memory(device)
    with ExitStack() as stack:
        turns = max(LEAST_TURNS, round(seconds / SECONDS_OF_A_TURN))
        work = _Work(trainer, seconds / turns, should_stop, energy_fraction, stack)
        work.take(work.modes, turns)
        peak_memory = peak_memory_gib(device)
        if spec.traced:
            work.trace(spec.trace)
        if work.alone is not None:
            trainer.parallel.part_ways()
            work.take([work.alone], turns)
            work.modes.append(work.alone)
        timings = {mode.name: mode.timing(world, device) for mode in work.modes}
    world.wait()
    peaks = measured_peaks(device, trainer.settings.precision)
    means = world.sum(torch.tensor([peaks.flops, peaks.bytes], dtype=torch.float64, device=device))
    steps = trainer.plan(0)
    n = len(steps)
    graphs = sum(step.graphs for step in steps)
    cost = _cost_of_a_step(trainer, store, steps)
    return TrainingProfile(
        device=device.type,
        ranks=world.size,
        parameters=cost.parameters,
        graphs=graphs / n,
        atoms=sum(step.atoms for step in steps) / n,
        edges=sum(int(trainer.train.n_edges[step.order].sum()) for step in steps) / n,
        flops=cost.flops,
        bytes=cost.bytes,
        peak_memory_gib=peak_memory,
        joules_per_graph=work.joules_per_graph,
        peaks=Peaks(*(means / world.size).tolist()),
        parts=work.parts(timings),
        timings=timings,
    )


def _cost_of_a_step(trainer: MarkedTrainer, store: GraphStore, steps: list[Step]) -> NetworkCost:
    """Return the theoretical cost of a step of mean size."""
    n = len(steps)
    edges = sum(int(trainer.train.n_edges[step.order].sum()) for step in steps)
    graphs, atoms = sum(step.graphs for step in steps), sum(step.atoms for step in steps)
    per_step = {"atoms": -(-atoms // n), "edges": -(-edges // n), "graphs": -(-graphs // n)}
    model = trainer.model
    if isinstance(model, HydraModel):
        largest = int(trainer.train.n_atoms.max())
        with torch.device("meta"):  # the whole network, where this rank has a shard
            whole = build_model(trainer.spec.network, store)
        return network_cost(
            whole.to(model.dtype), **per_step, largest=largest, finite=any_finite(trainer.train)
        )
    assert isinstance(model, Model)
    return probed_cost(copy.deepcopy(model).cpu(), trainer.train, **per_step)


_Batches = Generator[tuple[Step, list[Batch]], None, None]


class _Mode:
    """One way of going through steps, and its time so far."""

    def __init__(
        self,
        name: str,
        work: Iterator[Step],
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.name, self.work, self.within = name, work, within
        self.steps_of_a_turn = 0
        """Number of steps that the ranks agreed on in the first turn."""
        self.steps = self.graphs = 0
        self.seconds = self.cpu_seconds = 0.0

    def timing(self, world: World, device: torch.device) -> Timing:
        """Return the timing, averaged over all ranks (collective)."""
        mine = torch.tensor([self.seconds, self.cpu_seconds], dtype=torch.float64, device=device)
        seconds, cpu = (world.sum(mine) / world.size).tolist()
        return Timing(self.steps, seconds / self.steps, cpu / self.steps, self.graphs / seconds)


class _Work:
    """Steps of a trainer in all modes that are compared."""

    def __init__(
        self,
        trainer: MarkedTrainer,
        seconds: float,
        should_stop: Callable[[], bool],
        energy_fraction: Callable[[], float],
        stack: ExitStack,
    ) -> None:
        self.trainer, self.seconds, self.should_stop = trainer, seconds, should_stop
        self.energy_fraction = energy_fraction
        self.world, self.device = trainer.world, trainer.device
        self.marks = Marks(Clock(self.device))
        self._parts: list[torch.Tensor] = []
        self._joules: float | None = None

        real = stack.enter_context(closing(self._real()))
        marked = _Mode(MARKED, self._marked(real), lambda: trainer.marking(self.marks))
        self.modes = [_Mode(REAL, self._trained(real)), marked]
        self.alone: _Mode | None = None
        """Mode measured last, because it ends the exchange between ranks for good."""
        if trainer.spec.parts_only and self._are_all_marked:
            return
        self.modes.append(_Mode(CACHED, self._trained(cached := self._cached())))
        self.modes.append(_Mode(LOADER, (step for step, _ in real)))
        if self.world.size > 1:
            self.alone = _Mode(ALONE, self._trained(cached))

    @property
    def _are_all_marked(self) -> bool:
        return not self.trainer.parallel.is_sharded

    @property
    def joules_per_graph(self) -> float | None:
        """Energy per graph while training on real data [J]."""
        return None if self._joules is None else self._joules / self.modes[0].graphs

    def take(self, modes: Sequence[_Mode], turns: int) -> None:
        """Run some modes in turns, in alternating order."""
        for number in range(turns):
            for mode in modes[:: -1 if number % 2 else 1]:
                self.turn(mode)

    def turn(self, mode: _Mode) -> None:
        """Continue a mode until its time is up; all ranks take the same number of steps."""
        with mode.within():
            if not mode.steps or reads_ahead(self.device):
                for _ in range(WARM_UP):
                    next(mode.work)
            waited(self.device)
            self.world.wait()
            begin = len(self.marks.steps)
            meter = EnergyMeter(self.device, self.energy_fraction)
            wall, cpu = time.perf_counter(), time.process_time()
            steps = graphs = 0
            while steps < mode.steps_of_a_turn or not mode.steps_of_a_turn:
                # Ranks rarely check the time: a collective per step would be measured too.
                more = mode.steps_of_a_turn or max(steps, 1)
                for step in itertools.islice(mode.work, more):
                    steps, graphs = steps + 1, graphs + step.graphs
                waited(self.device)
                if not mode.steps_of_a_turn and not self._time_left(wall):
                    break
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        mode.steps_of_a_turn, mode.steps = steps, mode.steps + steps
        mode.seconds, mode.cpu_seconds = mode.seconds + wall, mode.cpu_seconds + cpu
        mode.graphs += graphs
        if mode.name == REAL and (joules := meter.joules()) is not None:
            self._joules = (self._joules or 0.0) + joules
        if mode.name == MARKED:
            self._parts.append(self.marks.seconds(begin))
            self.marks.steps.clear()
        self._check_stop()

    def parts(self, timings: Mapping[str, Timing]) -> Parts:
        """Return the times of a step's activities (collective)."""
        parts = parts_of(torch.cat(self._parts), self.world, self.device)
        if self._are_all_marked:
            return parts
        # Exchange within the passes shows only as the difference that it makes to a step.
        cached, alone = timings[CACHED].seconds, timings[ALONE].seconds
        return Parts(parts.reading, min(alone, cached), max(cached - alone, 0.0))

    def trace(self, path: Path) -> None:
        """Write a trace of some steps of the first rank; all ranks take the steps."""
        activities = [ProfilerActivity.CPU]
        if self.device.type != "cpu":
            activities.append(getattr(ProfilerActivity, self.device.type.upper()))
        work = self.modes[0].work
        for _ in range(WARM_UP):
            next(work)
        is_first = self.world.is_first
        recording = torch_profile(activities=activities) if is_first else nullcontext()
        with recording as recorded:
            for _ in range(TRACED):
                next(work)
            waited(self.device)
        if recorded is not None:
            with replacing(path) as temporary:
                recorded.export_chrome_trace(str(temporary))

    def _real(self) -> _Batches:
        for epoch in itertools.count():
            steps = self.trainer.plan(epoch)
            with closing(self.trainer.micro_batches(steps)) as batches:
                yield from zip(steps, batches, strict=True)

    def _cached(self) -> Iterator[tuple[Step, list[Batch]]]:
        """Return an endless cycle over a few steps, read once; several, because sizes vary."""
        steps = self.trainer.plan(0)[:8]
        batches = list(self.trainer.micro_batches(steps))
        return itertools.cycle(list(zip(steps, batches, strict=True)))

    def _trained(self, batches: Iterator[tuple[Step, list[Batch]]]) -> Iterator[Step]:
        for step, pieces in batches:
            self.trainer.train_step(step, pieces)
            yield step

    def _marked(self, batches: Iterator[tuple[Step, list[Batch]]]) -> Iterator[Step]:
        while True:
            yield self.trainer.marked_step(batches)

    def _time_left(self, begin: float) -> bool:
        left = torch.tensor([self.seconds - (time.perf_counter() - begin)])
        if self.world.size > 1:
            left = self.world.sum(left.to(self.device)).cpu()
        return float(left) > 0

    def _check_stop(self) -> None:
        asked = self.world.sum(torch.tensor([float(self.should_stop())], device=self.device))
        if float(asked):
            raise Stopped("asked to stop while it measured")
