"""Profile of a segment's steps instead of its training."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from hydragnn_flow.segment import SegmentSpec, Status, TrainingOutcome
from hydragnn_flow.training.distributed import World, keep_forever
from hydragnn_flow.training.memory import out_of_memory
from hydragnn_flow.training.monitor import Stopped
from hydragnn_flow.training.profiles.profile import profile_training
from hydragnn_flow.training.runner import open_store


def profile_segment(
    spec: SegmentSpec,
    *,
    device: torch.device | str = "cpu",
    world: World | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    energy_fraction: Callable[[], float] = lambda: 1.0,
    alive: Callable[[float], None] = lambda longest_step: None,
) -> TrainingOutcome:
    """Profile the steps of a segment; the first rank's outcome has the profile as its answer.

    Parameters are those of :func:`~hydragnn_flow.training.runner.run_segment`. Like there, lack of
    memory and a stop are returned as a status with a reason.
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
        store = open_store(spec.store, spec.mode, spec.scratch)
        profile = profile_training(
            *(spec, store, device, world, spec.profile_seconds, is_over, energy_fraction)
        )
    except Stopped as stop:
        return ended("interrupted", str(stop))
    except (MemoryError, RuntimeError) as error:
        reason = out_of_memory(error)
        if reason is None:
            raise
        if world.is_joined:  # the other ranks still wait in collectives
            keep_forever(error)
        return ended("out_of_memory", reason)
    return replace(ended("ok"), answer=profile.to_dict() if world.is_first else {})
