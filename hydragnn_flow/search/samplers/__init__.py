"""Samplers of this package: Gaussian process and batched TPE, for many trials in flight.

Optuna's samplers fit a model for each suggestion, which takes too long for a driver of many GCDs.
"""

from hydragnn_flow.search.samplers.batched_tpe import BatchedTPESampler

__all__ = ["BatchedTPESampler"]
