"""The samplers a search can name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import optuna
from optuna import samplers
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import TrialState

from hydragnn_flow.config import Parameter, SearchConfig
from hydragnn_flow.config.optuna_classes import build_sampler
from hydragnn_flow.errors import InputError
from hydragnn_flow.search.samplers.auto import AutoSampler
from hydragnn_flow.search.samplers.batched_tpe import BatchedTPESampler
from hydragnn_flow.search.space import suggest

_MAKERS: dict[str, Callable[[int], BaseSampler]] = {
    "batched_tpe": lambda seed: BatchedTPESampler(seed=seed),
    "tpe": lambda seed: samplers.TPESampler(
        multivariate=True, group=True, constant_liar=True, seed=seed
    ),
    # Conditional parameters are drawn at random, which is no news to who chose it.
    "gp": lambda seed: samplers.GPSampler(seed=seed, warn_independent_sampling=False),
    "nsga2": lambda seed: samplers.NSGAIISampler(seed=seed),
    "qmc": lambda seed: samplers.QMCSampler(
        scramble=True, seed=seed, warn_independent_sampling=False
    ),
    "random": lambda seed: samplers.RandomSampler(seed=seed),
}
_REHEARSED = 15
"""Trials that a sampler is shown in a rehearsal: Optuna's are at random for the first ten."""


def make_sampler(
    chosen: str | Mapping[str, Any], space: Mapping[str, Parameter], seed: int
) -> BaseSampler:
    """The sampler of `search.sampler`.

    Parameters
    ----------
    chosen
        ``auto``; ``batched_tpe``; one of Optuna's: ``tpe``, ``gp``, ``nsga2``, ``qmc`` and
        ``random``; or ``type`` and arguments of any class.
    space
        Dotted path -> domain.
    seed
        Of its random numbers.
    """
    if not isinstance(chosen, str):
        return build_sampler(chosen, seed)
    return AutoSampler(space, seed=seed) if chosen == "auto" else _MAKERS[chosen](seed)


def rehearse(config: SearchConfig) -> None:
    """Let a sampler that was chosen by its class propose for a made-up history of this search.

    What it cannot do, such as several objectives or this space, is told before anything is trained.

    Parameters
    ----------
    config
        Of the search; one of the named samplers needs no rehearsal.

    Raises
    ------
    InputError
        If the sampler does not propose a value of every parameter.
    """
    if isinstance(config.sampler, str):
        return
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    objectives = len(config.objectives)
    study = optuna.create_study(
        directions=[StudyDirection.MINIMIZE] * objectives, sampler=samplers.RandomSampler(seed=0)
    )

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
            study.sampler = make_sampler(config.sampler, config.space, 0)
            run(_REHEARSED)
            run(_REHEARSED + 1)
    except Exception as error:  # of whatever class a user named
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, ModuleNotFoundError):
            reason += f"; pip install {error.name}"
        raise InputError(
            f"search.sampler: {config.sampler['type']} cannot propose for this search: {reason}"
        ) from error
