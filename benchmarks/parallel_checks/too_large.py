"""Too large: a network that a slot's memory does not hold, which four slots together do.

First the forecast: a campaign on four CPU slots is asked for a trial by each strategy, and says
whether it would begin it. Then the fact: four ranks train an epoch of the same network. Each has no
more memory of its own than the slot's (`RLIMIT_DATA`: the heap and all that is mapped to be written
to, pages of files not counted), the libraries' included.
"""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from results import Cell, Line, Table
from rich.console import Console

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.config import RunConfig, load_network
from hydragnn_flow.data import GraphStore
from hydragnn_flow.execution import Site
from hydragnn_flow.execution.site import Node, guessed_gcd
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.distributed import World, keep_forever, lost_a_rank
from hydragnn_flow.training.runner import run_segment
from parallel_checks.networks import alloys, network, sharding
from parallel_checks.ranks import on_ranks

ROW = "too_large"
MEASURES = [
    "benchmarks/parallel_checks/networks.py",
    "benchmarks/parallel_checks/too_large.py",
    "hydragnn_flow/campaign/estimator.py",
    "hydragnn_flow/campaign/trials.py",
    "hydragnn_flow/placement/cost_model.py",
    "hydragnn_flow/training",
]
RANKS, STRATEGIES = 4, ("NO_SHARD", "FULL_SHARD")
_GIB = 1.4
_TYPE, _WIDTH, _LAYERS = "GIN", 2048, 6
_STRUCTURES = 12
_LOST = "lost"


def measured(folder: Path, *, quick: bool = False) -> Iterator[Line | Table]:
    """What is forecast and what happens, by strategy; ``quick`` forecasts alone."""
    with alloys(folder, _STRUCTURES) as store:
        forecasts = {how: forecast(folder, store, how) for how in STRATEGIES}
        path = str(store.path)
    rows: list[list[Cell]] = []
    for how in STRATEGIES:
        foreseen = forecasts[how] or "begins"
        yield Line(
            *(ROW, f"{how}: refused before it starts", float(foreseen != "begins"), ""),
            at_least=1.0 if how == "NO_SHARD" else None,
            at_most=0.0 if how == "FULL_SHARD" else None,
        )
        if quick:
            continue
        place = folder / f"{ROW}-{how}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        ends = on_ranks(RANKS, _train, path, str(place), _section(how))
        yield Line(
            *(ROW, f"{how}: ranks of {RANKS} that train, of {_GIB:g} GiB each"),
            *(float(sum(status == "ok" for status, _ in ends)), ""),
            at_least=RANKS if how == "FULL_SHARD" else None,
            at_most=0.0 if how == "NO_SHARD" else None,
        )
        # Others may have lost the first that was out of memory.
        status, reason = next((end for end in ends if end[0] != _LOST), ends[0])
        rows.append([how, foreseen, f"{status}{': ' if reason else ''}{reason}"])
    title = f"{_TYPE} of width {_WIDTH} on {RANKS} slots of {_GIB:g} GiB"
    yield Table(["strategy", "the campaign says", "what happens"], rows, "too_large", title)


def forecast(folder: Path, store: GraphStore, how: str) -> str:
    """Why a campaign does not begin a trial; empty if it does."""
    config = RunConfig.model_validate(
        {
            "name": how,
            "data": {
                "source": {"format": "emt_alloys", "structures": _STRUCTURES},
                "split": {"val": 0.1, "test": 0.1},
            },
            "network": _section(how),
            "search": {
                "trials": 2,
                "space": {"Training.Optimizer.learning_rate": {"float": [1e-4, 1e-3]}},
            },
            "ensemble": {"size": 2, "epochs": 1},
            "resources": {"gcds": RANKS},
        }
    )
    node = Node(tuple(map(str, range(RANKS))), guessed_gcd("cpu", _GIB), 1, "cpu")
    site = Site("slots", 1, node, lambda directory: None)
    place = folder / f"{ROW}-forecast-{how}"
    shutil.rmtree(place, ignore_errors=True)
    directory = RunDirectory(place)
    directory.record_start(config)
    view = CampaignView(Console(quiet=True))
    phase = TrialPhase(Context(config, site, directory, store, "token", view))
    with phase.search as search:
        phase._ask()
        return search.record(0).reason or ""


def _section(how: str) -> dict[str, Any]:
    return network(
        _TYPE, "property", width=_WIDTH, layers=_LAYERS, batch_size=4, sharding=sharding(how)
    )


def _train(world: World, store: str, folder: str, section: dict[str, Any]) -> tuple[str, str]:
    """Status and reason of a rank's segment."""
    most = int(_GIB * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    spec = SegmentSpec(
        kind="trial",
        number=0,
        rung=0,
        directory=folder,
        store=store,
        network=load_network(section),
        until_epoch=1,
        seed=0,
    )
    try:
        outcome = run_segment(spec, world=world)
    except RuntimeError as error:
        if not lost_a_rank(error):
            raise
        keep_forever(error)  # another was out of memory first
        return _LOST, str(error).splitlines()[0]
    return outcome.status, outcome.reason or ""
