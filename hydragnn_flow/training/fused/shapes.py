"""Shapes of segments (jobs of training): segments of equal shape can be trained fused.

Fused segments are trained in one process, with common training steps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hydragnn_flow.config.network import fusing_refusal
from hydragnn_flow.segment import SegmentSpec

# Settings that may differ among members.
_OF_TRAINING = ("num_epoch", "gradient_clip", "ema_decay", "Scheduler", "EarlyStopping", "patience")
_OF_OPTIMIZER = ("learning_rate", "weight_decay")


def refusal_of(spec: SegmentSpec) -> str:
    """Return why a segment cannot be fused (trained with others in a process); empty if it can."""
    if reason := fusing_refusal(spec.network):
        return reason
    if spec.store.mode == "stream":
        return "trainings on a store that is streamed cannot be fused"
    return ""


def shape_of(spec: SegmentSpec) -> str:
    """Return a segment's shape: everything that fused segments must have in common, as JSON.

    Fused segments are trained in one process. Those of equal shape may differ in seed, initial
    weights, learning rate and its schedule, weight decay, gradient clipping, averaging of weights,
    and in their first and last epoch.
    """
    network = spec.network.to_json()
    training = _without(network["Training"], _OF_TRAINING)
    training["Optimizer"] = _without(training["Optimizer"], _OF_OPTIMIZER)
    shared = {
        "kind": spec.kind,
        "store": vars(spec.store),
        "frozen": spec.start.frozen,
        "batches": spec.epochs.batches,
        "sampling": spec.epochs.sampling,
        "validation": vars(spec.validation),
    }
    return json.dumps({**network, "Training": training, "segment": shared}, sort_keys=True)


def refusal_together(specs: Sequence[SegmentSpec]) -> str:
    """Return why segments cannot be fused (trained together in one process); empty if they can."""
    if reason := refusal_of(specs[0]):
        return reason
    if any(shape_of(spec) != shape_of(specs[0]) for spec in specs):
        return "segments whose networks, batches, losses or data differ cannot be fused"
    return ""


def is_of_member(path: str) -> bool:
    """Return whether a configuration key may differ among fused segments.

    ``path`` is the dotted path of the key in the network's configuration, as
    `Training.gradient_clip`. Fused segments are trained in one process.
    """
    section, _, key = path.rpartition(".")
    return path.startswith("Training.Scheduler.") or (
        (section == "Training.Optimizer" and key in _OF_OPTIMIZER)
        or (section == "Training" and key in _OF_TRAINING)
    )


def _without(values: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
