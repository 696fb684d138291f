"""The real loop of a campaign with a simulated machine, whose trials end at once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from execution_race.on_paper import nothing_done
from results import Line
from rich.console import Console

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.dispatch import Dispatch
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.config import DataConfig, RunConfig
from hydragnn_flow.data import GraphStore, prepare_store
from hydragnn_flow.execution import Node, Rank, Site
from hydragnn_flow.placement import Gcd, Host
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import SegmentResult

_GCDS_OF_A_NODE = 8
_ENDING_TOGETHER = 32
_NETWORK = {
    "Architecture": {
        "mpnn_type": "SchNet",
        "hidden_dim": 64,
        "num_conv_layers": 3,
        "radius": 4.0,
        "num_gaussians": 20,
        "enable_interatomic_potential": True,
        "energy_peratom_weight": 1.0,
        "output_heads": {"node": {"num_headlayers": 2, "dim_headlayers": [64, 64]}},
    },
    "Variables_of_interest": {"output_names": ["energy"], "type": ["node"]},
    "Training": {"num_epoch": 6, "batch_size": 16, "Optimizer": {"learning_rate": 1e-3}},
}
_DATA = {
    "source": {"format": "emt_alloys", "structures": 60, "atoms": [8, 16]},
    "split": {"val": 0.2, "test": 0.2},
    "mode": "stream",
}
# A network that is new to the driver is first counted, which takes longer than all else.
_FEW_NETWORKS = {
    "Architecture.mpnn_type": {"choices": ["SchNet", "PNA", "EGNN"]},
    "Architecture.hidden_dim": {"choices": [32, 64]},
    "Training.Optimizer.learning_rate": {"float": [1e-5, 1e-2], "log": True},
    "Training.Optimizer.weight_decay": {"float": [1e-6, 1e-1], "log": True},
}
_MANY_NETWORKS = {
    **_FEW_NETWORKS,
    "Architecture.hidden_dim": {"int": [32, 2048], "log": True},
    "Architecture.num_conv_layers": {"int": [2, 6]},
}
_NEW_NETWORKS = 2_000


class _Machine:
    """Takes segments like `Pool`; when all its GCDs are busy, the oldest end together."""

    def __init__(self, gcds: int) -> None:
        self._gcds = gcds
        self._hosts = [Host(f"node{n}", "block") for n in range(-(-gcds // _GCDS_OF_A_NODE))]
        self._running: deque[tuple[Future[list[SegmentResult]], Sequence[Rank]]] = deque()
        self._submitted = False

    def run(self, ranks: Sequence[Rank], node: str) -> Future[list[SegmentResult]]:
        future: Future[list[SegmentResult]] = Future()
        self._running.append((future, ranks))
        self._submitted = True
        if len(self._running) == self._gcds:
            self._end(_ENDING_TOGETHER)
        return future

    def hosts(self) -> list[Host]:
        return self._hosts

    def call_off(self, node: str, attempt: str, reason: str) -> None: ...

    def release(self, node: str, attempt: str) -> None: ...

    def record(self, node: str, work: Hashable, worked: bool) -> None: ...

    def avoid(self, node: str, reason: str) -> None: ...

    def waiting(self) -> str:
        return ""

    def update(self, demand: int = 0) -> None:
        """Called in every round of the loop: with nothing left to submit, the rest ends."""
        if not self._submitted:
            self._end(len(self._running))
        self._submitted = False

    def _end(self, count: int) -> None:
        for _ in range(min(count, len(self._running))):
            future, ranks = self._running.popleft()
            future.set_result([nothing_done(rank.spec) for rank in ranks])


def lines(folder: Path, n_trials: int, gcds: int, say: Callable[[str], None]) -> list[Line]:
    """Run a search.

    Parameters
    ----------
    folder
        For the run directory.
    n_trials
        Trials of the search.
    gcds
        Of the simulated machine.
    say
        Told what is being done.
    """
    store = prepare_store(DataConfig.model_validate(_DATA), 4.0, None, 0, folder / "store.gs")
    say(f"{n_trials:,} trials of a segment each")
    ends = run(folder / "ends", store, n_trials, gcds, "none", _FEW_NETWORKS)
    say(f"{n_trials:,} trials with rungs")
    rungs = run(folder / "rungs", store, n_trials, gcds, "stopping", _FEW_NETWORKS)
    fewer = min(n_trials, _NEW_NETWORKS)
    say(f"{fewer} trials of a network each")
    networks = run(folder / "networks", store, fewer, gcds, "none", _MANY_NETWORKS)
    what = f"driver, {n_trials:,} trials of a segment each"
    return [
        Line("driver", what, ends, "trials/s", at_least=500.0),
        Line("driver", f"driver, {n_trials:,} trials, rungs at 2 and 6 epochs", rungs, "trials/s"),
        Line("driver", f"driver, {fewer} trials of a new network each", networks, "trials/s"),
    ]


def run(
    folder: Path, store: GraphStore, n_trials: int, gcds: int, rungs: str, space: dict[str, Any]
) -> float:
    """Trials per CPU-second of the driver."""
    config = RunConfig.model_validate(
        {
            "name": "simulated",
            "seed": 0,
            "data": _DATA,
            "network": _NETWORK,
            "search": {
                "trials": n_trials,
                "sampler": "batched_tpe",
                "rungs": rungs,
                "space": space,
            },
            "ensemble": {"size": 2, "epochs": 6},
        }
    )
    directory = RunDirectory(folder)
    directory.record_start(config)
    each = Gcd(64, 2e13, 1e12, 1e-5, 1.0, 1)
    node = Node(tuple(map(str, range(_GCDS_OF_A_NODE))), each, 1, "hip")
    site = Site("simulated", max(gcds // _GCDS_OF_A_NODE, 1), node, lambda directory: None)
    view = CampaignView(Console(quiet=True))
    context = Context(config, site, directory, store, "token", view)
    machine = _Machine(site.nodes * _GCDS_OF_A_NODE)
    start = time.process_time()
    trials = TrialPhase(context).run(Dispatch(context, machine))
    seconds = time.process_time() - start
    assert len(trials) == n_trials
    return n_trials / seconds
