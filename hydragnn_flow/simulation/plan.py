"""Plans: which configurations fit a machine, and the probable cost of a campaign there."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import optuna
from rich.console import Console

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.cost_files import CostFile
from hydragnn_flow.campaign.estimator import Estimator
from hydragnn_flow.config import RunConfig
from hydragnn_flow.config.domain import Parameter
from hydragnn_flow.data import GraphStore
from hydragnn_flow.errors import InputError, StoreError
from hydragnn_flow.execution import Site
from hydragnn_flow.log import View
from hydragnn_flow.placement import Experience, WorkInterpolation, measured_power, too_large
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.search.records import suggest
from hydragnn_flow.search.samplers.ruled import sampler_of
from hydragnn_flow.segment import EpochPlan, Start
from hydragnn_flow.simulation.blocks import Conditions
from hydragnn_flow.simulation.campaign import Simulated, Stage, play, simulated_watts
from hydragnn_flow.simulation.truth import EstimatedTruth


@dataclass(frozen=True)
class Configuration:
    """Hyper-parameters drawn from a search space, with expected time [s], GCDs and memory [GiB]."""

    parameters: dict[str, Any]
    mpnn_type: str
    gcds: int = 1
    micro_batches: int = 1
    seconds: float = 0.0
    """Expected time of all epochs of the trial, on as many GCDs as ``gcds`` [s]."""
    memory_gib: float = 0.0
    """Expected peak memory on each GCD [GiB]."""
    reason: str = ""
    """Reason why the configuration is invalid or does not fit the memory; empty if it fits."""


def survey(context: Context, count: int, seed: int) -> list[Configuration]:
    """Draw configurations of a search space at random, and estimate the cost of each.

    The estimates of time [s] and memory [GiB] are those that the campaign itself would make.

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
    sampler = sampler_of(context.config.search, seed, "random", foreseen=context.foreseen)
    study = optuna.create_study(sampler=sampler)
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
            start=Start(may_have_begun=False),
            epochs=EpochPlan(until_epoch=config.num_epoch),
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
    """Return a sentence for each region of a search space in which no drawn configuration fits.

    A region is a choice of a parameter, or the values below or above all that fit. The sentence
    names the region and the most frequent reason.

    Parameters
    ----------
    space
        Domain of each hyper-parameter by its dotted path.
    found
        Configurations drawn from the space, from :func:`survey`.
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


class Planner:
    """Planner of a campaign: surveys its search space, and predicts its cost by simulations.

    Parameters
    ----------
    config
        Configuration of the campaign.
    site
        Machine to simulate; earlier measurements on it are used.
    store
        Store of the data, of which only the sizes matter.
    conditions
        Properties of the machine other than its speed.
    seed
        Seed of the random numbers.

    Raises
    ------
    InputError
        If the campaign has a limit of energy, and the power of the GCDs is unknown.
    """

    def __init__(
        self, config: RunConfig, site: Site, store: GraphStore, conditions: Conditions, seed: int
    ) -> None:
        self._config, self._site, self._store = config, site, store
        self._conditions, self._seed = conditions, seed
        self._experience: Experience | None = CostFile(site).read()
        # A plan adds up thousands of networks, so errors of one matter less than in a campaign.
        self._works = WorkInterpolation(0.7, 0.25)
        self.power = measured_power(self._experience)
        """Measured power of GCDs and nodes [W]; None if it was not measured."""
        self._watts = simulated_watts(config, site, self.power)

    @property
    def is_calibrated(self) -> bool:
        """True if the cost model has measurements from the site; False if its rates are guessed."""
        return self._experience is not None and any(self._experience.segments.values())

    def survey(self, view: View) -> list[Configuration]:
        """Draw 200 configurations of the search space; estimate the time and memory of each."""
        with tempfile.TemporaryDirectory() as folder:
            directory = RunDirectory(Path(folder))
            context = Context(
                *(self._config, self._site, directory, self._store, "", view), works=self._works
            )
            self._recall(context.estimator)
            return survey(context, 200, self._seed)

    def simulate(self, view: View, draws: int) -> tuple[list[Simulated], dict[int, Simulated]]:
        """Simulate the campaign repeatedly, and once each on half and twice the number of nodes.

        Estimated times may be wrong in the same direction for all trials. Each simulation assumes
        another common error, at evenly spaced quantiles of the error's distribution. The one of
        median makespan is repeated on other numbers of nodes.

        Parameters
        ----------
        view
            Display of the number of finished simulations.
        draws
            Number of simulations with the site's own nodes.

        Returns
        -------
        tuple
            Summaries of the simulations with the site's own nodes, [draws]; and a summary for each
            number of nodes, by that number.
        """
        nodes = self._site.nodes
        others = [n for n in (nodes // 2, 2 * nodes) if n >= 1]
        found: list[Simulated] = []
        for number, n in enumerate([nodes] * draws + others):
            # Not by the errors: chance may make the campaign of the middle one longer than most.
            order = sorted(range(min(number, draws)), key=lambda draw: found[draw].makespan)
            draw = number if number < draws else order[draws // 2]
            off = NormalDist().inv_cdf((draw + 0.5) / draws)
            found.append(self._play(_with_nodes(self._site, n), off, draw))
            view.step("simulations", number + 1, draws + len(others))
        on_nodes = dict(zip([*others, nodes], [*found[draws:], found[draw]], strict=True))
        return found[:draws], on_nodes

    def _play(self, site: Site, off: float, draw: int) -> Simulated:
        view = CampaignView(Console(quiet=True))
        seed = self._seed * 1_009 + draw

        def truth(context: Context) -> EstimatedTruth:
            estimator = context.another_estimator()
            self._recall(context.estimator, estimator)
            return EstimatedTruth(estimator, seed, off)

        with tempfile.TemporaryDirectory() as folder:
            directory = RunDirectory(Path(folder))
            return play(
                Stage(
                    *(self._config, site, directory, self._store, view),
                    works=self._works,
                    gcd_watts=self._watts,
                ),
                truth,
                conditions=self._conditions,
                seed=seed,
            )

    def _recall(self, *estimators: Estimator) -> None:
        """Give cost models the measurements that a real campaign would start with."""
        if self._experience is not None:
            for estimator in estimators:
                estimator.costs.recall(self._experience)


def _with_nodes(site: Site, nodes: int) -> Site:
    """Return the machine with about ``nodes`` nodes, in the same number of batch jobs if possible.

    The number of nodes is a multiple of the number of batch jobs.
    """
    blocks = min(site.blocks, nodes)
    return replace(site, nodes=nodes // blocks * blocks, blocks=blocks)
