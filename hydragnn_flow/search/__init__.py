"""Search: its space, its samplers, the durable study, and the rungs.

Thousands of trials run at once, and drivers may be killed: asking is fast and reports are durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydragnn_flow.config.origins import JOURNAL
from hydragnn_flow.lazy import lazily

if TYPE_CHECKING:
    from hydragnn_flow.search.records import Job, Outcome, TrialRecord
    from hydragnn_flow.search.samplers import BatchedTPESampler
    from hydragnn_flow.search.storage import read_trials
    from hydragnn_flow.search.study import Search
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "BatchedTPESampler": "samplers",
            "Job": "records",
            "Outcome": "records",
            "Search": "study",
            "TrialRecord": "records",
            "read_trials": "storage",
        },
    )

__all__ = [
    "JOURNAL",
    "BatchedTPESampler",
    "Job",
    "Outcome",
    "Search",
    "TrialRecord",
    "read_trials",
]
