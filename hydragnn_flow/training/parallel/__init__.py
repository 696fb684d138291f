"""Parallel training of one network: what each rank holds, and what the ranks exchange."""

from hydragnn_flow.training.parallel.alone import Parallel
from hydragnn_flow.training.parallel.choose import parallel
from hydragnn_flow.training.parallel.division import Division, division_of

__all__ = ["Division", "Parallel", "division_of", "parallel"]
