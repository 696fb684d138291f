"""Profile of a trial's steps: the time of reading, computing, exchanging and waiting.

Each rank (process, one per GCD) records events in a step: it asks for its graphs, has its graphs,
has its last gradient, has the sums over all ranks, and has taken the step. After its last gradient
a rank only waits, first for slower ranks, then for the remaining exchange. The slowest rank waits
for nobody, so the shortest of these times over ranks is the exchange, and the excess of the others
is waiting. Only durations are compared, so the clocks of nodes need not agree.

Exchange that overlaps with computation costs nothing and is not counted. A sharded network gathers
weights within its passes: its exchange is the time by which its steps are longer than those of a
rank that holds everything.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile
from torch_geometric.data import Batch

from hydragnn_flow.data import GraphStore
from hydragnn_flow.files import replacing
from hydragnn_flow.segment import SegmentSpec, Status, TrainingOutcome
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.memory import forget_peak_memory, peak_memory_gib
from hydragnn_flow.training.monitor import EnergyMeter, Stopped
from hydragnn_flow.training.plan.batching import Step
from hydragnn_flow.training.profile_result import Parts, TrainingProfile
from hydragnn_flow.training.runner import how_ended, open_store
from hydragnn_flow.training.trainer import Trainer

# Number of untimed steps, in which kernels are chosen, caches filled and memory allocated.
WARM_UP = 3

Moment = Any
"""Moment in a step: a host time [s], or a torch event in the accelerator's stream."""


def profile_segment(
    spec: SegmentSpec,
    *,
    device: torch.device | str = "cpu",
    world: World | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    energy_fraction: Callable[[], float] = lambda: 1.0,
    alive: Callable[[float], None] = lambda longest_step: None,
) -> TrainingOutcome:
    """Measure where the time of a segment's training steps goes, and return it in an outcome.

    The profile is the ``answer`` of the outcome on the first rank; it is empty on other ranks.
    Parameters are those of :func:`~hydragnn_flow.training.runner.run_segment`. Lack of memory and a
    stop raise no error: they are the status of the outcome, which then has a reason too.
    """
    world = world or World()
    device = torch.device(device)
    torch.set_num_threads(spec.threads)
    began, cpu = time.perf_counter(), time.process_time()

    def is_over() -> bool:
        alive(0.0)
        return should_stop()

    def ended(status: Status, reason: str = "") -> TrainingOutcome:
        outcome = TrainingOutcome.cut_short(status, reason, began)
        return replace(outcome, cpu_seconds=time.process_time() - cpu)

    try:
        store = open_store(spec.store)
        profile = profile_training(spec, store, device, world, is_over, energy_fraction)
    except Exception as error:
        failure = how_ended(error, world)
        if failure is None:
            raise
        return ended(**failure)
    return replace(ended("ok"), answer=asdict(profile) if world.is_first else {})


def profile_training(
    spec: SegmentSpec,
    store: GraphStore,
    device: torch.device,
    world: World | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    energy_fraction: Callable[[], float] = lambda: 1.0,
) -> TrainingProfile:
    """Measure where the time of a network's training steps goes; return the profile.

    The only file written is a trace, if the segment asks for one.

    Parameters
    ----------
    spec, store, device
        Segment to profile, its store and the device that computes. If the segment asks for a trace,
        the first rank writes a Chrome trace of some steps, whole or not at all.
    world
        Rank of this process and number of ranks (a collective call); None for a single rank.
    should_stop
        Function called several times per second; if it returns true on any rank, all ranks stop.
    energy_fraction
        Function that returns the segment's fraction of the energy that this rank's counters see.

    Raises
    ------
    Stopped
        If ``should_stop`` returned true.
    """
    trainer = MarkedTrainer(spec, store, device, world or World())
    try:
        profile = _profile(trainer, should_stop, energy_fraction)
    except Stopped:
        trainer.leave()
        raise
    # Leave while there is a process group: later, DDP's reducer would destroy it when freed, and
    # wait for its thread while holding the GIL, which that thread needs (torch 2.13).
    trainer.leave()
    return profile


