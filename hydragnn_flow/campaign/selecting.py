"""Choice of members after the search, kept until the ensemble is finished."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.config.network import read_json
from hydragnn_flow.data.splits import VALIDATION
from hydragnn_flow.ensemble.selection import Choice, Selection, choose_trials
from hydragnn_flow.ensemble.summary import SELECTION, FailedMember
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import is_there, write_json
from hydragnn_flow.log import tell
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.training.measures.criterion import Criterion
from hydragnn_flow.training.plan.sampling import judged_by

_VERSION = 2
_READ = (1, _VERSION, 3)  # version 1 lacks failed members, version 3 had early ones
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
    config, store, directory = context.config, context.store, context.directory
    criterion = Criterion.of(
        config.network_with({}), store.manifest, context.trivial_errors, config.criterion
    )
    judged = judged_by(store[VALIDATION], context.validation)
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
    if content.get("early"):
        raise InputError(
            f"{file}: has members that began early, which this version cannot continue; delete "
            f"{file.parent} to train all members again"
        )
    finished = {record.number for record in records if record.state in ("complete", "pruned")}
    known = finished.issuperset(choice.trial for choice in (*chosen, *reserve))
    if fits and known and len(chosen) == config.size:
        return Selection(chosen, reserve)
    return None
