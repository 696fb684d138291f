"""Run of one segment: a stretch of a trial's or member's training, sent as one job."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from hydragnn_flow.config.base import import_class
from hydragnn_flow.data import GraphStore
from hydragnn_flow.log import LastEpoch
from hydragnn_flow.models.leverage import LEVERAGE
from hydragnn_flow.segment import AGREED, SegmentSpec, StoreAccess, TrainingOutcome
from hydragnn_flow.training.distributed import World, keep_forever
from hydragnn_flow.training.memory import forget_peak_memory, out_of_memory, peak_memory_gib
from hydragnn_flow.training.monitor import Diverged, EnergyMeter, Stopped
from hydragnn_flow.training.predict import KEY, SPLITS, labels_of, predictions_in
from hydragnn_flow.training.state import Spent
from hydragnn_flow.training.trainer import Trainer


@lru_cache(maxsize=1)
def open_store(store: StoreAccess) -> GraphStore:
    """Open a GraphStore, or return the open one if the last call had an equal ``store``.

    So a store stays open between the segments (jobs) that one process trains.
    """
    # HydraGNN's packed targets repeat the targets that are stored by name.
    return GraphStore.open(store.path, store.mode, without=("y", "y_loc"), scratch=store.scratch)


def run_segment(
    spec: SegmentSpec,
    *,
    device: torch.device | str = "cpu",
    world: World | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    energy_fraction: Callable[[], float] = lambda: 1.0,
    alive: Callable[[float], None] = lambda longest_step: None,
    epoch_ended: Callable[[LastEpoch], None] = lambda epoch: None,
) -> TrainingOutcome:
    """Train one segment (a stretch of a trial's or member's training) up to its last epoch.

    The training continues from the segment's checkpoint, or starts from the beginning. Divergence,
    lack of memory and a stop raise no error: they are the status of the outcome, which then has a
    reason too.

    Parameters
    ----------
    spec
        Specification of the segment.
    device
        Device that the training computes on.
    world
        Rank of this process and number of ranks of the segment; None for a single rank.
    should_stop
        Function that returns true to end the segment with a checkpoint; called before every step,
        with several ranks about every second.
    energy_fraction
        Function that returns the segment's fraction of the energy that this rank's counters see.
    alive
        Function that reports that this process still works (a heartbeat), called before every step
        and every prediction batch with the time of the longest step so far [s]; 0 if that is not
        known.
    epoch_ended
        Function called on the first rank with each epoch that has ended.
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
        """Raise ``Stopped`` on all ranks if any rank is asked to stop (collective)."""
        asked = float(is_over())
        if world.size > 1:
            asked = float(world.sum(torch.tensor(asked, device=device)))
        if asked:
            raise Stopped("asked to stop while it predicted")

    try:
        store = open_store(spec.store)
        forget_peak_memory(device)  # now that an earlier segment's store is gone
        trainer = Trainer(spec, store, device, world, spent)
        trainer.run(is_over, alive, meter.joules, epoch_ended)
        predict_splits(trainer, store, check_stop)
        trainer.leave()
    except Exception as error:
        ended = how_ended(error, world)
        if ended is None:
            raise
        outcome = replace(outcome, **ended)
    if trainer is not None:
        if outcome.status in AGREED:
            trainer.leave()
        outcome = with_progress(outcome, trainer)
    return replace(
        outcome,
        ended=time.time(),
        seconds=time.perf_counter() - wall,
        cpu_seconds=time.process_time() - cpu,
        peak_memory_gib=peak_memory_gib(device),
        joules=meter.joules(),
        active=meter.active,
    )


