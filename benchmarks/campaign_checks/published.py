"""A published campaign of HydraGNN's, simulated as it was run and as it would run here.

    python benchmarks/campaign_checks/published.py

What was published: the search of 2024 over five data sets, a batch job on most of Frontier in which
DeepHyper gave every trial 128 nodes, in the order in which they were asked for. How long its trials
took, how busy its GPUs were, and when it ended is not in what we could read.

What is simulated: a machine of that many nodes, whose rates are guessed and not measured, with the
space, the batches and the number of epochs of that search. Trials of the same configurations take
what that machine says, once as their job script sends them, once through our search, placer and
driver in virtual time. Nothing is trained.
"""

from __future__ import annotations

import heapq
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import yaml
from results import Cell, Number, Run, Table
from results.code import REPOSITORY
from rich.console import Console

from hydragnn_flow import load_site
from hydragnn_flow.campaign.context import Context
from hydragnn_flow.config import RunConfig
from hydragnn_flow.config.network import read_json
from hydragnn_flow.config.run import resolve_config
from hydragnn_flow.data import GraphStore, prepare_store
from hydragnn_flow.data.store.manifest import SplitSize
from hydragnn_flow.execution import Rank, Site
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import TrialRecord, read_trials
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.simulation.blocks import Conditions
from hydragnn_flow.simulation.campaign import Stage, play
from hydragnn_flow.simulation.truth import Cost, DrawnTruth

GCDS_OF_A_NODE = 8
# For both, nodes are there at once, and stay.
CONDITIONS = Conditions(node_seconds=0.0)
MEASURES = [
    "benchmarks/campaign_checks/published.py",
    "configs/hydragnn/hpo_multitask.yaml",
    "configs/hydragnn/multitask.json",
    "hydragnn_flow/campaign",
    "hydragnn_flow/placement",
    "hydragnn_flow/search",
    "hydragnn_flow/simulation",
]
_BRANCH = "https://github.com/ORNL/HydraGNN/blob/Predictive_GFM_2024"
JOB_SCRIPT = f"{_BRANCH}/job-frontier-hpo.sh"
SEARCH_SCRIPT = f"{_BRANCH}/examples/multidataset_hpo/gfm_deephyper_multi.py"
WEIGHTS = "https://huggingface.co/mlupopa/HydraGNN_Predictive_GFM_2024"
ABSTRACT = "https://arxiv.org/abs/2406.12909"


class Row(NamedTuple):
    """A quantity of the campaign."""

    label: str
    published: str
    """What was published; empty if nothing was."""
    source: str
    """Address of that."""
    as_published: float | None
    """Simulated, as their script runs it; None if it is not a result of the simulation."""
    ours: float | None
    """Simulated, as it would run here with as much training."""
    pruned: float | None
    """The same with successive halving."""
    unit: str


@dataclass(frozen=True)
class Settings:
    """The campaign, as far as it was published, and what is assumed of it."""

    nodes: int = 8_626
    hours: float = 6.0
    """Walltime of the batch job."""
    nodes_per_trial: int = 128
    trials: int = 352
    """As many as have begun at least: weights of number 351 were published."""
    epochs: int = 10
    graphs: int = 36_000_000
    """Structures to train on: an assumption, nine tenths of the five data sets in the sizes that
    their authors give, of which one is named to have 20 million in this search."""
    atoms: tuple[int, int] = (48, 64)
    """Atoms of the structures that stand in for them: an assumption."""
    stand_ins: int = 400

    @property
    def at_once(self) -> int:
        """Trials at a time."""
        return self.nodes // self.nodes_per_trial

    @property
    def stagger_seconds(self) -> int:
        """Most time that a trial waits at random, on its nodes, before it begins [s]."""
        return 10 * self.at_once


QUICK = Settings(32, 2.0, 4, 12, 3, 400_000, (8, 16), 60)


@dataclass(frozen=True)
class Ours:
    """Our campaign."""

    makespan: float
    """Until the last trial has ended [s]."""
    node_hours: float
    ended_in_time: int
    """Trials that ended within the walltime of one job."""
    occupied: float
    """Fraction of the GCDs' time in which they had something to do."""
    busy: float
    """Fraction of it in which they computed."""


@dataclass(frozen=True)
class Practice:
    """Trials of one configuration each, one after the other on so many nodes."""

    makespan: float
    """Until the last has ended [s]."""
    ended_in_time: int
    """Trials that ended within the walltime."""
    occupied: float
    """Fraction of the GCDs' time, until the last has ended, that trials had them."""
    busy: float
    """Fraction of it in which they computed."""
    node_hours_waited: float
    """Of trials that waited for their turn to begin."""
    mean_node_hours: float
    """Of a trial."""


