"""The project's own small Slurm."""

from cluster.cluster import Cluster, Job, missing
from cluster.settings import CORES, GCDS, INTERFACE, PARTITION

__all__ = ["CORES", "GCDS", "INTERFACE", "PARTITION", "Cluster", "Job", "missing"]
