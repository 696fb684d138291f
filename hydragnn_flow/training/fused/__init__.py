"""Fused training: several networks of one shape are computed as one network.

A step of a small network takes as long as launching its GPU kernels, and fusing shares them.
"""

from hydragnn_flow.training.fused.runner import run_fused
from hydragnn_flow.training.fused.trainer import FusedTrainer

__all__ = ["FusedTrainer", "run_fused"]
