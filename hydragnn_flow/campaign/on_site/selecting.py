"""Choice of members after the search, kept until the ensemble is finished."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.member_task import trained_epochs
from hydragnn_flow.config.network import read_json
from hydragnn_flow.data.splits import VALIDATION
from hydragnn_flow.ensemble.selection import Choice, Early, Selection, choose_trials
from hydragnn_flow.ensemble.summary import SELECTION, FailedMember
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import is_there, write_json
from hydragnn_flow.log import tell
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.segment import SegmentResult
from hydragnn_flow.training.measures.criterion import Criterion
from hydragnn_flow.training.plan.sampling import judged_by

_VERSION = 3
# Version 1 lacks failed members, version 2 lacks early ones.
_READ = (1, 2, _VERSION)
_NOBODY = Early(-1, 0, 0)
_logger = logging.getLogger(__name__)


def select_trials(context: Context, records: Sequence[TrialRecord]) -> Selection:
    """Choose the trials that become members; a recorded choice is returned again.

    Parameters
    ----------
    context
        Context of the campaign. The choice is in the ensemble's folder when this returns.
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
    selection, missing = _chosen(context, records)
    if missing:
        tell(
            _logger,
            "validation predictions of %d trials (%s) are missing or damaged; each counts by its "
            "criterion alone",
            *(len(missing), ", ".join(map(str, missing))),
        )
    early = begun_early(context)
    if _NOBODY in early and _are_of(context, selection, records):
        early = []
    elif _NOBODY in early:
        file = context.directory.ensemble / SELECTION
        tell(_logger, "%s: is lost or damaged; its members are trained anew", file)
    selection = replace(selection, early=early)
    for member, choice in [*numbered(context, selection).items()][: len(selection.chosen)]:
        _logger.info("member %d is of trial %d: %s", member, choice.trial, choice.reason)
    write_selection(context, selection, [])
    return selection


def choice_so_far(context: Context, records: Sequence[TrialRecord]) -> tuple[Selection, bool]:
    """Choose among the trials that have ended; also return whether the choice is final.

    The choice is empty if too few trials have ended.
    """
    kept = _kept(context, records)
    if kept is not None:
        return kept, True
    try:
        selection, _ = _chosen(context, records)
    except InputError:
        return Selection([], []), False
    return selection, False


def numbered(context: Context, selection: Selection) -> dict[int, Choice]:
    """Number each member and each reserve trial, in order.

    An early member keeps its number, unless its trial continued since.
    """
    known = {early: number for number, early in enumerate(selection.early)}
    more = itertools.count(len(selection.early))
    line = [*selection.chosen, *selection.reserve]
    keys = [Early(c.trial, c.repeat, trained_epochs(context, c.trial)) for c in line]
    return {
        known[key] if key in known else next(more): choice
        for key, choice in zip(keys, line, strict=True)
    }


def begun_early(context: Context) -> list[Early]:
    """List the early members by their numbers.

    If the list is lost, all used numbers are assigned to nobody, so that none is reused.
    """
    file = context.directory.ensemble / SELECTION
    try:
        content = read_json(file)
        return [Early(*values) for values in content["early"]] if content["version"] > 2 else []
    except (InputError, KeyError, TypeError):
        numbers = [result.number for result in context.ledger.members]
        return [_NOBODY] * (max(numbers, default=-1) + 1)


def _are_of(context: Context, selection: Selection, records: Sequence[TrialRecord]) -> bool:
    """Return whether all started members belong to a selection, with none of them early."""
    numbers, trials = numbered(context, selection), {record.number: record for record in records}

    def is_of(member: SegmentResult, trial: int) -> bool:
        # A trial that continued since counts as another.
        was_continued = any(one.started > member.started for one in context.ledger.trials[trial])
        return not was_continued and member.parameters in ({}, trials[trial].parameters)

    return all(
        result.number in numbers and is_of(result, numbers[result.number].trial)
        for result in context.ledger.members
    )


def _chosen(context: Context, records: Sequence[TrialRecord]) -> tuple[Selection, list[int]]:
    config, store, directory = context.config, context.store, context.directory
    criterion = Criterion.of(
        config.network_with({}), store.manifest, context.trivial_errors, config.criterion
    )
    judged = judged_by(store[VALIDATION], context.validation)
    return choose_trials(
        config.members,
        config.network.get("Architecture", {}),
        config.search.keep_checkpoints == "best",
        records,
        context.ledger.trials,
        directory.trial,
        judged,
        criterion,
    )


def write_selection(context: Context, selection: Selection, failed: Sequence[FailedMember]) -> None:
    """Write the choice, and the members that were given up since, to disk."""
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
    """Read an earlier driver's choice; None if it does not fit the search."""
    file, config = context.directory.ensemble / SELECTION, context.config.members
    if not is_there(file):
        return None
    try:
        content: dict[str, Any] = read_json(file)
        chosen, reserve = (
            [Choice(**choice) for choice in content[name]] for name in ("chosen", "reserve")
        )
        fits = content["version"] in _READ and content["strategy"] == config.strategy
    except (InputError, KeyError, TypeError):
        return None
    finished = {record.number for record in records if record.state in ("complete", "pruned")}
    known = finished.issuperset(choice.trial for choice in (*chosen, *reserve))
    if fits and known and len(chosen) == config.size:
        return Selection(chosen, reserve, begun_early(context))
    return None
