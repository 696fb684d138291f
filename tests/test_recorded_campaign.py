"""A campaign that really ran on this machine, and the simulation of its record."""

from dataclasses import replace

import pytest
from campaign_cases import write_config
from rich.console import Console

from hydragnn_flow import load_config, load_site, run_campaign
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import read_trials
from hydragnn_flow.simulation import Conditions, simulate


def states(path):
    return [(trial.number, trial.state) for trial in read_trials(path)]


def segments(path):
    return sorted(RunDirectory(path).results(), key=lambda result: result.started)


@pytest.mark.slow
def test_a_real_campaign_is_reproduced(tmp_path):
    config, site, run = load_config(write_config(tmp_path)), load_site("local"), tmp_path / "run"
    # On one GCD no result races another, so what follows from what is the same again.
    site = replace(site, node=replace(site.node, gcds=site.node.gcds[:1]))
    view = CampaignView(Console(quiet=True))
    run_campaign(config, site, run, view)
    simulate(
        config,
        site,
        tmp_path / "simulated",
        view,
        conditions=Conditions(node_seconds=0.0, interference=0.0),
        store=run / "store.gs",
        recorded=run,
    )
    assert "pruned" in dict(states(run)).values()
    assert states(tmp_path / "simulated") == states(run)
    for real, simulated in zip(segments(run), segments(tmp_path / "simulated"), strict=True):
        assert real.kind == simulated.kind
        assert (real.number, real.rung) == (simulated.number, simulated.rung)
        assert simulated.seconds == pytest.approx(real.seconds)
