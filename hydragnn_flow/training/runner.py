"""Run one segment to its end, whatever the end is."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from hydragnn_flow.config.data import Mode
from hydragnn_flow.data import GraphStore
from hydragnn_flow.errors import InputError, StoreError
from hydragnn_flow.files import PASSING
from hydragnn_flow.segment import AGREED, APART, SegmentSpec, TrainingOutcome
from hydragnn_flow.training.distributed import World, keep_forever
from hydragnn_flow.training.energy import EnergyMeter
from hydragnn_flow.training.fused import FusedTrainer
from hydragnn_flow.training.memory import forget_peak_memory, out_of_memory, peak_memory_gib
from hydragnn_flow.training.monitor import Diverged, Stopped
from hydragnn_flow.training.predictions import SPLITS
from hydragnn_flow.training.state import Spent
from hydragnn_flow.training.trainer import Trainer


@lru_cache(maxsize=1)
def _open_store(path: str, mode: Mode, scratch: str | None) -> GraphStore:
    """A store stays open between the segments of a warm process."""
    # The targets packed for HydraGNN say again what the targets by name do.
    return GraphStore.open(path, mode, without=("y", "y_loc"), scratch=scratch)


def run_segment(
    spec: SegmentSpec,
    *,
    device: torch.device | str = "cpu",
    world: World | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    energy_fraction: Callable[[], float] = lambda: 1.0,
    alive: Callable[[float], None] = lambda longest_step: None,
) -> TrainingOutcome:
    """Train from the checkpoint to the segment's rung.

    Failure is a result: divergence, lack of memory and a stop come back as a status with a reason.

    Parameters
    ----------
    spec
        What to train.
    device
        Where to compute.
    world
        This process's place among the ranks of the segment.
    should_stop
        Asked before every step, with several ranks about every second; a yes ends the segment with
        a checkpoint.
    energy_fraction
        Gives the segment's part of the energy that this rank's counters see.
    alive
        Told before every step and every batch that is predicted how long the longest step has
        taken [s], 0 if that is not known.
    """
    world = world or World()
    device = torch.device(device)
    torch.set_num_threads(spec.threads)
    outcome = TrainingOutcome(status="ok", started=time.time())
    wall, cpu = time.perf_counter(), time.process_time()
    meter = EnergyMeter(device, energy_fraction)
    trainer: Trainer | None = None

    def spent() -> Spent:
        mine = [time.perf_counter() - wall, meter.joules() or 0.0]
        return Spent(*world.sum(torch.tensor(mine, dtype=torch.float64, device=device)).tolist())

    def is_over() -> bool:
        alive(0.0)
        meter.poll()
        return should_stop()

    def check_stop() -> None:
        """All ranks call this as often, and stop together."""
        asked = torch.tensor(float(is_over()), device=device)
        if float(world.sum(asked)):
            raise Stopped("asked to stop while it predicted")

    try:
        store = _open_store(spec.store, spec.mode, spec.scratch)
        forget_peak_memory(device)  # now that an earlier segment's store is gone
        trainer = Trainer(spec, store, device, world, spent)
        outcome = replace(
            outcome,
            from_epoch=trainer.progress.epoch,
            from_step=trainer.progress.step,
            spent_seconds=trainer.spent_before.seconds,
            spent_joules=trainer.spent_before.joules,
        )
        trainer.run(is_over, alive, meter.joules)
        _predict_splits(trainer, store, check_stop)
        trainer.leave()
    except Diverged as error:
        outcome = replace(outcome, status="diverged", reason=str(error))
    except Stopped as stop:
        outcome = replace(outcome, status="interrupted", reason=str(stop))
    except (MemoryError, RuntimeError) as error:
        reason = out_of_memory(error)
        if reason is None:
            raise
        outcome = replace(outcome, status="out_of_memory", reason=reason)
        if world.is_joined:  # the others are not, and wait
            keep_forever(error)
    if trainer is not None:
        if outcome.status in AGREED:
            trainer.leave()
        outcome = _with_progress(outcome, trainer)
    return replace(
        outcome,
        ended=time.time(),
        seconds=time.perf_counter() - wall,
        cpu_seconds=time.process_time() - cpu,
        peak_memory_gib=peak_memory_gib(device),
        joules=meter.joules(),
    )


def run_fused(
    specs: Sequence[SegmentSpec],
    *,
    device: torch.device | str = "cpu",
    should_stop: Callable[[], bool] = lambda: False,
    energy_fraction: Callable[[], float] = lambda: 1.0,
    alive: Callable[[float], None] = lambda longest_step: None,
) -> list[TrainingOutcome]:
    """Train several segments of one shape at once, each as :func:`run_segment` does.

    Where fused training does not pay, or cannot be, they end as interrupted ones do, with a reason
    that begins with :data:`.APART`, and can go on separately.

    Parameters
    ----------
    specs
        What to train; see :func:`.shape_of` for what they must have in common.
    device, should_stop, energy_fraction, alive
        As of :func:`run_segment`.

    Returns
    -------
    list of TrainingOutcome
        In the order of ``specs``. A member that ends badly leaves the others alone.
    """
    device, n = torch.device(device), len(specs)
    torch.set_num_threads(specs[0].threads)
    started, wall, cpu = time.time(), time.perf_counter(), time.process_time()
    meter = EnergyMeter(device, energy_fraction)
    fused: FusedTrainer | None = None

    def share(place: int) -> float:
        """A member's part of what has been taken so far."""
        total = time.perf_counter() - wall
        known = [0.0] * n if fused is None else fused.seconds
        return (known[place] + (total - sum(known)) / n) / total

    def spent(place: int) -> Spent:
        mine = share(place)
        return Spent((time.perf_counter() - wall) * mine, (meter.joules() or 0.0) * mine)

    def is_over() -> bool:
        alive(0.0)
        meter.poll()
        return should_stop() or (fused is not None and bool(fused.apart))

    def check_stop() -> None:
        if is_over():
            raise Stopped("asked to stop while it predicted")

    store = _open_store(specs[0].store, specs[0].mode, specs[0].scratch)
    forget_peak_memory(device)
    try:
        fused = FusedTrainer(specs, store, device, spent)
    except (InputError, MemoryError, RuntimeError) as error:
        reason = str(error) if isinstance(error, InputError) else out_of_memory(error)
        if reason is None:
            raise
        outcome = TrainingOutcome.cut_short("interrupted", APART + reason, started)
        return [replace(outcome, seconds=outcome.seconds / n, fused=n)] * n
    outcomes = [
        TrainingOutcome(
            status="ok",
            started=started,
            from_epoch=member.progress.epoch,
            from_step=member.progress.step,
            spent_seconds=member.spent_before.seconds,
            spent_joules=member.spent_before.joules,
            fused=n,
        )
        for member in fused.members
    ]
    fused.run(is_over, alive)
    for place, member in enumerate(fused.members):
        failure = fused.ended[place]
        if failure is None:
            try:
                _predict_splits(member, store, check_stop)
            except Exception as late:  # which is this member's alone
                failure = late
        outcomes[place] = _ended(outcomes[place], failure, fused.apart)
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    shares, joules = [share(place) for place in range(n)], meter.joules()
    return [
        replace(
            outcome,
            ended=time.time(),
            seconds=seconds * mine,
            cpu_seconds=cpu_seconds * mine,
            peak_memory_gib=peak_memory_gib(device),
            joules=None if joules is None else joules * mine,
            step_seconds=outcome.step_seconds / n,
        )
        for outcome, mine in zip(map(_with_progress, outcomes, fused.members), shares, strict=True)
    ]


