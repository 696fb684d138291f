"""What to try next: search space, durable study, rungs."""

from hydragnn_flow.search.study import JOURNAL, Search, TrialRecord, read_trials

__all__ = ["JOURNAL", "Search", "TrialRecord", "read_trials"]
