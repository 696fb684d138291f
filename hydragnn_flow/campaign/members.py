"""The ensemble phase: the chosen trials are trained further, by DDP, on the `node` pool."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.dispatch import Dispatch
from hydragnn_flow.campaign.failures import takes_more
from hydragnn_flow.campaign.machine import Workers
from hydragnn_flow.campaign.task import Task, checkpoint_time, log_retry
from hydragnn_flow.ensemble import Member, member_folder
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution import RankGroup
from hydragnn_flow.files import copy_file
from hydragnn_flow.placement import Wave, plan_members
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.segment import Kind, SegmentResult, TrainingOutcome
from hydragnn_flow.training.checkpoint import FILE

_logger = logging.getLogger(__name__)


class MemberPhase:
    """Trains the members of the ensemble.

    Parameters
    ----------
    context
        Of the campaign; members that its run directory records as trained are not trained again.
    trials
        The chosen trials, in the order of their members.

    Raises
    ------
    InputError
        If a member was trained from another trial: a study that was lost and made anew may know
        trials as good that had been given up.
    """

    def __init__(self, context: Context, trials: Sequence[TrialRecord]) -> None:
        self.context, self.trials = context, trials
        last = {result.number: result for result in context.history if result.kind == "member"}
        for k, trial in enumerate(trials):
            trained = last[k].parameters if k in last else {}
            if trained and trained != trial.parameters:
                directory = context.directory
                raise InputError(
                    f"{directory.journal}: member {k} of {directory.segments.name} was trained "
                    f"from another trial than trial {trial.number}, which is chosen now; restore "
                    f"{directory.journal.name} from a copy, or search in another run directory"
                )
        self._ended = {k: result for k, result in last.items() if self._has_ended(result)}
        self._miss_checkpoints()

    def run(self, workers: Workers) -> list[Member]:
        """Train until every member has ended; returns how."""
        dispatch = Dispatch(self.context, workers, "node")
        tasks = [self._task(k) for k in range(len(self.trials)) if k not in self._ended]
        waves = self._plan(tasks, self.context.site.nodes)
        self._show()
        while waves or dispatch.running:
            # The widest first: what needs many nodes at once must not wait for all the others.
            waves.sort(key=lambda planned: -planned[0].nodes)
            dispatch.request_workers(sum(wave.nodes for wave, _ in waves))
            while (place := _next(waves, dispatch)) is not None:
                self._send(dispatch, *waves.pop(place))
            again: list[Task] = []
            for task, result in dispatch.wait():
                again += self._judge(task, result)
            waiting = sum(wave.nodes for wave, _ in waves)
            waves += self._plan(again, self.context.site.nodes - dispatch.running - waiting)
            self._show()
        return [self._member(k) for k in range(len(self.trials))]

    def _miss_checkpoints(self) -> None:
        """Train members again whose checkpoint was taken away since, say for being damaged."""
        missed = [
            SegmentResult.of(result, TrainingOutcome.cut_short("lost", "its checkpoint is gone"))
            for k, result in self._ended.items()
            if result.status == "ok" and not checkpoint_time(self._folder(k))
        ]
        # On disk, so that what is trained of it by the next start is not taken for the whole.
        self.context.ledger.record(missed)
        for result in missed:
            _logger.info("member %d is trained again: %s", result.number, result.reason)
            del self._ended[result.number]

    def _plan(self, tasks: Sequence[Task], nodes: int) -> list[tuple[Wave, list[Task]]]:
        """Share out the nodes that have nothing to do, or one where all are busy."""
        site = self.context.site
        waves = plan_members(
            [task.estimate.seconds for task in tasks],
            max(1, nodes),
            len(site.node.gcds),
            [self._widest(task) for task in tasks],
        )
        return [(wave, [tasks[m] for m in wave.members]) for wave in waves]

    def _send(self, dispatch: Dispatch, wave: Wave, tasks: Sequence[Task]) -> None:
        per_node = len(self.context.site.node.gcds)
        tasks = [self._sized(task, width) for task, width in zip(tasks, wave.widths, strict=True)]
        for task in tasks:
            _logger.info("%s gets a width of %d, on nodes: %d", task, task.width, wave.nodes)
        if wave.nodes > 1:
            (task,), (width,) = tasks, wave.widths
            sent = task.sent()
            dispatch.send_gang(
                task,
                [
                    RankGroup(sent, tuple(range(min(per_node, width - first))), first, width)
                    for first in range(0, width, per_node)
                ],
            )
            return
        groups, first = [], 0
        for task in tasks:
            groups.append((task, RankGroup(task.sent(), tuple(range(first, first + task.width)))))
            first += task.width
        dispatch.send(groups)

    def _task(self, member: int) -> Task:
        context, trial = self.context, self.trials[member]
        epochs = {
            kind: max((result.to_epoch for result in self._of(kind, member)), default=0)
            for kind in ("trial", "member")
        }
        begun = checkpoint_time(self._folder(member)) > 0
        return context.task(
            "member",
            member,
            self._folder(member),
            trial,
            rung=len(context.config.rungs),
            until_epoch=context.config.ensemble.epochs,
            done_epochs=max(epochs.values()) if begun else epochs["trial"],
            start_from=context.directory.trial(trial.number) / FILE,
            decay=(epochs["trial"], context.config.ensemble.epochs),
            results=self._of("trial", member),
        )

    def _sized(self, task: Task, width: int) -> Task:
        member = task.spec.number
        before = [*self._of("trial", member), *self._of("member", member)]
        return self.context.sized(task, width, before)

    def _of(self, kind: Kind, member: int) -> list[SegmentResult]:
        """Segments of a member, or of its trial before it."""
        number = member if kind == "member" else self.trials[member].number
        return [r for r in self.context.history if (r.kind, r.number) == (kind, number)]

    def _folder(self, member: int) -> Path:
        return member_folder(self.context.directory.ensemble, member)

    def _widest(self, task: Task) -> int:
        """Ranks that can all be given a graph in every step."""
        n_train = self.context.store.manifest.splits["trainset"].graphs
        return max(1, n_train // self.context.estimator.steps_per_epoch(task.spec.network))

    def _judge(self, task: Task, result: SegmentResult) -> list[Task]:
        """Record the end of a member; returns the task where it should be repeated."""
        if self._has_ended(result):
            self._ended[task.spec.number] = result
            return []
        if result.status == "out_of_memory":
            return [task]
        task = task.again(result)
        if not task.retries.is_hopeless:
            log_retry(task, result)
            return [task]
        raise CampaignStopped(
            f"member {task.spec.number} cannot be trained ({result.status}: {result.reason}); see "
            f"{task.spec.folder / 'log'}, cure the cause and give the same command again"
        )

    def _has_ended(self, result: SegmentResult) -> bool:
        """Whether a member is trained, or ended for a reason of its own that would recur."""
        if result.status == "out_of_memory":
            config, trial = self.context.config, self.trials[result.number]
            network = config.network_with(trial.parameters)
            return not takes_more(config.search.failures, network, result.accumulation_steps)
        return result.status in ("ok", "diverged")

    def _member(self, member: int) -> Member:
        trial, last = self.trials[member], self._ended[member]
        folder = self._folder(member)
        if not checkpoint_time(folder):
            # It failed before its first checkpoint, so its trial's checkpoint is still the latest.
            source = self.context.directory.trial(trial.number) / FILE
            self.context.ledger.write(lambda: copy_file(source, folder / FILE))
        mine = self._of("member", member)
        # Its trial's, where it has ended before its first epoch did.
        judged = [
            (result.best_val_error, result.best_val_loss)
            for result in [*self._of("trial", member), last]
            if result.best_val_error is not None and result.best_val_loss is not None
        ]
        error, loss = judged[-1]
        return Member(
            member=member,
            trial=trial.number,
            best_val_error=error,
            best_val_loss=loss,
            gcds=last.gcds,
            seconds=sum(r.seconds for r in mine),
            cpu_seconds=sum(r.cpu_seconds for r in mine),
            reason="" if last.status == "ok" else f"{last.status}: {last.reason}",
        )

    def _show(self) -> None:
        self.context.view.step("ensemble", len(self._ended), len(self.trials))


def _next(waves: Sequence[tuple[Wave, list[Task]]], dispatch: Dispatch) -> int | None:
    """Which of the waves, the widest first, is to begin now; none if nodes are to be kept."""
    free = dispatch.free
    for place, (wave, _) in enumerate(waves):
        if wave.nodes <= free:
            return place
        if wave.nodes <= free + dispatch.running:
            return None  # for a wave that will soon have enough
    return None