def _ended(outcome: TrainingOutcome, error: Exception | None, apart: str) -> TrainingOutcome:
    """The outcome of a member that has ended."""
    if error is None:
        return outcome
    if isinstance(error, Diverged):
        return replace(outcome, status="diverged", reason=str(error))
    if isinstance(error, Stopped):
        return replace(outcome, status="interrupted", reason=APART + apart if apart else str(error))
    if isinstance(error, (MemoryError, RuntimeError)) and (reason := out_of_memory(error)):
        return replace(outcome, status="out_of_memory", reason=reason)
    if isinstance(error, StoreError):
        return replace(outcome, status="refused", reason=str(error))
    traceback.print_exception(error)
    reason = next(iter(str(error).splitlines()), "")
    reason = f"{type(error).__name__}: {reason}"
    if isinstance(error, OSError) and error.errno in PASSING:
        return replace(outcome, status="interrupted", reason=f"the disk failed ({reason})")
    return replace(outcome, status="error", reason=reason)


def _predict_splits(trainer: Trainer, store: GraphStore, check_stop: Callable[[], None]) -> None:
    """Predict what is wanted of a training that has ended, unless that is known."""
    # A worker predicts as it has trained; the driver, on a login node, should not.
    # Members predict whole splits, for their weights; of trials what they are judged by. Of the
    # validation split it is known, unless the best weights are those of a process that was killed,
    # or of the trial that a member continues.
    splits = [store[name] for name in SPLITS if name in store.splits]
    for split in splits if trainer.spec.kind == "member" else [trainer.val]:
        if split.name not in trainer.predicted:
            trainer.predict(split, check_stop)


def _with_progress(outcome: TrainingOutcome, trainer: Trainer) -> TrainingOutcome:
    """The outcome with the losses and times of a trainer."""
    progress = trainer.progress
    outcome = replace(
        outcome,
        checkpoint=checkpoint.name if (checkpoint := trainer.sending.checkpoint) else "",
        to_epoch=progress.epoch,
        history=[row for row in progress.history if row[0] > trainer.spec.after_epoch],
    )
    if trainer.monitor is not None:
        outcome = replace(
            outcome,
            steps=trainer.monitor.steps,
            step_seconds=trainer.monitor.step_seconds,
            graphs_per_step=trainer.graphs_per_step,
            learning_rate=trainer.learning_rate,
            steady_steps=trainer.monitor.steady.steps,
            steady_graphs=trainer.monitor.steady.graphs,
            steady_seconds=trainer.monitor.steady.seconds,
            steady_joules=trainer.monitor.steady.joules,
        )
    if progress.best_epoch:
        outcome = replace(
            outcome,
            best_val_error=progress.best_val_error,
            best_val_loss=progress.best_val_loss,
            best_epoch=progress.best_epoch,
            metrics=progress.metrics,
        )
    return outcome
