"""Simulated campaigns: the real driver, on simulated GCDs and in virtual time."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.cost_files import CostFile
from hydragnn_flow.campaign.objectives import JOULES
from hydragnn_flow.campaign.phases import run_phases
from hydragnn_flow.campaign.setup.stores import checked_store
from hydragnn_flow.config import RunConfig
from hydragnn_flow.data import GraphStore
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import Site, sole_driver
from hydragnn_flow.files import unsynced, write_json
from hydragnn_flow.log import View, driver_log
from hydragnn_flow.placement import Power, WorkInterpolation, measured_power
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import read_trials
from hydragnn_flow.simulation.blocks import Conditions, VirtualClock
from hydragnn_flow.simulation.truth import DrawnCurves, EstimatedTruth, Truth, draws
from hydragnn_flow.simulation.workers import SimulatedWorkers


@dataclass(frozen=True)
class Simulated:
    """Summary of a simulated campaign: duration, use of GCDs, trials, members and failures."""

    makespan: float
    """Time from the start of the campaign to the end of its last segment [s]."""
    search_seconds: float
    """Time from the start of the campaign to the end of the search's last segment [s]."""
    node_hours: float
    """Hours of the batch jobs, summed over their nodes."""
    gcd_hours: float
    """Hours in which GCDs had a segment, summed over GCDs."""
    occupied: float
    """Fraction of the time of the batch jobs' GCDs in which they had a segment, 0 to 1."""
    busy: float
    """Fraction of that time in which the GCDs computed, 0 to 1."""
    trials: dict[str, int]
    """Number of trials in each state at the end, by the name of the state."""
    members: int
    failed_segments: int
    batch_jobs: int


def simulate(
    config: RunConfig,
    site: Site,
    path: str | Path,
    view: View,
    *,
    conditions: Conditions,
    seed: int = 0,
    store: str | Path | None = None,
) -> Simulated:
    """Simulate a campaign on a machine in virtual time; return its duration and use of GCDs.

    Its run directory has the form of a real one. How long a segment truly takes differs from the
    driver's first estimate by errors drawn at random, which its cost model has to learn. Members
    are chosen by their criterion alone, since simulated trials make no predictions. The sampler
    `auto` works in a process in real time, so `batched_tpe` replaces it.

    Parameters
    ----------
    config
        Configuration of the campaign.
    site
        Site of the simulated machine.
    path
        Run directory. An earlier simulation there is replaced; its store stays.
    view
        Display of the progress.
    conditions
        Properties of the machine other than its speed.
    seed
        Seed of all random numbers.
    store
        GraphStore of the campaign's data, of which only the sizes matter. By default it is prepared
        in the run directory.

    Raises
    ------
    InputError
        If the run directory holds something other than a simulation, or the data cannot be read.
    """
    directory = _cleared(Path(path), keeps_store=store is None)
    directory.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_json(directory.simulated, {})
    with sole_driver(directory.path) as token, driver_log(directory.path, view.say):
        if store is not None:
            directory.store.symlink_to(Path(store).absolute())
        watts = simulated_watts(config, site, measured_power(CostFile(site).read()))
        with checked_store(config, directory.store, view) as data:
            off = draws(seed, "rates").standard_normal()
            return play(
                Stage(config, site, directory, data, view, token, gcd_watts=watts),
                lambda context: EstimatedTruth(context.another_estimator(), seed, off),
                conditions=conditions,
                seed=seed,
            )


@dataclass(frozen=True)
class Stage:
    """Inputs of a simulation: configuration, site, run directory, store and progress display."""

    config: RunConfig
    site: Site
    directory: RunDirectory
    store: GraphStore
    view: View
    token: str = ""
    works: WorkInterpolation = field(default_factory=WorkInterpolation)
    gcd_watts: float | None = None
    """Power of a GCD that has segments [W]; None to count no energy."""


