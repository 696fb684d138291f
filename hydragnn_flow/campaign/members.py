"""Ensemble phase: trials are chosen as members, once, and the members are trained further."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from hydragnn_flow.campaign.context import Context, is_judged
from hydragnn_flow.campaign.dispatch import Dispatch
from hydragnn_flow.campaign.task import SegmentTask, log_retry, takes_more
from hydragnn_flow.config.network import read_json, write_network
from hydragnn_flow.config.sources import VALIDATION
from hydragnn_flow.ensemble import Member, member_folder
from hydragnn_flow.ensemble.selection import Choice, Selection, choose_trials
from hydragnn_flow.ensemble.summary import SELECTION, FailedMember, failed_members
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.files import is_there, patiently, write_json
from hydragnn_flow.log import tell
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.segment import EpochPlan, Kind, SegmentResult, Start, TrainingOutcome
from hydragnn_flow.training.checkpoints.checkpoint import (
    FILE,
    Damaged,
    checkpoints,
    copy_checkpoint,
    folder_of,
    furthest,
    load_checkpoint,
    named_or_furthest,
    remove_checkpoint,
)
from hydragnn_flow.training.measures.criterion import Criterion
from hydragnn_flow.training.plan.sampling import judged_by

_VERSION = 2


def select_trials(context: Context, records: Sequence[TrialRecord]) -> Selection:
    """Choose the trials that become members of the ensemble, and record the choice.

    If an earlier driver has recorded a choice that fits the search, that choice is returned.

    Parameters
    ----------
    context
        Context of the campaign; the choice is in `selection.json` of its ensemble folder.
    records
        Trials of the finished search.

    Raises
    ------
    InputError
        If fewer trials finished than there are members.
    """
    kept = _kept(context, records)
    if kept is not None:
        return kept
    config, store, directory = context.config, context.store, context.directory
    validation = context.validation
    criterion = Criterion.of(
        config.network_with({}), store.manifest, validation.trivial_errors, validation.criterion
    )
    judged = judged_by(store[VALIDATION], validation.subset)
    selection, missing = choose_trials(
        config.members,
        config.network.get("Architecture", {}),
        config.search.keep_checkpoints == "best",
        records,
        context.ledger.trials,
        directory.trial,
        judged,
        criterion,
    )
    if missing:
        tell(
            _logger,
            "validation predictions of %d trials (%s) are missing or damaged; each counts by its "
            "criterion alone",
            *(len(missing), ", ".join(map(str, missing))),
        )
    for member, choice in enumerate(selection.chosen):
        _logger.info("member %d is of trial %d: %s", member, choice.trial, choice.reason)
    write_selection(context, selection, [])
    return selection


def write_selection(context: Context, selection: Selection, failed: Sequence[FailedMember]) -> None:
    """Write the chosen trials, and the members that failed since, to `selection.json`."""
    folder = context.directory.ensemble
    content = {
        "version": _VERSION,
        "strategy": context.config.members.strategy,
        **asdict(selection),
        "failed": [asdict(member) for member in failed],
    }

    def write() -> None:
        folder.mkdir(exist_ok=True)
        write_json(folder / SELECTION, content)

    context.ledger.write(write)


def _kept(context: Context, records: Sequence[TrialRecord]) -> Selection | None:
    """Return the choice that an earlier driver recorded; None if none fits the search."""
    file, config = context.directory.ensemble / SELECTION, context.config.members
    if not is_there(file):
        return None
    try:
        content: dict[str, Any] = read_json(file)
        chosen, reserve = (
            [Choice(**choice) for choice in content[name]] for name in ("chosen", "reserve")
        )
        fits = content["version"] == _VERSION and content["strategy"] == config.strategy
    except (InputError, KeyError, TypeError):
        return None
    finished = {record.number for record in records if record.state in ("complete", "pruned")}
    known = finished.issuperset(choice.trial for choice in (*chosen, *reserve))
    if fits and known and len(chosen) == config.size:
        return Selection(chosen, reserve)
    return None


# Statuses that may be caused by the member itself; a reserve trial then replaces it.
_GIVEN_UP = ("error", "killed")
_LOOK = partial(load_checkpoint, lazily=True)
BEGUN = "begun"
"""Name of an empty file in a member's folder; its modification time tells `hydragnn-flow status`
when the member was last sent."""
_logger = logging.getLogger(__name__)


class MemberPhase:
    """Second phase of a campaign: the training of the ensemble's members.

    A member has the hyper-parameters of a good trial, and continues that trial or begins with new
    weights. A member that fails for good is replaced by the next reserve trial. If the member that
    ended before it failed in the same way, the cause is taken to lie outside, and the campaign
    stops.

    Parameters
    ----------
    context
        Context of the campaign; members recorded as trained are not trained again.
    selection
        Chosen trials in the order of their members, and the reserve trials.
    records
        Trials of the search.

    Raises
    ------
    InputError
        If the ledger has a member that was trained from another trial than the one chosen now. A
        study that was lost and rebuilt may rank trials as good that had been given up.
    """

    def __init__(
        self, context: Context, selection: Selection, records: Sequence[TrialRecord]
    ) -> None:
        self.context, self.size = context, len(selection.chosen)
        self._gcds = context.site.gcds
        self._selection = selection
        self.line = dict(enumerate([*selection.chosen, *selection.reserve]))
        trials = {record.number: record for record in records}
        self.trials = {member: trials[choice.trial] for member, choice in self.line.items()}
        self._last: dict[int, SegmentResult] = {}
        for result in context.ledger.members:
            self._last.pop(result.number, None)  # keeps the order in which they ended
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
        # One that took another's place is not asked for where that has another chance.
        self._ended = {k: result for k, result in self._ended.items() if k in {*self._asked}}
        # Checkpoints of members that earlier drivers trained, as found on disk.
        self._kept: dict[int, Path] = {}
        self._miss_checkpoints(self._asked)

    def run(self, dispatch: Dispatch) -> list[Member]:
        """Train the ensemble's members until each has ended or failed; return the members."""
        ready = [self._task(k) for k in self._asked if k not in self._ended]
        if self._failed:
            self._record_failed(self._failed)  # the last driver may have been killed before this
        self._show()
        while ready or dispatch.running:
            could_use = sum(self.context.shapes(task)[-1].width for task in ready)
            dispatch.request_workers(min(could_use, self._gcds - dispatch.running))
            ready = self._send(dispatch, ready)
            if not ready:
                dispatch.reshape()
            for task, result in dispatch.wait():
                ready += self._judge(task, result)
            self._show()
        trained = [k for k in self._asked if self._ended[k].status == "ok"]
        if not trained:
            self._check_usable()
        # Without enough reserve trials, failed members keep the weights they had.
        members = [*trained, *self._failed][: self.size]
        return [self._member(k) for k in sorted(members)]

    @property
    def _failed(self) -> list[int]:
        return [k for k, result in self._ended.items() if result.status != "ok"]

    @property
    def _asked(self) -> list[int]:
        """Indices of members to train: the ensemble's size, and one more for each failed member."""
        asked: list[int] = []
        wanted = self.size
        for k in self.line:
            if len(asked) == wanted:
                break
            asked.append(k)
            wanted += k in self._ended and self._ended[k].status != "ok"
        return asked

    def _miss_checkpoints(self, members: Sequence[int]) -> None:
        """Record trained members whose checkpoint is gone or damaged as lost, to train them again.

        ``members`` are the indices of the members to look at.
        """
        trained = [self._last[k] for k in members if k in self._last]
        missed = [
            SegmentResult.of(result, TrainingOutcome.cut_short("lost", "its checkpoint is gone"))
            for result in trained
            if result.status == "ok" and not self._is_kept(result)
        ]
        # Recorded, so that the next start does not take a partly retrained member for complete.
        self.context.ledger.record(missed)
        for result in missed:
            _logger.info("member %d is trained again: %s", result.number, result.reason)
            self._ended.pop(result.number, None)

    def _is_kept(self, result: SegmentResult) -> bool:
        """Return whether a readable checkpoint of a member has all epochs of ``result``.

        The path of that checkpoint is remembered.
        """
        read = partial(_LOOK, known={result.checkpoint: result.checksum})
        try:
            found = patiently(lambda: furthest(self._checkpoints(result.number), read))
        except Damaged:  # logged by `furthest`
            return False
        if found is None or found[1]["progress"]["epoch"] < result.to_epoch:
            return False
        self._kept[result.number] = found[0]
        return True

    def _send(self, dispatch: Dispatch, ready: Sequence[SegmentTask]) -> list[SegmentTask]:
        """Send the members for which there are GCDs, the longest first; return the others."""
        rest = dispatch.begin(ready, self._gcds - dispatch.running) if ready else []
        waiting = {task.spec.number for task in rest}
        for task in ready:
            if task.spec.number not in waiting:
                self.context.ledger.write(partial(_record_begun, task.spec.folder))
        return rest

    def _task(self, member: int) -> SegmentTask:
        """Return the segment of a member: from its own or its trial's weights, or from scratch."""
        choice, trial, config = self.line[member], self.trials[member], self.context.config
        trained = max((one.to_epoch for one in self._of("trial", member)), default=0)
        mine = max((result.to_epoch for result in self._of("member", member)), default=0)
        # Further members of a trial share only its hyper-parameters.
        from_scratch = config.members.start == "scratch" or choice.repeat > 0
        start = 0 if from_scratch else trained
        # Members from scratch keep the rate as long as their trial did: the error was a seventh
        # larger if the rate fell from the first epoch on. A configured schedule starts with them.
        scheduler = config.network_with(trial.parameters).Training.Scheduler
        checkpoint = None if from_scratch else str(self._checkpoint_of_trial(trial.number))
        return self.context.task(
            *("member", member, trial),
            rung=len(config.rungs),
            start=Start(trial_checkpoint=checkpoint),
            epochs=EpochPlan(
                until_epoch=config.members.epochs,
                after_epoch=max(start, mine) if self._checkpoints(member) else start,
                decay=(trained if scheduler is None else start, config.members.epochs),
            ),
            repeat=choice.repeat,
            width=None,
        )

    def _checkpoint_of_trial(self, trial: int) -> Path:
        """Return the path of the checkpoint that the last judged segment of a trial left."""
        last = [result for result in self.context.ledger.trials[trial] if is_judged(result)][-1]
        return self.context.directory.trial(trial) / last.checkpoint

    def _of(self, kind: Kind, member: int) -> list[SegmentResult]:
        """Return the results of a member's segments or, with ``kind`` `trial`, of its trial's."""
        ledger = self.context.ledger
        if kind == "trial":
            return ledger.trials[self.trials[member].number]
        return [result for result in ledger.members if result.number == member]

    def _folder(self, member: int) -> Path:
        return member_folder(self.context.directory.ensemble, member)

    def _judge(self, task: SegmentTask, result: SegmentResult) -> list[SegmentTask]:
        """Record the end of a member's segment; return the segments that have to run next."""
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
        """Return the indices of members that replace an ended one; empty if it was trained.

        ``before`` is the number of members to train before ``member`` ended.
        """
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
        return asked[before:]

    def _check_own_fault(self, result: SegmentResult) -> None:
        """Stop the campaign if the machine is to blame for a member that is given up.

        It is to blame if the previous member to end failed in the same way, or if the status is
        not one that a member itself can cause.
        """
        last = next(reversed(self._ended.values()), None)
        is_common = last is not None and _alike(last) == _alike(result)
        if result.status in _GIVEN_UP and not is_common:
            return
        self._stop(f"member {result.number} cannot be trained", result)

    def _check_usable(self) -> None:
        """Stop the campaign if a member was given up; called only if no member was trained."""
        given_up = [k for k in self._failed if self._ended[k].status in _GIVEN_UP]
        if given_up:
            n = len(self._failed)
            self._stop(f"none of {n} members can be trained", self._ended[given_up[-1]])

    def _stop(self, what: str, last: SegmentResult) -> NoReturn:
        """Raise an error that begins with ``what``; ``last`` is the result that caused it.

        The next driver tries members with the same failure again.
        """
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
        """Return whether a result is final: the member is trained, or its failure would recur."""
        if result.status == "out_of_memory":
            config, trial = self.context.config, self.trials[result.number]
            network = config.network_with(trial.parameters)
            return not takes_more(config.resizes, network, result.accumulation_steps)
        return result.status in ("ok", "diverged")

    def _member(self, member: int) -> Member:
        trial, last = self.trials[member], self._ended[member]
        mine = self._of("member", member)
        self.context.ledger.write(lambda: self._publish(member))
        trained = next((result for result in reversed(mine) if result.learning_rate), last)
        trial_error, _ = _judged(self._of("trial", member))
        # The trial's values count if the member ended before its first epoch.
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
        """Give a member's checkpoint and network the names that an ensemble expects.

        Other checkpoints of the member are deleted.
        """
        folder, trial = self._folder(member), self.trials[member]
        file = folder / FILE
        mine = self._checkpoints(member)
        if not any(map(is_judged, self._of("member", member))):
            # It failed before its first validation, so its trial's weights are the best.
            trial_file = self._checkpoint_of_trial(trial.number)
            copy_checkpoint(named_or_furthest(trial_file, _LOOK)[0], file)
        elif mine != [file]:
            last = [result for result in self._of("member", member) if result.checkpoint][-1]
            named = folder / last.checkpoint
            source = self._kept.get(member) or named_or_furthest(named, _LOOK)[0]
            if folder_of(source) is None:
                source.replace(file)
            else:  # a single file, so that sealing and copying an ensemble covers all of it
                copy_checkpoint(source, file)
        for other in mine:
            if other != file:
                remove_checkpoint(other)
        (folder / BEGUN).unlink(missing_ok=True)
        write_network(folder, self.context.config.network_with(trial.parameters).to_json())

    def _checkpoints(self, member: int) -> list[Path]:
        """Return the paths of a member's checkpoints; wait while the disk is unreachable."""
        return patiently(lambda: checkpoints(self._folder(member)))

    def _choice(self, member: int) -> str:
        """Return the reason why a member's trial was chosen, in words."""
        place = [*self.line].index(member)
        if place < self.size:
            return self.line[member].reason
        failed = self._failed[place - self.size]
        return f"in place of member {failed}, which failed ({_reason(self._ended[failed])})"

    def _show(self) -> None:
        self.context.view.step("ensemble", len(self._ended), len(self._asked))


def _record_begun(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / BEGUN).touch()


def _judged(results: Sequence[SegmentResult]) -> tuple[float, float]:
    """Return the criterion and validation loss of the last result that has a finite criterion."""
    last = [result for result in results if is_judged(result)][-1]
    assert last.best_val_error is not None and last.best_val_loss is not None  # set together
    return last.best_val_error, last.best_val_loss


def _reason(result: SegmentResult) -> str:
    return f"{result.status}: {result.reason}"


def _alike(result: SegmentResult) -> tuple[str, str]:
    """Return status and reason of a failure, with its numbers masked, to compare causes."""
    return result.status, re.sub(r"\d+", "#", result.reason)
