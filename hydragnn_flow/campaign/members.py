"""The ensemble phase: the chosen trials are trained further."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.dispatch import Dispatch
from hydragnn_flow.campaign.failures import takes_more
from hydragnn_flow.campaign.ledger import is_judged
from hydragnn_flow.campaign.member_task import (
    BEGUN,
    checkpoint_of_trial,
    member_task,
    record_begun,
)
from hydragnn_flow.campaign.selecting import numbered, write_selection
from hydragnn_flow.campaign.task import SegmentTask, log_retry
from hydragnn_flow.config.network import write_network
from hydragnn_flow.ensemble import Member, member_folder
from hydragnn_flow.ensemble.failed_members import FailedMember, failed_members
from hydragnn_flow.ensemble.selection import Selection
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.files import patiently
from hydragnn_flow.log import tell
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.segment import Kind, SegmentResult, TrainingOutcome
from hydragnn_flow.training.checkpoint import (
    FILE,
    checkpoints,
    copy_checkpoint,
    furthest,
    load_checkpoint,
    named_or_furthest,
)
from hydragnn_flow.training.checkpoint_parts import Damaged, folder_of, remove_checkpoint

# Ends that may be the member's own doing: the next in line may do better.
_GIVEN_UP = ("error", "killed")
_LOOK = partial(load_checkpoint, lazily=True)
_logger = logging.getLogger(__name__)


class MemberPhase:
    """Trains the members of the ensemble.

    One that fails for good is replaced by the next in line, unless the one before it failed in the
    same way: then what is around them is to blame.

    Parameters
    ----------
    context
        Of the campaign; members that its run directory records as trained are not trained again.
    selection
        The chosen trials, in the order of their members, and those next in line.
    records
        Of the search.

    Raises
    ------
    InputError
        If a member was trained from another trial: a study that was lost and made anew may know
        trials as good that had been given up.
    """

    def __init__(
        self, context: Context, selection: Selection, records: Sequence[TrialRecord]
    ) -> None:
        self.context, self.size = context, len(selection.chosen)
        self._gcds = context.site.nodes * len(context.site.node.gcds)
        self._selection = selection
        self.line = numbered(context, selection)
        trials = {record.number: record for record in records}
        self.trials = {member: trials[choice.trial] for member, choice in self.line.items()}
        self._last: dict[int, SegmentResult] = {}
        for result in context.ledger.members:
            self._last.pop(result.number, None)  # in the order they ended
            self._last[result.number] = result
        for k, trial in self.trials.items():
            trained = self._last[k].parameters if k in self._last else {}
            if trained and trained != trial.parameters:
                directory = context.directory
                raise InputError(
                    f"{directory.journal}: member {k} of {directory.segments.name} was trained "
                    f"from another trial than trial {trial.number}, which is chosen now; restore "
                    f"{directory.journal.name} from a copy, or search in another run directory"
                )
        given_up = {failed.member for failed in failed_members(context.directory.ensemble)}
        self._ended = {
            k: result
            for k, result in self._last.items()
            if k in self.line and (k in given_up or self._has_ended(result))
        }
        # Those that began early and are not asked for, or not yet, have no say.
        self._ended = {k: result for k, result in self._ended.items() if k in {*self._asked}}
        # Checkpoints of members that earlier drivers have trained, as they were found.
        self._kept: dict[int, Path] = {}
        self._miss_checkpoints(self._asked)
        # Members at work that began early and are not asked for.
        self._dropped: set[int] = set()

    def run(self, dispatch: Dispatch) -> list[Member]:
        """Train until every member has ended; returns how.

        Parameters
        ----------
        dispatch
            Sends the segments. Members that began early may be at work; those that were not chosen
            are stopped.
        """
        at_work = {task.spec.number: task for task in dispatch.tasks("member")}
        self._dropped = at_work.keys() - {*self._asked}
        dispatch.stop([at_work[k] for k in self._dropped])
        self._drop_others()
        ready = [self._task(k) for k in self._asked if k not in self._ended.keys() | at_work]
        if self._failed:
            self._record_failed(self._failed)  # the last driver may have been killed before
        self._show()
        while ready or dispatch.running:
            could_use = sum(self.context.shapes(task)[-1].width for task in ready)
            dispatch.request_workers(min(could_use, self._gcds - dispatch.running))
            ready = self._send(dispatch, ready)
            if not ready:
                dispatch.reshape("member")
            for task, result in dispatch.wait():
                ready += self._judge(task, result)
            self._show()
        self._drop_others()
        trained = [k for k in self._asked if self._ended[k].status == "ok"]
        if not trained:
            self._check_usable()
        # Where the line was too short, those that failed are what they were until then.
        members = [*trained, *self._failed][: self.size]
        return [self._member(k) for k in sorted(members)]

    @property
    def _failed(self) -> list[int]:
        return [k for k, result in self._ended.items() if result.status != "ok"]

    @property
    def _asked(self) -> list[int]:
        """Members to be trained: as many as the ensemble has, and one more for each that failed."""
        asked: list[int] = []
        wanted = self.size
        for k in self.line:
            if len(asked) == wanted:
                break
            asked.append(k)
            wanted += k in self._ended and self._ended[k].status != "ok"
        return asked

    def _drop_others(self) -> None:
        """Take away what members have left that began early and were not chosen."""
        for k in {*range(len(self._selection.early))} - {*self._asked} - self._dropped:
            shutil.rmtree(self._folder(k), ignore_errors=True)

    def _miss_checkpoints(self, members: Sequence[int]) -> None:
        """Train members again whose checkpoint was taken away since, or is damaged."""
        trained = [self._last[k] for k in members if k in self._last]
        missed = [
            SegmentResult.of(result, TrainingOutcome.cut_short("lost", "its checkpoint is gone"))
            for result in trained
            if result.status == "ok" and not self._is_kept(result)
        ]
        # On disk, so that what is trained of it by the next start is not taken for the whole.
        self.context.ledger.record(missed)
        for result in missed:
            _logger.info("member %d is trained again: %s", result.number, result.reason)
            self._ended.pop(result.number, None)

    def _is_kept(self, result: SegmentResult) -> bool:
        """Whether a checkpoint that has all a member was trained for can be read."""
        read = partial(_LOOK, known={result.checkpoint: result.checksum})
        try:
            found = patiently(lambda: furthest(self._checkpoints(result.number), read))
        except Damaged:  # which has been logged
            return False
        if found is None or found[1]["progress"]["epoch"] < result.to_epoch:
            return False
        self._kept[result.number] = found[0]
        return True

    def _send(self, dispatch: Dispatch, ready: Sequence[SegmentTask]) -> list[SegmentTask]:
        """Send the members for which there are GCDs, the longest first; returns the others."""
        rest = dispatch.begin(ready, self._gcds - dispatch.running) if ready else []
        waiting = {task.spec.number for task in rest}
        for task in ready:
            if task.spec.number not in waiting:
                record_begun(self.context, task)
        return rest

    def _task(self, member: int) -> SegmentTask:
        return member_task(self.context, member, self.line[member], self.trials[member])

    def _of(self, kind: Kind, member: int) -> list[SegmentResult]:
        """Segments of a member, or of its trial before it."""
        ledger = self.context.ledger
        if kind == "trial":
            return ledger.trials[self.trials[member].number]
        return [result for result in ledger.members if result.number == member]

    def _folder(self, member: int) -> Path:
        return member_folder(self.context.directory.ensemble, member)

    def _judge(self, task: SegmentTask, result: SegmentResult) -> list[SegmentTask]:
        """Record the end of a member; returns the task where it should be repeated."""
        self._dropped.discard(task.spec.number)
        if task.spec.number not in self._asked:
            return []
        if not self._has_ended(result):
            if result.status == "out_of_memory":
                return [self.context.sized(replace(task, is_urgent=True))]
            task = task.again(result)
            if not task.retries.is_hopeless:
                log_retry(task, result)
                return [self.context.sized(task)]
            self._check_own_fault(result)
        before = len(self._asked)
        self._ended[task.spec.number] = result
        return [self._task(k) for k in self._replacements(task.spec.number, before)]

    def _replacements(self, member: int, before: int) -> list[int]:
        """The members that take the place of one that has ended, none where it is trained."""
        result, asked = self._ended[member], self._asked
        if result.status == "ok":
            return []
        self._record_failed(self._failed)
        if len(asked) > before:
            next_one = asked[before]
            what = f"trial {self.trials[next_one].number} takes its place as member {next_one}"
        else:
            what = "no other trial can take its place, so it stays what it was until then"
        tell(_logger, "member %d has failed (%s); %s", member, _reason(result), what)
        more = [k for k in asked[before:] if k not in self._dropped]
        self._miss_checkpoints(more)  # one may have begun early, and been dropped
        return more

    def _check_own_fault(self, result: SegmentResult) -> None:
        """Stop where a member that is given up is not to blame.

        The one that ended before it failed in the same way, or it was the machine that failed.
        """
        last = next(reversed(self._ended.values()), None)
        is_common = last is not None and _alike(last) == _alike(result)
        if result.status in _GIVEN_UP and not is_common:
            return
        self._stop(f"member {result.number} cannot be trained", result)

    def _check_usable(self) -> None:
        """Stop where no member is trained, and not for what training itself has come to."""
        given_up = [k for k in self._failed if self._ended[k].status in _GIVEN_UP]
        if given_up:
            n = len(self._failed)
            self._stop(f"none of {n} members can be trained", self._ended[given_up[-1]])

    def _stop(self, what: str, last: SegmentResult) -> NoReturn:
        """Stop the campaign; members given up for the like get another chance by the next start."""
        alike = [k for k in self._failed if _alike(self._ended[k]) == _alike(last)]
        self._record_failed([k for k in self._failed if k not in alike])
        raise CampaignStopped(
            f"{what} ({_reason(last)}); see {self._folder(last.number) / 'log'}, cure the cause "
            f"and give the same command again"
        )

    def _record_failed(self, members: Sequence[int]) -> None:
        failed = [FailedMember(k, self.trials[k].number, _reason(self._ended[k])) for k in members]
        write_selection(self.context, self._selection, failed)

    def _has_ended(self, result: SegmentResult) -> bool:
        """Whether a member is trained, or ended in a way that would recur."""
        if result.status == "out_of_memory":
            config, trial = self.context.config, self.trials[result.number]
            network = config.network_with(trial.parameters)
            return not takes_more(config.search.failures, network, result.accumulation_steps)
        return result.status in ("ok", "diverged")

    def _member(self, member: int) -> Member:
        trial, last = self.trials[member], self._ended[member]
        mine = self._of("member", member)
        self.context.ledger.write(lambda: self._publish(member))
        trained = next((result for result in reversed(mine) if result.learning_rate), last)
        trial_error, _ = _judged(self._of("trial", member))
        # Its trial's, where it has ended before its first epoch did.
        error, loss = _judged([*self._of("trial", member), last])
        return Member(
            member=member,
            trial=trial.number,
            best_val_error=error,
            best_val_loss=loss,
            gcds=last.gcds,
            graphs_per_step=trained.graphs_per_step,
            learning_rate=trained.learning_rate,
            seconds=sum(r.seconds for r in mine),
            cpu_seconds=sum(r.cpu_seconds for r in mine),
            reason="" if last.status == "ok" else _reason(last),
            choice=self._choice(member),
            repeat=self.line[member].repeat,
            trial_error=trial_error,
        )

    def _publish(self, member: int) -> None:
        """Give a member's files the names by which an ensemble knows them."""
        folder, trial = self._folder(member), self.trials[member]
        file = folder / FILE
        mine = self._checkpoints(member)
        if not any(map(is_judged, self._of("member", member))):
            # It failed before its first validation, so its trial's weights are still the best.
            trial_file = checkpoint_of_trial(self.context, trial.number)
            copy_checkpoint(named_or_furthest(trial_file, _LOOK)[0], file)
        elif mine != [file]:
            last = [result for result in self._of("member", member) if result.checkpoint][-1]
            named = folder / last.checkpoint
            source = self._kept.get(member) or named_or_furthest(named, _LOOK)[0]
            if folder_of(source) is None:
                source.replace(file)
            else:  # one file, so that what is sealed and copied of an ensemble is all of it
                copy_checkpoint(source, file)
        for other in mine:
            if other != file:
                remove_checkpoint(other)
        (folder / BEGUN).unlink(missing_ok=True)
        write_network(folder, self.context.config.network_with(trial.parameters).to_json())

    def _checkpoints(self, member: int) -> list[Path]:
        """What sendings of a member have left; waits for a disk that is gone for a while."""
        return patiently(lambda: checkpoints(self._folder(member)))

    def _choice(self, member: int) -> str:
        """Why a trial was chosen."""
        place = [*self.line].index(member)
        if place < self.size:
            return self.line[member].reason
        failed = self._failed[place - self.size]
        return f"in place of member {failed}, which failed ({_reason(self._ended[failed])})"

    def _show(self) -> None:
        self.context.view.step("ensemble", len(self._ended), len(self._asked))


def _judged(results: Sequence[SegmentResult]) -> tuple[float, float]:
    """Criterion and validation loss after the last segment that has them."""
    last = [result for result in results if is_judged(result)][-1]
    assert last.best_val_error is not None and last.best_val_loss is not None  # they come together
    return last.best_val_error, last.best_val_loss


def _reason(result: SegmentResult) -> str:
    return f"{result.status}: {result.reason}"


def _alike(result: SegmentResult) -> tuple[str, str]:
    """What failures of one cause have in common; members, files and nodes have numbers."""
    return result.status, re.sub(r"\d+", "#", result.reason)
