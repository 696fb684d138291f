"""Rebuilding of a lost study (Optuna's record of the search) from the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from hydragnn_flow.config import SearchConfig
from hydragnn_flow.config.run import value_at
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import is_there
from hydragnn_flow.run_directory import CONFIG, RunDirectory
from hydragnn_flow.search.records import FIXED, REASON, active, distributions
from hydragnn_flow.search.samplers.ruled import Foreseen
from hydragnn_flow.search.storage import STUDY, StudyStorage, end_of
from hydragnn_flow.search.study import add_earlier
from hydragnn_flow.training.checkpoints.checkpoint import Damaged, checkpoints, furthest


def rebuild_study(
    directory: RunDirectory,
    config: SearchConfig,
    foreseen: Foreseen | None = None,
) -> int:
    """Rebuild a lost study (Optuna's record of the search) from the other files of the run.

    The study then has all trials that have begun, as running or, if their parameters are unknown,
    as failed. The caller then reports their recorded results to the study, as after any restart.

    Parameters
    ----------
    directory
        Run directory; its `run.yaml` names the earlier searches that the study started from.
    config
        Section `search` of the run.
    foreseen
        Function of a trial's values that returns what is known of limits before training.

    Returns
    -------
    int
        Number of rebuilt trials, without those of earlier studies; 0 if the study exists, or the
        search has not started.

    Raises
    ------
    InputError
        If the earlier searches have changed.
    """
    if is_there(directory.journal):
        return 0
    recorded = {
        result.number: result.parameters for result in directory.results() if result.kind == "trial"
    }
    folders = (directory.path / "trials").glob("[0-9]*/")
    numbers = recorded.keys() | {int(folder.name) for folder in folders}
    if not numbers:
        return 0
    config = config.model_copy(update={"warm_start": directory.warm_start()})
    temporary = directory.journal.with_name(f".{directory.journal.name}.rebuilding")
    temporary.unlink(missing_ok=True)
    try:
        with StudyStorage(temporary) as storage:
            study = optuna.create_study(
                study_name=STUDY, storage=storage, directions=config.directions
            )
            add_earlier(study, config, foreseen)
            made = _begin_trials(study, directory, config, recorded, numbers)
        end_of(directory.journal).unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # the disk may have refused it
            end_of(temporary).replace(end_of(directory.journal))
        temporary.replace(directory.journal)
    finally:
        temporary.unlink(missing_ok=True)
    return made


def _begin_trials(
    study: optuna.Study,
    directory: RunDirectory,
    config: SearchConfig,
    recorded: Mapping[int, Mapping[str, Any]],
    numbers: Set[int],
) -> int:
    """Add all trials up to the largest of ``numbers`` to a new study, as running.

    ``recorded`` are the parameters of trials in the ledger. Returns how many trials were added.
    """
    enqueued = [dict(configuration) for configuration in config.enqueue]
    first = len(study.get_trials(deepcopy=False))
    if min(numbers) < first:
        raise InputError(
            f"{directory.path / CONFIG}: the studies of search.warm_start hold more trials than "
            f"when the search began; restore them"
        )
    for number in range(first, max(numbers) + 1):
        found = recorded.get(number) or _from_folder(directory.trial(number), config)
        study.add_trial(_begun(config, found, enqueued))
    return max(numbers) + 1 - first


def _begun(
    config: SearchConfig, found: Mapping[str, Any], enqueued: list[dict[str, Any]]
) -> FrozenTrial:
    """Return a running trial with the parameters ``found``; a failed trial if some are unknown.

    A configuration in ``enqueued`` that the parameters match is removed from that list.
    """
    names = active(config.space, found)
    if not all(config.space[name].contains(found.get(name)) for name in names):
        reason = {REASON: "lost: neither the ledger nor its folder says what it varied"}
        return create_trial(state=TrialState.FAIL, user_attrs=reason)
    parameters = {name: found[name] for name in names}
    attributes = {}
    for configuration in enqueued:
        if configuration.items() <= parameters.items():
            enqueued.remove(configuration)
            attributes[FIXED] = configuration  # so that it is not enqueued again
            break
    domains = distributions(config.space)
    return create_trial(
        state=TrialState.RUNNING,
        params=parameters,
        distributions={name: domains[name] for name in parameters},
        system_attrs=attributes,
    )


def _from_folder(folder: Path, config: SearchConfig) -> dict[str, Any]:
    """Return searched parameters by name, from the network in a trial's furthest checkpoint.

    The result is empty if the folder has no readable checkpoint.
    """
    found = None
    with suppress(Damaged):
        found = furthest(checkpoints(folder))
    if found is None:
        return {}
    values = {name: value_at(found[1]["network"], name) for name in config.space}
    # HydraGNN's "" is None in a checked network.
    empty = [name for name, of in config.space.items() if values[name] is None and of.contains("")]
    return values | dict.fromkeys(empty, "")
