"""The samplers of this package."""

from hydragnn_flow.search.samplers.batched_tpe import BatchedTPESampler

__all__ = ["BatchedTPESampler"]
