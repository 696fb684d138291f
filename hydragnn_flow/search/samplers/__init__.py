"""Samplers of this package: Gaussian process and batched TPE, for many trials in flight."""

from hydragnn_flow.search.samplers.batched_tpe import BatchedTPESampler

__all__ = ["BatchedTPESampler"]