def rows(folder: Path, settings: Settings, say: Callable[[str], None]) -> list[Row]:
    """Simulate the campaign both ways.

    Parameters
    ----------
    folder
        For a store, and the run directories of the simulations.
    settings
        The campaign.
    say
        Told what is being done.
    """
    say(f"a store of {settings.stand_ins} structures that stand in")
    config = _config(settings, {"rungs": "none"})
    store = _store(config, folder / "store.gs", settings)
    say(f"{settings.trials} trials on {settings.nodes} nodes, all trained to the end")
    whole, practice = _simulated(config, folder / "whole", store, settings)
    assert practice is not None
    say("the same with successive halving")
    halving = {"rungs": "stopping", "min_epochs": 1, "reduction_factor": 3}
    pruned, _ = _simulated(_config(settings, halving), folder / "pruned", store, settings)
    return [*_given(settings), *_compared(settings, practice, whole, pruned)]


def _given(settings: Settings) -> list[Row]:
    """What was published of the campaign's size, and is taken over."""

    def row(label: str, published: str, source: str) -> Row:
        return Row(label, published, source, None, None, None, "")

    return [
        row("GPUs of the search", "over 64,000", ABSTRACT),
        row("nodes of its batch job", f"{settings.nodes:,}", JOB_SCRIPT),
        row("walltime", f"{settings.hours:g} h", JOB_SCRIPT),
        row("nodes of a trial", f"{settings.nodes_per_trial}", JOB_SCRIPT),
        row("trials at a time", f"{settings.at_once}, from these", JOB_SCRIPT),
        row("epochs of a trial, none ended early", f"{settings.epochs}", SEARCH_SCRIPT),
        row("trials begun", f"at least {settings.trials}", WEIGHTS),
    ]


def _compared(settings: Settings, practice: Practice, whole: Ours, pruned: Ours) -> list[Row]:
    granted = settings.nodes * settings.hours
    per_trial = granted / settings.trials
    hours = practice.makespan / 3600
    return [
        Row(
            "node-hours of the batch job",
            f"{granted:,.0f} granted, from these",
            JOB_SCRIPT,
            settings.nodes * hours,
            whole.node_hours,
            pruned.node_hours,
            "",
        ),
        Row(
            "of these for each trial",
            f"at most {per_trial:.0f}, from these",
            JOB_SCRIPT,
            settings.nodes * hours / settings.trials,
            whole.node_hours / settings.trials,
            pruned.node_hours / settings.trials,
            "",
        ),
        Row(
            "time until the last trial has ended",
            "",
            "",
            hours,
            whole.makespan / 3600,
            pruned.makespan / 3600,
            "h",
        ),
        Row(
            f"trials that end within {settings.hours:g} h",
            "",
            "",
            practice.ended_in_time,
            whole.ended_in_time,
            pruned.ended_in_time,
            "",
        ),
        Row(
            "GCD time with a trial on it",
            "",
            "",
            100 * practice.occupied,
            100 * whole.occupied,
            100 * pruned.occupied,
            "%",
        ),
        Row(
            "GCD time computing",
            "",
            "",
            100 * practice.busy,
            100 * whole.busy,
            100 * pruned.busy,
            "%",
        ),
        Row(
            "node-hours in which trials wait at random before they begin",
            f"{settings.stagger_seconds} s at most for each",
            SEARCH_SCRIPT,
            practice.node_hours_waited,
            None,
            None,
            "",
        ),
    ]


def _config(settings: Settings, search: dict[str, Any]) -> RunConfig:
    """The search as it was published, on the structures that stand in.

    Its batches, of each GCD, are those of a step here. The members would have nothing to train.
    """
    path = REPOSITORY / "configs" / "hydragnn" / "hpo_multitask.yaml"
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    gcds = settings.nodes_per_trial * GCDS_OF_A_NODE
    values["search"] |= {"trials": settings.trials, "sampler": "random", **search}
    values["search"]["space"]["Training.batch_size"] = {
        "int": [16 * gcds, 128 * gcds],
        "step": gcds,
    }
    values["ensemble"] |= {"size": 2, "epochs": settings.epochs, "strategy": "top"}
    values["data"]["source"] |= {"structures": settings.stand_ins, "atoms": list(settings.atoms)}
    values["network"] = network = read_json(path.with_name(values["network"]))["NeuralNetwork"]
    network["Architecture"]["max_neighbours"] = 20  # as their file has it
    network["Training"]["num_epoch"] = settings.epochs
    return resolve_config(values, path)


def _store(config: RunConfig, path: Path, settings: Settings) -> GraphStore:
    """A store of few structures that says it holds as many as the campaign trained on."""
    network = config.network_with({}).Architecture
    assert network.radius is not None
    store = prepare_store(config.data, network.radius, network.max_neighbours, config.seed, path)
    sizes = store.manifest.splits
    times = settings.graphs / sizes["trainset"].graphs
    many = {
        name: SplitSize(**{key: round(times * n) for key, n in size.model_dump().items()})
        for name, size in sizes.items()
    }
    # Nothing of it is read in a simulation but how large structures are.
    store.manifest = store.manifest.model_copy(update={"splits": many})
    return store


