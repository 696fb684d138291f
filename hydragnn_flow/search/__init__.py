"""What to try next: search space, samplers, durable study, rungs."""

from hydragnn_flow.config.warm_start import JOURNAL
from hydragnn_flow.search.records import Outcome, TrialRecord
from hydragnn_flow.search.samplers import BatchedTPESampler
from hydragnn_flow.search.study import Search, read_trials

__all__ = ["JOURNAL", "BatchedTPESampler", "Outcome", "Search", "TrialRecord", "read_trials"]
