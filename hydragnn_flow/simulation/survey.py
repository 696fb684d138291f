"""Survey of a search space: which configurations fit a machine how, and which do not, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import RandomSampler

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.config.domain import Parameter, Scalar
from hydragnn_flow.errors import InputError, StoreError
from hydragnn_flow.placement import too_large
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.search.space import suggest

# Configurations that a part of the space must have been drawn in, none of which fits, before the
# part is to blame.
_ENOUGH = 3


@dataclass(frozen=True)
class Configuration:
    """A configuration of a search space, and what it needs."""

    parameters: dict[str, Any]
    mpnn_type: str
    gcds: int = 1
    micro_batches: int = 1
    seconds: float = 0.0
    """Time of all epochs of a trial, on its GCDs [s]."""
    memory_gib: float = 0.0
    """On each [GiB]."""
    reason: str = ""
    """Why it does not fit; empty if it does."""


def survey(context: Context, count: int, seed: int) -> list[Configuration]:
    """Draw configurations at random, and estimate each as the campaign would.

    Parameters
    ----------
    context
        Of a campaign that has not begun.
    count
        Number of configurations.
    seed
        Of the random numbers.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=RandomSampler(seed=seed))
    found = []
    for number in range(count):
        context.view.step("configurations", number, count)
        parameters = suggest(study.ask(), context.config.search.space)
        found.append(_configuration(context, number, parameters))
    context.view.step("configurations", count, count)
    return found


def _configuration(context: Context, number: int, parameters: dict[str, Any]) -> Configuration:
    config, gcd = context.config, context.gcd
    architecture = config.network.get("Architecture", {})
    key = "Architecture.mpnn_type"
    name = str(parameters.get(key, architecture.get("mpnn_type", "")))
    try:
        task = context.task(
            "trial",
            number,
            Path(),
            TrialRecord(number, "running", parameters, None),
            rung=len(config.rungs) - 1,
            until_epoch=config.num_epoch,
            done_epochs=0,
            width=config.gcds(parameters),
        )
    except StoreError:
        raise
    except InputError as error:  # values that go together in pairs need not do so all at once
        return Configuration(parameters, name, reason=str(error))
    estimate = task.estimate
    return Configuration(
        parameters,
        name,
        task.width,
        task.spec.network.Training.accumulation_steps,
        task.seconds,
        estimate.memory_gib,
        f"needs {estimate.memory_gib:.3g} GiB, a GCD has {gcd.memory_gib:.3g} GiB"
        if too_large(estimate, gcd)
        else "",
    )


def misfits(space: Mapping[str, Parameter], found: Sequence[Configuration]) -> list[str]:
    """Sentences that name the parts of a space in which nothing fits, and the reason.

    Parameters
    ----------
    space
        Dotted path → domain.
    found
        A survey of it.
    """
    sentences = []
    for name, domain in space.items():
        if domain.choices is not None:
            sentences += _choices(name, domain.choices, found)
        else:
            sentences += _ends(name, found)
    return sentences


def _choices(name: str, choices: Sequence[Scalar], found: Sequence[Configuration]) -> list[str]:
    sentences = []
    for choice in choices:
        having = [one for one in found if one.parameters.get(name) == choice]
        if len(having) >= _ENOUGH and all(one.reason for one in having):
            sentences.append(f"{name} = {choice} fits nowhere: {_commonest(having)}")
    return sentences


def _ends(name: str, found: Sequence[Configuration]) -> list[str]:
    """Ends of a range in which nothing fits."""
    having = sorted(
        (one for one in found if name in one.parameters), key=lambda one: one.parameters[name]
    )
    fitting = [place for place, one in enumerate(having) if not one.reason]
    if not fitting:
        return []
    low, high = having[: fitting[0]], having[fitting[-1] + 1 :]
    limits = having[fitting[0]].parameters[name], having[fitting[-1]].parameters[name]
    return [
        f"{name} {word} {limit:.4g} fits nowhere: {_commonest(end)}"
        for end, word, limit in ((low, "<", limits[0]), (high, ">", limits[1]))
        if len(end) >= _ENOUGH
    ]


def _commonest(found: Sequence[Configuration]) -> str:
    return Counter(one.reason for one in found).most_common(1)[0][0]
