"""Plans beside the campaigns that follow them: really trained on this machine, on two CPU slots.

A first campaign of few trials measures the machine, as a user's first would. Each plan knows what
was measured before it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
from results import Line, run_config, say
from rich.console import Console

from hydragnn_flow import load_site, run_campaign
from hydragnn_flow.campaign.setup.stores import checked_store
from hydragnn_flow.config import RunConfig
from hydragnn_flow.execution import Site
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import SegmentResult
from hydragnn_flow.simulation import Conditions, Planner

_DRAWS = 21
_FIRST = 12
_SLOTS = 2


def lines(folder: Path, campaigns: int = 3, trials: int = 40) -> list[Line]:
    """Plan campaigns, run them, and compare; what is learned of the machine stays in a folder."""
    site = load_site("local")
    site = replace(site, node=replace(site.node, gcds=site.node.gcds[:_SLOTS]))
    within, errors = 0, []
    with patch.dict(os.environ, {"XDG_CACHE_HOME": str(folder.resolve() / "cache")}):
        say(f"a first campaign of {_FIRST} trials")
        _run(_config("first", _FIRST, 0), site, folder / "first")
        for number in range(1, campaigns + 1):
            config = _config(f"campaign{number}", trials, number)
            low, middle, high = _planned(config, site, folder / f"{number}.gs")
            results = _run(config, site, folder / str(number))
            took = max(r.ended for r in results) - min(r.started for r in results)
            say(f"campaign {number}: {took:.0f} s, planned {low:.0f} to {high:.0f} s")
            within += low <= took <= high
            errors.append(100 * abs(middle / took - 1))
    what, error = f"{campaigns} real campaigns of {trials} trials", float(np.median(errors))
    return [
        Line(f"{what} within P10 to P90 of their plans", within, "", at_least=float(campaigns)),
        Line(f"{what}: error of the median plan", error, "%", at_most=20.0),
    ]


def _planned(config: RunConfig, site: Site, path: Path) -> list[float]:
    """10th, 50th and 90th percentile of the makespan [s]."""
    view = CampaignView(Console(quiet=True))
    with checked_store(config, path, view) as store:
        planner = Planner(config, site, store, Conditions(node_seconds=0.0), config.seed)
        draws, _ = planner.simulate(view, _DRAWS)
    found: list[float] = np.percentile([d.makespan for d in draws], [10, 50, 90]).tolist()
    return found


def _run(config: RunConfig, site: Site, path: Path) -> list[SegmentResult]:
    """Run a campaign; returns its segments."""
    run_campaign(config, site, path, CampaignView(Console(quiet=True)))
    return list(RunDirectory(path).results())


def _config(name: str, trials: int, seed: int) -> RunConfig:
    values = run_config("planned") | {"name": name, "seed": seed}
    values["search"] |= {"trials": trials}
    return RunConfig.model_validate(values)