def _site(settings: Settings) -> Site:
    walltime = f"{settings.hours:02.0f}:00:00"
    return load_site("frontier", account="ABC123", nodes=settings.nodes, walltime=walltime)


def _simulated(
    config: RunConfig, path: Path, store: GraphStore, settings: Settings
) -> tuple[Ours, Practice | None]:
    """Our campaign; and the published practice with its trials, where each is trained whole."""
    site, machine = _site(settings), list[tuple[Context, DrawnTruth]]()

    def truth(context: Context) -> DrawnTruth:
        drawn = DrawnTruth(context.estimator, site, config.seed)
        machine.append((context, drawn))
        return drawn

    directory = RunDirectory(path)
    stage = Stage(config, site, directory, store, CampaignView(Console(quiet=True)))
    found = play(stage, truth, conditions=CONDITIONS, seed=config.seed)
    results = [result for result in directory.results() if result.kind == "trial"]
    began = min(result.started for result in results)
    ends = {result.number: result.ended - began for result in results}
    in_time = sum(end <= 3600 * settings.hours for end in ends.values())
    ran = Ours(found.search_seconds, found.node_hours, in_time, found.occupied, found.busy)
    if config.search.rungs != "none":
        return ran, None
    costs = [_cost(*machine[0], trial, settings) for trial in read_trials(path)]
    return ran, practice(costs, settings)


def _cost(context: Context, truth: DrawnTruth, trial: TrialRecord, settings: Settings) -> Cost:
    """What a trial takes on the nodes that the published practice gives it.

    What is too large for its GCDs is divided into micro-batches, which HydraGNN does not do.
    """
    width = settings.nodes_per_trial * GCDS_OF_A_NODE
    network = context.config.network_with(trial.parameters)
    network, _ = context.another_estimator().divide(network, settings.epochs, width, [])
    spec = SegmentSpec(
        kind="trial",
        number=trial.number,
        rung=0,
        directory="",
        store="",
        network=network,
        until_epoch=settings.epochs,
        seed=context.config.seed * 100_003 + trial.number,
        attempt="practice",
    )
    return truth.cost(Rank(spec, 0, width, nodes=settings.nodes_per_trial))


def practice(costs: Sequence[Cost], settings: Settings) -> Practice:
    """One trial after the other in the order of their numbers, each on as many nodes."""
    chance = random.Random(0)
    free = [0.0] * settings.at_once
    ends, held, busy, waited = [], 0.0, 0.0, 0.0
    for cost in costs:
        wait = chance.randrange(settings.stagger_seconds)
        takes = cost.start_seconds + settings.epochs * cost.epoch_seconds
        end = free[0] + wait + takes
        heapq.heapreplace(free, end)
        ends.append(end)
        held += wait + takes
        waited += wait
        busy += takes * cost.busy
    makespan, nodes = max(ends), settings.nodes_per_trial
    of_all = settings.nodes / nodes * makespan
    return Practice(
        makespan,
        sum(end <= 3600 * settings.hours for end in ends),
        held / of_all,
        busy / of_all,
        waited * nodes / 3600,
        held * nodes / 3600 / len(costs),
    )


def table(found: Sequence[Row]) -> Table:
    """The rows, published and simulated apart."""

    def cell(value: float | None, unit: str) -> Cell:
        return None if value is None else Number(value, unit)

    cells: list[list[Cell]] = [
        [
            row.label,
            f"[{row.published}]({row.source})" if row.published else "",
            cell(row.as_published, row.unit),
            cell(row.ours, row.unit),
            cell(row.pruned, row.unit),
        ]
        for row in found
    ]
    heads = (
        "",
        "published",
        "simulated: as published",
        "simulated: ours",
        "simulated: ours, halving",
    )
    return Table(heads, cells, "published", "A published search on Frontier, simulated")


def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="Few nodes and trials, to see that it runs.")
    ] = False,
    scratch: Annotated[
        Path | None, typer.Option(help="Directory for the simulated runs, which are kept.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Simulate the published campaign and print the table."""
    settings = QUICK if quick else Settings()
    console = Console(stderr=True)
    run = Run("published", MEASURES, ["optuna", "torch"], quick=quick)
    with tempfile.TemporaryDirectory() as name:
        found = rows(scratch or Path(name), settings, console.print)
    details = [row._asdict() for row in found]
    result = run.end([table(found)], settings=asdict(settings), details=details)
    print(result.markdown())
    if json is not None:
        result.write(json)


if __name__ == "__main__":
    typer.run(main)
