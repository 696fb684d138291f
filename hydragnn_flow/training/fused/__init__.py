"""Fused members: trainings of one shape in one process, with their weights behind one another."""

from hydragnn_flow.training.fused.runner import run_fused
from hydragnn_flow.training.fused.trainer import FusedTrainer

__all__ = ["FusedTrainer", "run_fused"]
