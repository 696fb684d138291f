"""What proposes configurations."""

from hydragnn_flow.search.samplers.batched_tpe import BatchedTPESampler
from hydragnn_flow.search.samplers.make import make_sampler

__all__ = ["BatchedTPESampler", "make_sampler"]
