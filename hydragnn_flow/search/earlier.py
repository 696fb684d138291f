"""Initial trials of a study: those of earlier searches, and given configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from hydragnn_flow.config import SearchConfig
from hydragnn_flow.config.warm_start import JOURNAL
from hydragnn_flow.errors import InputError
from hydragnn_flow.search.records import FIXED, ORIGIN
from hydragnn_flow.search.space import active, distributions
from hydragnn_flow.search.storage import read_journal

BEGUN = "begun"
"""User attribute of a study with all earlier trials: the names of its objectives."""
LIMITS = "limits"
"""User attribute of a study: the limits from which the excesses of its trials are computed."""


def add_earlier(study: optuna.Study, config: SearchConfig) -> None:
    """Add the trials of the studies named in `search.warm_start`; mark the study as complete.

    Their numbers come before those of the study's own trials. They are shown as trials of their
    origin, and never become members. The limits of this search apply to them.

    Raises
    ------
    InputError
        If a study has other objectives, unknown limits, or no trial in the space.
    """
    study.set_user_attr(LIMITS, dict(config.constraints))
    for name in config.warm_start:
        earlier = _open(Path(name), config)
        found = [trial for trial in _trials_of(earlier) if _fits(trial, config)]
        if not found:
            raise InputError(
                f"search.warm_start: no trial of {name} is in search.space; remove it or widen "
                f"the space"
            )
        for trial in found:
            study.add_trial(
                optuna.trial.create_trial(
                    state=trial.state,
                    values=trial.values,
                    params=trial.params,
                    distributions={
                        path: domain
                        for path, domain in distributions(config.space).items()
                        if path in trial.params
                    },
                    intermediate_values=trial.intermediate_values,
                    user_attrs={ORIGIN: f"{name}, trial {trial.number}"},
                    constraints=_excess(trial, earlier, name, config),
                )
            )
    study.set_user_attr(BEGUN, list(config.objectives))


def enqueue(study: optuna.Study, configurations: Sequence[Mapping[str, Any]]) -> None:
    """Enqueue given configurations as the next trials, each once in the life of the study."""
    enqueued = [trial.system_attrs.get(FIXED) for trial in study.get_trials(deepcopy=False)]
    for parameters in configurations:
        if dict(parameters) not in enqueued:
            study.enqueue_trial(dict(parameters))


def _open(path: Path, config: SearchConfig) -> optuna.Study:
    journal = path / JOURNAL if path.is_dir() else path
    if not journal.exists():
        raise InputError(f"search.warm_start: {journal} does not exist; restore it from a copy")
    storage = read_journal(journal)
    studies = storage.get_all_studies()
    if not studies:
        raise InputError(f"search.warm_start: {journal} holds no study; remove it")
    study = optuna.load_study(study_name=studies[0].study_name, storage=storage)
    if len(study.directions) != len(config.objectives):
        raise InputError(
            f"search.warm_start: {path} has {len(study.directions)} objectives, and this search "
            f"has {len(config.objectives)}; remove it"
        )
    for name, direction, wanted in zip(
        config.objectives, study.directions, config.directions, strict=True
    ):
        if direction.name.lower() != wanted:
            verb = "maximises" if wanted == "minimize" else "minimises"
            raise InputError(f"search.warm_start: {path} {verb} its {name}; remove it")
    objectives = study.user_attrs.get(BEGUN, list(config.objectives))
    if objectives != list(config.objectives):
        raise InputError(
            f"search.warm_start: {path} searched for {', '.join(objectives)}, and this search does "
            f"for {', '.join(config.objectives)}; remove it"
        )
    return study


def _trials_of(study: optuna.Study) -> list[FrozenTrial]:
    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    # Trials that it read from other studies are added only if the configuration names those.
    return [trial for trial in ended if ORIGIN not in trial.user_attrs]


def _excess(
    trial: FrozenTrial, study: optuna.Study, name: Path, config: SearchConfig
) -> dict[str, float]:
    """Excesses of a trial of an earlier study over the limits of this search."""
    before, excess = study.user_attrs.get(LIMITS, {}), {}
    for key, limit in config.constraints.items():
        if key not in trial.constraints:
            continue
        if key not in before:
            raise InputError(
                f"search.warm_start: the trials of {name} were held to a limit of {key!r} that it "
                f"does not tell; remove it, or search.constraints.{key}"
            )
        excess[key] = trial.constraints[key] + (before[key] - limit)
    return excess


def _fits(trial: FrozenTrial, config: SearchConfig) -> bool:
    """True if a trial has exactly the parameters it would have here, each within its domain."""
    space, values = config.space, trial.params
    return set(active(space, values)) == set(values) and all(
        space[name].contains(value) for name, value in values.items()
    )
