"""Selection of the trials that become members."""

from __future__ import annotations

from collections.abc import Sequence

from hydragnn_flow.errors import InputError
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.search.records import best_first


def select_top(records: Sequence[TrialRecord], size: int) -> list[TrialRecord]:
    """The trials with the smallest value of the first objective, best first.

    A trial that a rung ended has finished too: it may be better than one that was continued earlier
    in the search, and a member is trained further anyway. One that broke a limit of
    `search.constraints` is chosen only if there are too few others.

    Raises
    ------
    InputError
        If fewer than ``size`` trials finished.
    """
    finished = [
        record
        for record in records
        if record.state in ("complete", "pruned") and record.value is not None
    ]
    if len(finished) < size:
        failed = [record for record in records if record.state == "failed"]
        why = f" ({len(failed)} failed, the first because {failed[0].reason})" if failed else ""
        raise InputError(
            f"ensemble.size = {size} is more than the {len(finished)} trials that finished{why}; "
            f"lower ensemble.size or raise search.trials"
        )
    return sorted(finished, key=best_first)[:size]
