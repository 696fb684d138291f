"""Plans beside the campaigns that follow them: really trained on this machine, on two CPU slots.

A first campaign of few trials measures the machine, as a user's first would. Each plan knows what
was measured before it. Each campaign stands beside what no schedule of its own segments is shorter
than, and beside trials that begin in the order in which they were asked for.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from results import Line
from rich.console import Console

from hydragnn_flow import load_site, run_campaign
from hydragnn_flow.campaign.stores import checked_store
from hydragnn_flow.config import RunConfig
from hydragnn_flow.execution import Site
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import SegmentResult
from hydragnn_flow.simulation import Conditions, Planner

_NETWORK = {
    "Architecture": {
        "mpnn_type": "SchNet",
        "hidden_dim": 16,
        "num_conv_layers": 2,
        "radius": 4.0,
        "num_gaussians": 20,
        "enable_interatomic_potential": True,
        "energy_peratom_weight": 1.0,
        "output_heads": {"node": {"num_headlayers": 2, "dim_headlayers": [16, 16]}},
    },
    "Variables_of_interest": {"output_names": ["energy"], "type": ["node"]},
    "Training": {"num_epoch": 27, "batch_size": 8, "Optimizer": {"learning_rate": 1e-3}},
}
_SPACE = {
    "Architecture.mpnn_type": {"choices": ["SchNet", "EGNN", "PNA"]},
    "Architecture.hidden_dim": {"int": [8, 320], "log": True},
    "Architecture.num_conv_layers": {"int": [1, 4]},
    "Training.Optimizer.learning_rate": {"float": [1e-4, 1e-2], "log": True},
    "Training.batch_size": {"choices": [2, 4, 8, 16]},
}
_DRAWS = 21
_FIRST = 12
_SLOTS = 2


def lines(
    folder: Path, say: Callable[[str], None], campaigns: int = 3, trials: int = 40
) -> list[Line]:
    """Plan campaigns, run them, and compare.

    Parameters
    ----------
    folder
        For their run directories and what is learned of this machine.
    say
        Told what is being done.
    campaigns
        Number of campaigns.
    trials
        Trials of each.
    """
    site = _slots(load_site("local"))
    within, errors, spreads, bounds, in_order = 0, [], [], [], []
    with _cache_in(folder / "cache"):
        say(f"a first campaign of {_FIRST} trials")
        _run(_config("first", _FIRST, 0), site, folder / "first")
        for number in range(1, campaigns + 1):
            config = _config(f"campaign{number}", trials, number)
            low, middle, high, spread = _planned(config, site, folder / f"{number}.gs")
            say(f"campaign {number}: planned {low:.0f} to {high:.0f} s, median {middle:.0f} s")
            results = _run(config, site, folder / str(number))
            took = max(r.ended for r in results) - min(r.started for r in results)
            say(f"campaign {number}: took {took:.0f} s")
            bounds.append(took / _bound(results))
            in_order.append(_in_order(results) / took)
            within += low <= took <= high
            errors.append(abs(middle / took - 1))
            spreads.append(spread)
    what = f"{campaigns} campaigns of {trials} trials, costs {min(spreads):.0f}-fold apart"
    return [
        Line(
            "planned",
            f"{what}: makespan within P10 to P90",
            within,
            "campaigns",
            at_least=float(campaigns),
        ),
        Line(
            "planned",
            f"{what}: error of the median plan, in the median",
            100 * float(np.median(errors)),
            "%",
            at_most=20.0,
        ),
        Line(
            "slots",
            f"the same campaigns on {_SLOTS} slots: makespan",
            float(np.median(bounds)),
            "of the bound",
            at_most=1.15,
            spread=(min(bounds), max(bounds)),
        ),
        Line(
            "slots",
            "their segments, first come first served: makespan over ours",
            float(np.median(in_order)),
            "times",
            spread=(min(in_order), max(in_order)),
        ),
    ]


def _slot_seconds(results: Sequence[SegmentResult]) -> dict[tuple[str, int], float]:
    """Time of each trial and member on its slots, added up [s]."""
    found: dict[tuple[str, int], float] = {}
    for one in results:
        name = one.kind, one.number
        found[name] = found.get(name, 0.0) + (one.ended - one.started) * max(1, len(one.gcds))
    return found


def _bound(results: Sequence[SegmentResult]) -> float:
    """Time that the segments take at least, whatever the order [s]: all slots always at work."""
    return sum(_slot_seconds(results).values()) / _SLOTS


def _in_order(results: Sequence[SegmentResult]) -> float:
    """Time of the trials in the order of their numbers, a slot each, then of the members [s]."""
    taken, end = _slot_seconds(results), 0.0
    for kind in ("trial", "member"):
        free = [end] * _SLOTS
        for name in sorted(name for name in taken if name[0] == kind):
            heapq.heapreplace(free, free[0] + taken[name])
        end = max(free)
    return end


def _planned(config: RunConfig, site: Site, path: Path) -> tuple[float, float, float, float]:
    """10th, 50th and 90th percentile of the makespan [s], and the spread of trials' costs."""
    view = CampaignView(Console(quiet=True))
    with checked_store(config, path, view) as store:
        planner = Planner(config, site, store, Conditions(node_seconds=0.0), config.seed)
        seconds = [one.seconds for one in planner.survey(view)]
        draws, _ = planner.simulate(view, _DRAWS)
    low, middle, high = np.percentile([draw.makespan for draw in draws], [10, 50, 90]).tolist()
    return low, middle, high, max(seconds) / min(seconds)


def _run(config: RunConfig, site: Site, path: Path) -> list[SegmentResult]:
    """Run a campaign; returns its segments."""
    run_campaign(config, site, path, CampaignView(Console(quiet=True)))
    return list(RunDirectory(path).results())


def _config(name: str, trials: int, seed: int) -> RunConfig:
    values: dict[str, Any] = {
        "name": name,
        "seed": seed,
        "data": {
            "source": {"format": "emt_alloys", "structures": 120, "atoms": [8, 16]},
            "split": {"val": 0.2, "test": 0.2},
        },
        "network": _NETWORK,
        "search": {
            "trials": trials,
            "min_epochs": 3,
            "reduction_factor": 3,
            # Its trials are decided by the seed, so that a plan is of the same ones. Where a
            # sampler learns, campaigns of one space differ by more than costs are unknown.
            "sampler": "random",
            "space": _SPACE,
        },
        "ensemble": {"size": 2, "epochs": 36, "coverage": 0.9},
    }
    return RunConfig.model_validate(values)


def _slots(site: Site) -> Site:
    """The site with two of its CPU slots."""
    return replace(site, node=replace(site.node, gcds=site.node.gcds[:_SLOTS]))


@contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    """Keep costs in a folder of our own."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder.resolve())
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_CACHE_HOME"]
        else:
            os.environ["XDG_CACHE_HOME"] = before
