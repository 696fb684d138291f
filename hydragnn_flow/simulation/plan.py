"""Plans: what a campaign will probably take of a machine, from simulations of it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.cost_files import CostFiles
from hydragnn_flow.campaign.view import View
from hydragnn_flow.config import RunConfig
from hydragnn_flow.data import GraphStore
from hydragnn_flow.execution import Site
from hydragnn_flow.placement import Experience, WorkInterpolation, measured_power
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.simulation.blocks import Conditions
from hydragnn_flow.simulation.campaign import Simulated, Stage, play, simulated_watts
from hydragnn_flow.simulation.survey import Configuration, survey
from hydragnn_flow.simulation.truth import EstimatedTruth

CONFIGURATIONS = 200
"""Configurations of a survey."""
# A plan adds up thousands of networks, of which one may be off by more than where a campaign sends
# it: it counts fewer of them.
_TOLERANCE, _BEYOND = 0.7, 0.25


class Quiet:
    """A view that shows how many simulations there were, and nothing of each."""

    def __init__(self, view: View, total: int) -> None:
        self._view, self._total, self._done = view, total, 0

    def say(self, text: str) -> None:
        """Nothing."""

    def step(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Nothing."""

    def search(
        self, states: Mapping[str, int], ready: int, waiting: int, best: float | None, total: int
    ) -> None:
        """Nothing."""

    def one_more(self) -> None:
        """Show that another simulation is done."""
        self._done += 1
        self._view.step("simulations", self._done, self._total)


class Planner:
    """Surveys a search space and simulates its campaign.

    Parameters
    ----------
    config
        The campaign.
    site
        The machine. What was measured there before is made use of.
    store
        The data, of which the sizes matter.
    conditions
        What the machine is like, beside its speed.
    seed
        Of the random numbers.

    Raises
    ------
    InputError
        If the campaign has a limit of energy, and it is not known what GCDs draw.
    """

    def __init__(
        self, config: RunConfig, site: Site, store: GraphStore, conditions: Conditions, seed: int
    ) -> None:
        self._config, self._site, self._store = config, site, store
        self._conditions, self._seed = conditions, seed
        self._experience: list[Experience] = CostFiles(site).read()
        self._works = WorkInterpolation(_TOLERANCE, _BEYOND)
        self.power = measured_power(self._experience)
        """What GCDs and nodes draw, as it was measured there; None if it was not."""
        self._watts = simulated_watts(config, site, self.power)

    @property
    def is_calibrated(self) -> bool:
        """Whether segments of the site were measured before."""
        return any(any(one.segments.values()) for one in self._experience)

    def survey(self, view: View) -> list[Configuration]:
        """Configurations that were drawn at random, and what each needs."""
        with tempfile.TemporaryDirectory() as folder:
            directory = RunDirectory(Path(folder))
            context = Context(
                *(self._config, self._site, directory, self._store, "", view), works=self._works
            )
            self._recall(context)
            return survey(context, CONFIGURATIONS, self._seed)

    def simulate(self, view: View, draws: int) -> tuple[list[Simulated], dict[int, Simulated]]:
        """Simulations by how far trials are off together, and by the number of nodes.

        Of half and twice the nodes there is one each, which is drawn as the middle one is.

        Parameters
        ----------
        view
            Shows how many are done.
        draws
            Number of simulations with the nodes of the site.
        """
        nodes = self._site.nodes
        others = [n for n in (nodes // 2, 2 * nodes) if n >= 1]
        quiet = Quiet(view, draws + len(others))
        middle = draws // 2
        offs = [NormalDist().inv_cdf((draw + 0.5) / draws) for draw in range(draws)]
        drawn = [self._play(quiet, self._site, off, draw) for draw, off in enumerate(offs)]
        on_nodes = {
            n: self._play(quiet, _with_nodes(self._site, n), offs[middle], middle) for n in others
        }
        return drawn, on_nodes | {nodes: drawn[middle]}

    def _play(self, view: Quiet, site: Site, off: float, draw: int) -> Simulated:
        seed = self._seed * 1_009 + draw

        def truth(context: Context) -> EstimatedTruth:
            self._recall(context)
            estimator = context.another_estimator()
            for earlier in self._experience:
                estimator.costs.recall(earlier)
            return EstimatedTruth(estimator, seed, off)

        with tempfile.TemporaryDirectory() as folder:
            directory = RunDirectory(Path(folder))
            found = play(
                Stage(
                    *(self._config, site, directory, self._store, view),
                    works=self._works,
                    gcd_watts=self._watts,
                ),
                truth,
                conditions=self._conditions,
                seed=seed,
            )
        view.one_more()
        return found

    def _recall(self, context: Context) -> None:
        """Have a campaign know what its real one would at its beginning."""
        for earlier in self._experience:
            context.estimator.costs.recall(earlier)


def _with_nodes(site: Site, nodes: int) -> Site:
    """The same machine with another number of nodes, in as many batch jobs where that goes."""
    blocks = min(site.blocks, nodes)
    return replace(site, nodes=nodes // blocks * blocks, blocks=blocks)
