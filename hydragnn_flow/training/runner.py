"""Run one segment to its end, whatever the end is."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hydragnn_flow.config import load_network
from hydragnn_flow.config.data import Mode
from hydragnn_flow.data import GraphStore
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.predict import predict_batches, split_batches
from hydragnn_flow.training.segment import SegmentResult, SegmentSpec, Status
from hydragnn_flow.training.trainer import Diverged, Stopped, Trainer

VALIDATION_FILE = "validation.npz"
_CLEAR_REFS, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


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
) -> SegmentResult:
    """Train from the checkpoint to the segment's rung.

    Failure is a result: divergence and lack of memory come back as a status with a reason.

    Parameters
    ----------
    spec
        What to train.
    device
        Where to compute.
    world
        This process's place among the ranks of the segment.
    should_stop
        Asked before every step; a yes ends the segment at its last checkpoint.
    """
    world = world or World()
    device = torch.device(device)
    torch.set_num_threads(spec.threads)
    result = SegmentResult(spec.kind, spec.number, spec.rung, 0, 0, "ok", started=time.time())
    wall, cpu = time.perf_counter(), time.process_time()
    trainer: Trainer | None = None
    try:
        network = load_network(spec.network, source=f"{spec.kind} {spec.number}")
        store = _open_store(spec.store, spec.mode, spec.scratch)
        _forget_peak_memory(device)  # now that an earlier segment's store is gone
        trainer = Trainer(spec, network, store, device, world)
        result.from_epoch = trainer.progress.epoch
        trainer.run(should_stop)
        if world.is_first:
            _save_validation(trainer, spec.folder / VALIDATION_FILE)
    except Diverged as error:
        result.status, result.reason = "diverged", str(error)
    except Stopped:
        result.status, result.reason = "interrupted", "asked to stop before the rung"
    except (MemoryError, RuntimeError) as error:
        status = _out_of_memory(error)
        if status is None:
            raise
        result.status, result.reason = status, str(error).splitlines()[0]
    if trainer is not None:
        progress = trainer.progress
        result.to_epoch = progress.epoch
        result.history = [h for h in progress.history if h[0] > spec.after_epoch]
        if progress.best_epoch:
            result.best_val_loss, result.best_epoch = progress.best_val_loss, progress.best_epoch
            result.metrics = progress.metrics
    result.ended = time.time()
    result.seconds = time.perf_counter() - wall
    result.cpu_seconds = time.process_time() - cpu
    result.peak_memory_gib = _peak_memory_gib(device)
    return result


def _save_validation(trainer: Trainer, path: Path) -> None:
    """Keep the best weights' predictions for the validation split beside the checkpoint."""
    trainer.model.load_state_dict(trainer.best)
    predictions: dict[str, Any] = {
        **predict_batches(trainer.model, split_batches(trainer.val), trainer.device)
    }
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    np.savez(temporary, **predictions)
    temporary.replace(path)


def _out_of_memory(error: Exception) -> Status | None:
    text = str(error).lower()
    is_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        "out of memory" in text or "can't allocate memory" in text
    )
    return "out_of_memory" if is_memory else None


def _forget_peak_memory(device: torch.device) -> None:
    """Begin a new measurement: a warm process remembers the peaks of earlier segments."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    elif _CLEAR_REFS.exists():
        _CLEAR_REFS.write_text("5")


def _peak_memory_gib(device: torch.device) -> float:
    """Most memory of its own that the process has had since the measurement began [GiB].

    Pages of files, the libraries and a store in memory among them, are the node's and not the
    process's. Linux keeps the peak of all pages only; those of files, which hardly ever become
    fewer, are subtracted as they are at the end. So what was read of a store for the first time
    after the peak is missing from the answer. Other systems count everything.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    if _CLEAR_REFS.exists():
        lines = _STATUS.read_text().splitlines()
        fields = [line.split() for line in lines if line.startswith(("Vm", "Rss"))]
        kib = {name: int(value) for name, value, _ in fields}
        own = kib["VmHWM:"] - kib["RssFile:"] - kib["RssShmem:"]
        return max(own, kib["RssAnon:"]) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
