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


def rehearse(config: SearchConfig) -> None:
    """Let a sampler of others propose for an invented history of this search.

    A sampler that does not support the objectives, constraints or space is rejected before anything
    is trained.

    Parameters
    ----------
    config
        Configuration of the search; those of this package need no rehearsal.

    Raises
    ------
    InputError
        If the sampler does not propose a value for every parameter.
    """
    if config.sampler in ("auto", "batched_tpe"):
        return
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    objectives = len(config.objectives)
    study = optuna.create_study(directions=config.directions, sampler=RandomSampler(seed=0))

    def run(number: int) -> None:
        trial = study.ask()
        suggest(trial, config.space)
        for limit in config.constraints:
            trial.set_constraint(limit, float(number % 3 - 1))
        value = float(number)
        if number % 5 == 4 and config.rungs != "none":
            # As Search does it, for several objectives too.
            study._storage.set_trial_intermediate_value(trial._trial_id, 1, value)
            values = [value] if objectives == 1 else None
            study._storage.set_trial_state_values(trial._trial_id, TrialState.PRUNED, values)
        else:
            study.tell(trial, [value] * objectives)

    shown = 15  # samplers of Optuna are random for the first ten
    for number in range(shown):
        run(number)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study.sampler = build_sampler(config.sampler, config.space, seed=0)
            run(shown)
            run(shown + 1)
    except Exception as error:  # a user's class may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, ModuleNotFoundError):
            reason += f"; pip install {error.name}"
        name = config.sampler if isinstance(config.sampler, str) else config.sampler["type"]
        raise InputError(
            f"search.sampler: {name} cannot propose for this search: {reason}"
        ) from error
    finally:
        getattr(study.sampler, "close", lambda: None)()
