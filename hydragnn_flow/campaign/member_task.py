"""Segments of members, and the files that they begin with."""

from __future__ import annotations

from pathlib import Path

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.ledger import is_judged
from hydragnn_flow.campaign.task import SegmentTask
from hydragnn_flow.ensemble import member_folder
from hydragnn_flow.ensemble.selection import Choice
from hydragnn_flow.files import patiently
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.training.checkpoint import checkpoints

BEGUN = "begun"
"""File in a member's folder, which changes when the member is sent."""


def member_task(context: Context, member: int, choice: Choice, trial: TrialRecord) -> SegmentTask:
    """The segment of a member, from its trial's weights or its own to its last epoch."""
    config, folder = context.config.members, member_folder(context.directory.ensemble, member)
    trained, until = trained_epochs(context, trial.number), context.config.member_epochs
    results = context.ledger.members
    mine = max((result.to_epoch for result in results if result.number == member), default=0)
    # Seeds of a trial have nothing in common but its hyper-parameters.
    from_scratch = config.start == "scratch" or choice.repeat > 0
    start = 0 if from_scratch else trained
    begun = bool(patiently(lambda: checkpoints(folder)))
    # Members from scratch keep the rate as long as their trial did: seeds whose rate fell from
    # the first epoch on erred a seventh more. A schedule that was asked for begins with them.
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
    """Epochs that a trial has been trained for."""
    return max((result.to_epoch for result in context.ledger.trials[trial]), default=0)


def checkpoint_of_trial(context: Context, trial: int) -> Path:
    """The checkpoint that the last segment of a trial has left."""
    last = [result for result in context.ledger.trials[trial] if is_judged(result)][-1]
    return context.directory.trial(trial) / last.checkpoint


def record_begun(context: Context, task: SegmentTask) -> None:
    """Put on disk, for `hydragnn-flow status`, when a member was sent."""
    folder = task.spec.folder

    def touch() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / BEGUN).touch()

    context.ledger.write(touch)