def _profile(
    trainer: MarkedTrainer, should_stop: Callable[[], bool], energy_fraction: Callable[[], float]
) -> TrainingProfile:
    world, device, train = trainer.world, trainer.device, trainer.train
    trainer.model.train()
    forget_peak_memory(device)
    with closing(_steps(trainer)) as steps:
        _take(WARM_UP, steps, device)
        meter = EnergyMeter(device, energy_fraction)
        number, graphs, seconds = _timed(trainer, steps, should_stop)
        joules, peak_memory = meter.joules(), peak_memory_gib(device)
        parts = parts_of(trainer.seconds(), world, device)
        if trainer.spec.profile.traced:
            _trace(trainer, steps, trainer.spec.trace)
        if trainer.parallel.is_sharded:
            from hydragnn_flow.training.parallel.sharded import Sharded

            assert isinstance(trainer.parallel, Sharded)
            trainer.parallel.part_ways()
            _take(WARM_UP, steps, device)
            _timed(trainer, steps, should_stop)
            alone = parts_of(trainer.seconds(), world, device)
            together, own = (each.seconds - each.reading for each in (parts, alone))
            parts = Parts(parts.reading, min(own, together), max(together - own, 0.0))
    world.wait()
    plan = trainer.plan(0)
    return TrainingProfile(
        device=device.type,
        ranks=world.size,
        graphs=sum(step.graphs for step in plan) / len(plan),
        atoms=sum(step.atoms for step in plan) / len(plan),
        edges=sum(int(train.n_edges[step.order].sum()) for step in plan) / len(plan),
        steps=number,
        seconds=seconds / number,
        peak_memory_gib=peak_memory,
        joules_per_graph=None if joules is None else joules / graphs,
        parts=parts,
    )


def _steps(trainer: MarkedTrainer) -> Generator[Step, None, None]:
    """Endless generator: take the next training step on real data, then yield the step."""
    for epoch in itertools.count():
        steps = trainer.plan(epoch)
        with closing(trainer.micro_batches(steps)) as batches:
            for step in steps:
                trainer.marked_step(step, batches)
                yield step


def _take(number: int, steps: Iterator[Step], device: torch.device) -> int:
    """Take ``number`` steps and wait for the device; return the number of graphs in the steps."""
    graphs = sum(step.graphs for step in itertools.islice(steps, number))
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return graphs


def _timed(
    trainer: MarkedTrainer, steps: Iterator[Step], should_stop: Callable[[], bool]
) -> tuple[int, int, float]:
    """Take steps for the time `profile.seconds` of the segment, equally many on all ranks.

    Returns the number of steps, the number of their graphs, and their total wall time, averaged
    over ranks [s].
    """
    world, device = trainer.world, trainer.device
    trainer.moments.clear()
    number, at_once, graphs, total = 0, 1, 0, 0.0
    while True:
        begin = time.perf_counter()
        graphs += _take(at_once, steps, device)
        mine = [time.perf_counter() - begin, float(should_stop())]
        seconds, asked = world.sum(torch.tensor(mine, dtype=torch.float64, device=device)).tolist()
        number, total = number + at_once, total + seconds / world.size
        if asked:
            raise Stopped("asked to stop while it measured")
        if total >= trainer.spec.profile.seconds:
            return number, graphs, total
        # Least time between two questions whether to go on, which are collective [s].
        if seconds < 0.25 * world.size:
            at_once *= 2


def _trace(trainer: MarkedTrainer, steps: Iterator[Step], path: Path) -> None:
    """Take some steps on all ranks; write a Chrome trace of those of the first rank to ``path``."""
    kind = trainer.device.type
    activities = {ProfilerActivity.CPU, getattr(ProfilerActivity, kind.upper())}
    is_first = trainer.world.is_first
    with torch_profile(activities=activities) if is_first else nullcontext() as recorded:
        _take(5, steps, trainer.device)
    if recorded is not None:
        with replacing(path) as temporary:
            recorded.export_chrome_trace(str(temporary))


