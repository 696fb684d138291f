"""Phases of a campaign on any machine: the search, then the ensemble of its best trials."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.dispatch import Dispatch
from hydragnn_flow.campaign.members import MemberPhase, select_trials
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.ensemble import Member
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.jobs import Workers
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.search.storage import record_members


def run_phases(context: Context, start: Callable[[], Workers]) -> list[Member]:
    """Run the two phases of a campaign: the search, then the training of ensemble members.

    Returns the members; the list is empty for a search without an ensemble.

    Parameters
    ----------
    context
        Context of the campaign.
    start
        Function that starts the workers; called once the search is known to be valid.

    Raises
    ------
    InputError
        If no trial finished, or fewer than there are members.
    """
    trials = TrialPhase(context)
    dispatch = Dispatch(context, start())
    records = trials.run(dispatch)
    if context.config.ensemble is None:
        _check_any(records)
        return []
    selection = select_trials(context, records)
    phase, record = MemberPhase(context, selection, records), context.ledger.write
    chosen = partial(record_members, context.directory.journal)
    record(partial(chosen, [choice.trial for choice in selection.chosen]))
    members = phase.run(dispatch)
    record(partial(chosen, [member.trial for member in members]))
    return members


def _check_any(records: Sequence[TrialRecord]) -> None:
    if all(record.state == "failed" for record in records):
        raise InputError(
            f"search: none of {len(records)} trials came to an end, the first because "
            f"{records[0].reason}; correct the space and search in another run directory"
        )
