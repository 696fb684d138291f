"""Survey of a search space: the configurations that fit a machine, and why others do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.samplers import RandomSampler

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.config.domain import Parameter
from hydragnn_flow.errors import InputError, StoreError
from hydragnn_flow.placement import too_large
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.search.space import suggest


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
    regions: dict[str, list[Configuration]] = {}
    for name, domain in space.items():
        having = [one for one in found if name in one.parameters]
        if domain.choices is not None:
            for choice in domain.choices:
                alike = [one for one in having if one.parameters[name] == choice]
                regions[f"{name} = {choice}"] = alike
            continue
        fitting = [one.parameters[name] for one in having if not one.reason]
        if fitting:
            low, high = min(fitting), max(fitting)
            below = [one for one in having if one.parameters[name] < low]
            above = [one for one in having if one.parameters[name] > high]
            regions |= {f"{name} < {low:.4g}": below, f"{name} > {high:.4g}": above}
    return [
        f"{region} fits nowhere: {Counter(one.reason for one in of).most_common(1)[0][0]}"
        for region, of in regions.items()
        # Fewer than three tell nothing of a region.
        if len(of) >= 3 and all(one.reason for one in of)
    ]
