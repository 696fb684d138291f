"""What to try next: search space, samplers, durable study, rungs."""

from hydragnn_flow.search.records import Outcome, TrialRecord
from hydragnn_flow.search.samplers import BatchedTPESampler
from hydragnn_flow.search.study import JOURNAL, Search, read_trials

__all__ = ["JOURNAL", "BatchedTPESampler", "Outcome", "Search", "TrialRecord", "read_trials"]