class MarkedTrainer(Trainer):
    """Trainer that notes when each step reads, computes and exchanges, for a profile.

    Notes do not wait for the device. Steps are not replayed, which would hide their parts.
    """

    may_record = False

    def __init__(
        self, spec: SegmentSpec, store: GraphStore, device: torch.device, world: World
    ) -> None:
        super().__init__(spec, store, device, world)
        self.moments: list[list[Moment]] = []
        """Moments of each step: graphs asked for, graphs read, last gradient, gradients exchanged,
        step taken."""
        self._latest: Tensor | None = None
        # An event costs a launch, so only the weight that was last in the step before has one.
        self._last: Tensor | None = None
        self._gradient: Moment = None
        self._exchanged: Moment = None
        for weight in self.parallel.weights:
            weight.register_post_accumulate_grad_hook(self._complete)  # type: ignore[no-untyped-call]  # torch has no types here

    def marked_step(self, step: Step, batches: Iterator[list[Batch | None]]) -> None:
        """Take a training step, and record the moments between its phases.

        The next item of ``batches``, read here, must be the micro-batches of the step.
        """
        asked = self._now()
        pieces = next(batches)
        there = self._now()
        self.train_step(step, pieces)
        self.moments.append([asked, there, self._gradient, self._exchanged, self._now()])
        self._gradient = self._exchanged = None

    def seconds(self) -> Tensor:
        """Return the times of each recorded step [s], [n_steps, 3]: reading, computing, exchange.

        Exchange is the time from this rank's last gradient to the sums over all ranks. A step whose
        last gradient was not recorded has NaN.
        """
        between, rows = self._between, []
        for asked, there, last, after, end in self.moments:
            if self.parallel.is_sharded:  # its exchange is elsewhere, and its weights come and go
                last = after
            if last is None:
                rows.append((math.nan,) * 3)
            else:
                computing = between(there, last) + between(after, end)
                rows.append((between(asked, there), computing, between(last, after)))
        return torch.tensor(rows, dtype=torch.float64).reshape(-1, 3)

    def _backward(self, step: Step, batch: Batch | None) -> Tensor:
        loss = super()._backward(step, batch)
        self._exchanged, self._last = self._now(), self._latest
        return loss

    def _complete(self, weight: Tensor) -> None:
        """Record that the gradient of a weight is complete on this rank (hook)."""
        self._latest = weight
        if weight is self._last:
            self._gradient = self._now()

    def _now(self) -> Moment:
        if self.device.type == "cpu":
            return time.perf_counter()
        event = torch.Event(self.device, enable_timing=True)
        event.record()
        return event

    def _between(self, begin: Moment, end: Moment) -> float:
        """Return the time between two moments [s]; an accelerator must have passed both."""
        if self.device.type == "cpu":
            return float(end - begin)
        return float(begin.elapsed_time(end)) / 1e3


def parts_of(seconds: Tensor, world: World, device: torch.device) -> Parts:
    """Return the mean time of each activity in a step, over the steps of all ranks (collective).

    Parameters
    ----------
    seconds
        This rank's times from :meth:`MarkedTrainer.seconds`, for the same steps on every rank.
    world
        Rank of this process and number of ranks.
    device
        Device of the tensors in collectives.
    """
    ranks = torch.zeros(world.size, *seconds.shape, dtype=torch.float64, device=device)
    ranks[world.rank] = seconds.to(device)
    return divided(world.sum(ranks).cpu())


def divided(seconds: Tensor) -> Parts:
    """Return the mean time of each activity in a step, given the times of all ranks.

    Steps with NaN on any rank are left out.

    Parameters
    ----------
    seconds
        Times from :meth:`MarkedTrainer.seconds` of all ranks [s], [n_ranks, n_steps, 3].
    """
    known = ~seconds.isnan().any(-1).any(0)
    reading, computing, exposed = seconds[:, known].unbind(-1)
    if len(seconds) == 1:
        return Parts(float(reading.mean()), float((computing + exposed).mean()))
    exchange = exposed.amin(0)
    return Parts(
        float(reading.mean()),
        float(computing.mean()),
        float(exchange.mean()),
        float((exposed - exchange).mean()),
    )