def simulated_watts(config: RunConfig, site: Site, power: Power | None) -> float | None:
    """Return the power that a simulation assumes for a GCD that runs segments [W].

    Measured power comes first, then the GCD's share of the site's `watts`. If both are unknown the
    result is 1 W if energy is an objective, for which only ratios matter, and else None.

    Parameters
    ----------
    config
        Configuration of the campaign to simulate.
    site
        Site of the simulated machine.
    power
        Power measured on the machine; None if unknown.

    Raises
    ------
    InputError
        If the campaign has a limit of energy, and the power of the GCDs is unknown.
    """
    if power is not None:
        return power.gcd_watts
    if site.node.watts is not None:
        return site.node.watts / len(site.node.gcds)
    search = config.search
    key = "energy_kwh" if search.energy_kwh is not None else "constraints.joules"
    if search.energy_kwh is not None or JOULES in search.constraints:
        raise InputError(
            f"search.{key}: it is not known what the GCDs of {site.name} draw, as no segment there "
            f"had its energy counted; give the site's `watts`, or leave {key} out"
        )
    return 1.0 if JOULES in search.objectives else None


def play(
    stage: Stage,
    truth: Callable[[Context], Truth],
    *,
    conditions: Conditions,
    seed: int,
) -> Simulated:
    """Simulate a campaign in an existing run directory, and return its summary.

    Parameters
    ----------
    stage
        Campaign, machine and run directory of the simulation.
    truth
        Function that returns the true costs of segments, given the context of the campaign.
    conditions, seed
        Properties of the machine and seed, as in :func:`simulate`.
    """
    directory = stage.directory
    config = _simulable(stage.config)
    with unsynced():
        directory.record_start(config)
        clock = VirtualClock()
        context = Context(
            *(config, stage.site, directory, stage.store, stage.token, stage.view, clock),
            works=stage.works,
        )
        judged = [*config.search.objectives, *config.search.constraints]
        targets = [name.removeprefix("val.") for name in judged if name.startswith("val.")]
        workers = SimulatedWorkers(
            stage.site,
            clock,
            truth(context),
            DrawnCurves(config.search.space, seed),
            conditions,
            seed,
            targets,
            stage.gcd_watts,
        )
        members = run_phases(context, lambda: workers)
        summary = _summary(context, workers, len(members))
        about = {"seed": seed, "conditions": asdict(conditions)}
        write_json(directory.simulated, {**about, **asdict(summary)})
    return summary


def _simulable(config: RunConfig) -> RunConfig:
    """Return a configuration in which settings that need real time or predictions are replaced."""
    # Functions of the user's would take what is simulated for real.
    search = config.search.model_copy(update={"callbacks": ()})
    ensemble = config.ensemble
    if search.sampler in ("auto", "batched_tpe"):
        # Later fits of a thousand trials hardly differ, so each gives a fiftieth of the trials.
        batch = max(1, search.trials // 50)
        sampler = {"type": "batched_tpe", "batch_size": batch}
        search = search.model_copy(update={"sampler": sampler})
    if ensemble is not None and ensemble.strategy == "greedy":
        ensemble = ensemble.model_copy(update={"strategy": "top"})
    return config.model_copy(update={"search": search, "ensemble": ensemble})


def _cleared(path: Path, *, keeps_store: bool) -> RunDirectory:
    """Remove an earlier simulation from a run directory; with ``keeps_store`` its store stays."""
    directory = RunDirectory(path)
    there = [*directory.path.iterdir()] if directory.path.exists() else []
    if there and not directory.simulated.exists():
        raise InputError(
            f"{directory.path}: is not empty and holds no simulation; choose another directory "
            f"with --run-dir"
        )
    for entry in there:
        if entry.is_symlink() or entry.is_file():
            if entry != directory.simulated:  # which is replaced later
                entry.unlink()
        elif not (keeps_store and directory.store.name in entry.name):
            shutil.rmtree(entry)
    return directory


def _summary(context: Context, workers: SimulatedWorkers, members: int) -> Simulated:
    gcds, held = workers.gcds, workers.blocks.node_seconds
    gcd_seconds = held * len(context.site.node.gcds)
    results = list(context.directory.results())
    states = Counter[str](trial.state for trial in read_trials(context.directory.path))
    return Simulated(
        makespan=workers.ended,
        search_seconds=workers.search_ended,
        node_hours=held / 3600,
        gcd_hours=gcds.occupied / 3600,
        occupied=gcds.occupied / gcd_seconds,
        busy=gcds.busy / gcd_seconds,
        trials=dict(states),
        members=members,
        failed_segments=sum(r.status not in ("ok", "interrupted") for r in results),
        batch_jobs=workers.blocks.asked,
    )
