"""Fused training of several networks of one shape, since steps of small ones are launch-bound."""

from hydragnn_flow.training.fused.runner import run_fused
from hydragnn_flow.training.fused.trainer import FusedTrainer

__all__ = ["FusedTrainer", "run_fused"]
