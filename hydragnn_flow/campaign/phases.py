"""The phases of a campaign on whatever machine; the second begins where the first leaves GCDs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.dispatch import Dispatch
from hydragnn_flow.campaign.early_members import EarlyMembers
from hydragnn_flow.campaign.members import MemberPhase
from hydragnn_flow.campaign.selecting import select_trials
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.ensemble import Member
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.machine import Workers
from hydragnn_flow.search import TrialRecord


def run_phases(context: Context, start: Callable[[], Workers]) -> list[Member]:
    """Search, choose members and train them; returns the members, if there is to be an ensemble.

    Parameters
    ----------
    context
        Of the campaign.
    start
        Starts the workers, once nothing can be found wrong with the search any more.

    Raises
    ------
    InputError
        If no trial came to an end, or fewer than members.
    """
    trials = TrialPhase(context)
    dispatch = Dispatch(context, start())
    if context.config.ensemble is None:
        _check_any(trials.run(dispatch))
        return []
    records = trials.run(dispatch, EarlyMembers(context))
    selection = select_trials(context, records)
    return MemberPhase(context, selection, records).run(dispatch)


def _check_any(records: Sequence[TrialRecord]) -> None:
    """Refuse a search of which nothing has come."""
    if all(record.state == "failed" for record in records):
        raise InputError(
            f"search: none of {len(records)} trials came to an end, the first because "
            f"{records[0].reason}; correct the space and search in another run directory"
        )