def how_ended(error: Exception, world: World | None = None) -> dict[str, Any] | None:
    """Return ``status`` and ``reason``, in a dict, of a segment whose training an error ended.

    The result is None for any other error than divergence, a stop, or lack of memory. If other
    ranks of ``world`` still wait, an error for lack of memory is kept alive until the process ends.
    """
    if isinstance(error, Diverged):
        return {"status": "diverged", "reason": str(error)}
    if isinstance(error, Stopped):
        return {"status": "interrupted", "reason": str(error)}
    reason = out_of_memory(error) if isinstance(error, (MemoryError, RuntimeError)) else None
    if reason is None:
        return None
    if world is not None and world.is_joined:  # the other ranks still wait in collectives
        keep_forever(error)
    return {"status": "out_of_memory", "reason": reason}


def predict_splits(trainer: Trainer, store: GraphStore, check_stop: Callable[[], None]) -> None:
    """Predict the splits whose predictions an ensemble needs, and add them to the checkpoint.

    A member predicts the validation, calibration and test split, a trial only the validation graphs
    that judge its epochs; then functions of the user measure a trial's predictions. Splits that the
    checkpoint has predictions for are left out. A member first learns its leverage, which its
    predictions contain. ``check_stop`` is called before each batch, and raises an exception to end
    the prediction.
    """
    # Predicted here because the driver, on a login node, should not compute. Members predict whole
    # splits, for their ensemble weights, and trials the validation subset. A trial's predictions
    # exist already, unless the best weights come from a killed process.
    if trainer.spec.kind == "member" and LEVERAGE not in trainer.predicted:
        trainer.learn_leverage(check_stop)
    splits = [store[name] for name in SPLITS if name in store.splits]
    for split in splits if trainer.spec.kind == "member" else [trainer.val]:
        if split.name not in trainer.predicted:
            trainer.predict(split, check_stop)
    if trainer.spec.kind == "trial":
        trainer.progress.metrics |= {
            name: _measured(name, trainer) for name in trainer.spec.validation.functions
        }


def _measured(name: str, trainer: Trainer) -> float:
    """Return what a function of the user measures of a trial's validation predictions.

    Raises
    ------
    TypeError
        If it returns no number.
    Diverged
        If it returns a number that is not finite.
    """
    split = trainer.val
    predictions = predictions_in({KEY: trainer.predicted}, split.name) or {}
    labels = {
        target: labels_of(split, target, predictions[target].shape[1])
        for target in trainer.loss.targets
    }
    value = import_class(name)(predictions, labels, split.n_atoms)
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError(repr(value))
        number = float(value)
    except Exception as error:
        raise TypeError(f"{name} returned {value!r}, which is no number") from error
    if not math.isfinite(number):
        raise Diverged(f"{name} returned {number}")
    return number


def with_progress(outcome: TrainingOutcome, trainer: Trainer) -> TrainingOutcome:
    """Return a copy of a segment's outcome, completed with the results of its trainer.

    These are its checkpoint, epochs, errors and step times. The cost ([s], [J]) of earlier segments
    comes from the checkpoint from which the segment resumed.
    """
    progress, sending, monitor = trainer.progress, trainer.sending, trainer.monitor
    found: dict[str, Any] = {
        "checkpoint": sending.checkpoint.name if sending.checkpoint else "",
        "checksum": sending.checksum,
        "passed_over": "; ".join(sending.passed_over.values()),
        "from_epoch": trainer.began[0],
        "from_step": trainer.began[1],
        "to_epoch": progress.epoch,
        "history": [row for row in progress.history if row[0] > trainer.spec.epochs.after_epoch],
        "spent_seconds": trainer.spent_before.seconds,
        "spent_joules": trainer.spent_before.joules,
    }
    if (steps := trainer.recorded) is not None:
        found |= {"replayed": steps.replayed, "not_replayed": steps.reason}
    if monitor is not None:
        of_steps = {name: getattr(trainer, name) for name in ("graphs_per_step", "learning_rate")}
        found |= {"steps": monitor.steps, "step_seconds": monitor.step_seconds}
        found |= monitor.steady.totals | of_steps
    if progress.best_epoch:
        names = ("best_val_error", "best_val_loss", "best_epoch", "metrics")
        found |= {name: getattr(progress, name) for name in names}
    return replace(outcome, **found)
