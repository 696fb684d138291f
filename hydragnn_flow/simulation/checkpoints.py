"""Checkpoints of simulated segments: files that can be read, and hold nothing."""

from __future__ import annotations

import io
import math
from functools import cache

import torch

from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.checkpoint import VERSION, checkpoints


def leave_checkpoint(spec: SegmentSpec) -> None:
    """Write the checkpoint of a segment, in place of those before it."""
    folder = spec.folder
    before = folder / spec.begin_with if spec.begin_with else None
    if before is not None and not spec.may_have_begun:
        before.replace(spec.checkpoint)
        return
    folder.mkdir(parents=True, exist_ok=True)
    others = checkpoints(folder) if spec.may_have_begun else []
    spec.checkpoint.write_bytes(_content())
    for other in others:
        other.unlink()


@cache
def _content() -> bytes:
    """What all of them hold: nothing that is known of a segment."""
    file = io.BytesIO()
    progress = {"epoch": 0, "step": 0, "best_val_error": math.nan}
    torch.save({"version": VERSION, "progress": progress, "network": {}}, file)
    return file.getvalue()
