"""Segments of members, and their initial checkpoints."""

from __future__ import annotations

from pathlib import Path

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.ledger import is_judged
from hydragnn_flow.campaign.task import SegmentTask
from hydragnn_flow.ensemble import member_folder
from hydragnn_flow.ensemble.selection import Choice
from hydragnn_flow.files import patiently
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.training.checkpoints.checkpoint import checkpoints

BEGUN = "begun"
"""File in a member's folder whose time of change is that of the member's last start."""


def member_task(context: Context, member: int, choice: Choice, trial: TrialRecord) -> SegmentTask:
    """Make the segment of a member, from its trial's weights or its own to its last epoch."""
    config, folder = context.config.members, member_folder(context.directory.ensemble, member)
    trained, until = trained_epochs(context, trial.number), context.config.member_epochs
    results = context.ledger.members
    mine = max((result.to_epoch for result in results if result.number == member), default=0)
    # Further members of a trial share only its hyper-parameters.
    from_scratch = config.start == "scratch" or choice.repeat > 0
    start = 0 if from_scratch else trained
    begun = bool(patiently(lambda: checkpoints(folder)))
    # Members from scratch keep the rate as long as their trial did: the error was a seventh larger
    # if the rate fell from the first epoch on. A configured schedule starts with them.
    scheduler = context.config.network_with(trial.parameters).Training.Scheduler
    return context.task(
        "member",
        member,
        folder,
        trial,
        rung=len(context.config.rungs),
        until_epoch=until,
        done_epochs=max(start, mine) if begun else start,
        may_have_begun=True,
        start_from=None if from_scratch else checkpoint_of_trial(context, trial.number),
        decay=(trained if scheduler is None else start, until),
        repeat=choice.repeat,
        width=None,
    )


def trained_epochs(context: Context, trial: int) -> int:
    """Number of epochs that a trial was trained for."""
    return max((result.to_epoch for result in context.ledger.trials[trial]), default=0)


def checkpoint_of_trial(context: Context, trial: int) -> Path:
    """Path of the checkpoint that the last segment of a trial left."""
    last = [result for result in context.ledger.trials[trial] if is_judged(result)][-1]
    return context.directory.trial(trial) / last.checkpoint


def record_begun(context: Context, task: SegmentTask) -> None:
    """Record on disk the time at which a member was sent, for `hydragnn-flow status`."""
    folder = task.spec.folder

    def touch() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / BEGUN).touch()

    context.ledger.write(touch)
