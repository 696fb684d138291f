"""Survey of a search space: the configurations that fit a machine, and why others do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.samplers import RandomSampler

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.config.domain import Parameter, Scalar
from hydragnn_flow.errors import InputError, StoreError
from hydragnn_flow.placement import too_large
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.search.space import suggest

# Number of configurations drawn in a region of the space, none of which fits, before the region is
# reported.
_ENOUGH = 3


@dataclass(frozen=True)
class Configuration:
    """Configuration of a search space, and its needs."""

    parameters: dict[str, Any]
    mpnn_type: str
    gcds: int = 1
    micro_batches: int = 1
    seconds: float = 0.0
    """Time of all epochs of a trial on its GCDs [s]."""
    memory_gib: float = 0.0
    """Peak memory on each GCD [GiB]."""
    reason: str = ""
    """Reason why it does not fit; empty if it does."""


def survey(context: Context, count: int, seed: int) -> list[Configuration]:
    """Draw configurations at random, and estimate each as the campaign would.

    Parameters
    ----------
    context
        Context of a campaign that has not started.
    count
        Number of configurations to draw.
    seed
        Seed of the random numbers.
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
            TrialRecord(number, "running", parameters, None),
            rung=len(config.rungs) - 1,
            until_epoch=config.num_epoch,
            done_epochs=0,
            width=config.gcds(parameters),
        )
    except StoreError:
        raise
    except InputError as error:  # values that are valid in pairs need not be so all together
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
    """List sentences that name the regions of a space in which nothing fits, and the reason.

    Parameters
    ----------
    space
        Domain of each hyper-parameter by its dotted path.
    found
        Survey of the space.
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
