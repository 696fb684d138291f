"""Parallel training of one network: what each rank holds of it, and what ranks exchange."""

from hydragnn_flow.training.parallel.alone import Parallel
from hydragnn_flow.training.parallel.choose import parallel

__all__ = ["Parallel", "parallel"]
