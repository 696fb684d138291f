"""Shapes of segments: which can be trained fused, and which together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hydragnn_flow.models.stacked import refusal
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.fused.stack import OPTIMIZERS

# What each member has of its own.
_OF_TRAINING = ("num_epoch", "gradient_clip", "ema_decay", "Scheduler", "EarlyStopping", "patience")
_OF_OPTIMIZER = ("learning_rate", "weight_decay", "batch_scaling", "reference_batch")
_SHARED = ("kind", "store", "mode", "frozen", "batches", "sampling", "validation", "criterion")


def refusal_of(spec: SegmentSpec) -> str:
    """Why a segment cannot be trained fused with any other; empty if it can."""
    network, training = spec.network, spec.network.Training
    if reason := refusal(network):
        return reason
    if training.Optimizer.type not in OPTIMIZERS:
        kinds = f"{', '.join(OPTIMIZERS[:-1])} and {OPTIMIZERS[-1]}"
        return f"the optimiser {training.Optimizer.type} cannot be fused, only {kinds}"
    if training.precision == "bf16":
        return "training in bf16 cannot be fused"
    if training.accumulation_steps > 1:
        return "steps of several micro-batches cannot be fused"
    if spec.mode == "stream":
        return "trainings on a store that is streamed cannot be fused"
    if spec.budget is not None and spec.budget[0] == "seconds":
        return "epochs that end by time cannot be fused"
    return ""


def shape_of(spec: SegmentSpec) -> str:
    """What segments that are trained fused have in common, as JSON.

    They may differ in seed, first weights, learning rate and its schedule, weight decay, clipping,
    averaging, and in where they begin and end.
    """
    network = spec.network.to_json()
    training = _without(network["Training"], _OF_TRAINING)
    training["Optimizer"] = _without(training["Optimizer"], _OF_OPTIMIZER)
    shared = {name: getattr(spec, name) for name in _SHARED}
    return json.dumps({**network, "Training": training, "segment": shared}, sort_keys=True)


def refusal_together(specs: Sequence[SegmentSpec]) -> str:
    """Why some segments cannot be trained fused with each other; empty if they can."""
    if reason := refusal_of(specs[0]):
        return reason
    if any(shape_of(spec) != shape_of(specs[0]) for spec in specs):
        return "segments whose networks, batches, losses or data differ cannot be fused"
    return ""


def _without(values: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
