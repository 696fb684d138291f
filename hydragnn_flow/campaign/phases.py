"""The phases of a campaign on whatever machine; the second begins where the first leaves GCDs."""

from __future__ import annotations

from collections.abc import Callable

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.dispatch import Dispatch
from hydragnn_flow.campaign.early_members import EarlyMembers
from hydragnn_flow.campaign.machine import Workers
from hydragnn_flow.campaign.members import MemberPhase
from hydragnn_flow.campaign.selecting import select_trials
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.ensemble import Member


def run_phases(context: Context, start: Callable[[], Workers]) -> list[Member]:
    """Search, choose members and train them; returns the members.

    Parameters
    ----------
    context
        Of the campaign.
    start
        Starts the workers, once nothing can be found wrong with the search any more.
    """
    trials = TrialPhase(context)
    dispatch = Dispatch(context, start())
    records = trials.run(dispatch, EarlyMembers(context))
    selection = select_trials(context, records)
    return MemberPhase(context, selection, records).run(dispatch)
