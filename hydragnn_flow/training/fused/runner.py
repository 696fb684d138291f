"""Fused training of several segments (jobs) of one shape, in one process."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from hydragnn_flow.errors import InputError, StoreError
from hydragnn_flow.files import passing
from hydragnn_flow.segment import APART, SegmentSpec, TrainingOutcome
from hydragnn_flow.training.fused.trainer import FusedTrainer
from hydragnn_flow.training.memory import forget_peak_memory, out_of_memory, peak_memory_gib
from hydragnn_flow.training.monitor import EnergyMeter, Stopped
from hydragnn_flow.training.runner import (
    how_ended,
    open_store,
    predict_splits,
    with_progress,
)
from hydragnn_flow.training.state import Spent


def run_fused(
    specs: Sequence[SegmentSpec],
    *,
    device: torch.device | str = "cpu",
    should_stop: Callable[[], bool] = lambda: False,
    energy_fraction: Callable[[], float] = lambda: 1.0,
    alive: Callable[[float], None] = lambda longest_step: None,
) -> list[TrainingOutcome]:
    """Train several segments (jobs) of one shape in one process, each as :func:`run_segment` does.

    If fused training is impossible or not faster, the segments end as interrupted, with a reason
    that begins with :data:`.APART`, and can continue separately.

    Parameters
    ----------
    specs
        Segments to train; :func:`.shape_of` says what they must have in common.
    device, should_stop, energy_fraction, alive
        The same as for :func:`run_segment`.

    Returns
    -------
    list of TrainingOutcome
        Outcomes in the order of ``specs``. A member that fails does not affect the others.
    """
    device, n = torch.device(device), len(specs)
    torch.set_num_threads(specs[0].threads)
    started, wall, cpu = time.time(), time.perf_counter(), time.process_time()
    meter = EnergyMeter(device, energy_fraction)
    fused: FusedTrainer | None = None

    def share(place: int) -> float:
        """Return the fraction of the time so far that the member with index ``place`` took."""
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

    store = open_store(specs[0].store)
    forget_peak_memory(device)
    try:
        fused = FusedTrainer(specs, store, device, spent)
    except (InputError, MemoryError, RuntimeError) as error:
        reason = str(error) if isinstance(error, InputError) else out_of_memory(error)
        if reason is None:
            raise
        outcome = TrainingOutcome.cut_short("interrupted", APART + reason, wall)
        return [replace(outcome, seconds=outcome.seconds / n, fused=n)] * n
    outcomes = [TrainingOutcome(status="ok", started=started, fused=n)] * n
    fused.run(is_over, alive)
    for place, member in enumerate(fused.members):
        failure = fused.ended[place]
        if failure is None:
            try:
                predict_splits(member, store, check_stop)
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
        for outcome, mine in zip(map(with_progress, outcomes, fused.members), shares, strict=True)
    ]


def _ended(outcome: TrainingOutcome, error: Exception | None, apart: str) -> TrainingOutcome:
    if error is None:
        return outcome
    if (ended := how_ended(error)) is not None:
        if apart and ended["status"] == "interrupted":
            ended["reason"] = APART + apart
        return replace(outcome, **ended)
    if isinstance(error, StoreError):
        return replace(outcome, status="refused", reason=str(error))
    traceback.print_exception(error)
    reason = next(iter(str(error).splitlines()), "")
    reason = f"{type(error).__name__}: {reason}"
    if passing(error) is not None:
        return replace(outcome, status="interrupted", reason=f"the disk failed ({reason})")
    return replace(outcome, status="error", reason=reason)
