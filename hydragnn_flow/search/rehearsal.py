"""Rehearsal of a sampler before a search, so that an unsuitable one is rejected at once."""

from __future__ import annotations

import warnings

import optuna
from optuna.samplers import RandomSampler
from optuna.trial import TrialState

from hydragnn_flow.config import SearchConfig
from hydragnn_flow.config.optuna_classes import build_sampler
from hydragnn_flow.errors import InputError
from hydragnn_flow.search.space import suggest

_REHEARSED = 15
"""Number of trials shown to a sampler: Optuna's samplers are random for the first ten."""


def rehearse(config: SearchConfig) -> None:
    """Let a sampler given by its class propose for an invented history of this search.

    A sampler that does not support the objectives, constraints or space is rejected before anything
    is trained.

    Parameters
    ----------
    config
        Configuration of the search; samplers with a short name need no rehearsal.

    Raises
    ------
    InputError
        If the sampler does not propose a value for every parameter.
    """
    if isinstance(config.sampler, str):
        return
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    objectives = len(config.objectives)
    study = optuna.create_study(directions=config.directions, sampler=RandomSampler(seed=0))

    def run(number: int) -> None:
        trial = study.ask()
        suggest(trial, config.space)
        for limit in config.constraints:
            trial.set_constraint(limit, float(number % 3 - 1))
        if number % 5 == 4 and config.rungs != "none":
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, [float(number)] * objectives)

    for number in range(_REHEARSED):
        run(number)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study.sampler = build_sampler(config.sampler, config.space, seed=0)
            run(_REHEARSED)
            run(_REHEARSED + 1)
    except Exception as error:  # a user's class may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, ModuleNotFoundError):
            reason += f"; pip install {error.name}"
        raise InputError(
            f"search.sampler: {config.sampler['type']} cannot propose for this search: {reason}"
        ) from error
    finally:
        getattr(study.sampler, "close", lambda: None)()
