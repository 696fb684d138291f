"""A campaign on a machine that counts its energy, killed once: every joule is where it belongs."""

import json

import pytest
from campaign_cases import CONFIG, write_config
from counter_trees import PmCounters
from driver_cases import PATIENCE, TWO_CORES, lines, start, start_until
from typer.testing import CliRunner

from hydragnn_flow import cli
from hydragnn_flow.campaign.cost_files import CostFile
from hydragnn_flow.execution import load_site
from hydragnn_flow.execution.binding import bound_to
from hydragnn_flow.execution.pools.node_energy import read_node_energy
from hydragnn_flow.placement import measured_power
from hydragnn_flow.report.trials_frame import trials_frame
from hydragnn_flow.run_directory import RunDirectory

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]
SOCKETS, NODE = 200.0, 500.0
"""Power of the processors, which segments are charged with, and of the whole node [W]."""


def test_every_joule_is_where_it_belongs(tmp_path, monkeypatch):
    monkeypatch.setenv("HOST_SYS", str(tmp_path / "sys"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    search = {**CONFIG["search"], "trials": 4, "objectives": ["val_error", "joules"]}
    config, run, log = write_config(tmp_path, search=search), tmp_path / "run", tmp_path / "output"
    machine = PmCounters(tmp_path / "sys", {"cpu_energy": 1_000, "energy": 50_000})
    with machine.running({"cpu_energy": SOCKETS, "energy": NODE}):
        driver = start_until(
            lambda run: lines(run / "segments.jsonl") > 0, "a segment that ended", config, run, log
        )
        driver.kill()
        driver.wait()
        early = read_node_energy(run)
        last = start(config, run, log)
        assert last.wait(timeout=PATIENCE) == 0, log.read_text()

    segments = list(RunDirectory(run).results())
    assert segments
    for segment in segments:
        assert segment.joules is not None and len(segment.gcds) == 1
        # A slot has half of them. On a busy machine, counters that a thread moves come late.
        expected = SOCKETS / 2 * segment.seconds
        assert segment.joules == pytest.approx(expected, rel=0.3, abs=50)

    # Nodes use more than segments, and are counted through a killed driver.
    summary = json.loads(RunDirectory(run).summary.read_text())
    own = sum(segment.joules or 0.0 for segment in segments)
    assert summary["joules"] == pytest.approx(own) and summary["uncounted"] == 0
    assert summary["counters"] == ["pm_counters"]
    assert summary["node_joules"] > max(own, early.joules if early else 0.0)
    seconds = summary["counted_node_hours"] * 3600
    assert summary["node_joules"] / seconds == pytest.approx(NODE, rel=0.3)

    frame = trials_frame(run)
    of_trials = sum(s.joules or 0.0 for s in segments if s.kind == "trial")
    assert frame["joules"].sum() == pytest.approx(of_trials)
    assert (frame["value.joules"].dropna() > 0).all()
    page = (run / "report.html").read_text()
    assert "of the nodes in" in page and "the rest idle or not charged" in page
    assert "idle included" in log.read_text()

    # Later plans know what the machine draws.
    with bound_to(TWO_CORES):
        power = measured_power(CostFile(load_site("local")).read())
        assert power is not None and power.rest_watts is not None
        assert power.gcd_watts == pytest.approx(SOCKETS / 2, rel=0.4)
        assert power.rest_watts == pytest.approx(NODE - own / seconds, rel=0.3)
        command = ["plan", str(config), "--store", str(run / "store.gs"), "--draws", "3"]
        found = CliRunner().invoke(cli.app, command, env={"COLUMNS": "200"}, catch_exceptions=False)
    assert found.exit_code == 0
    assert "energy of segments [kWh]" in found.output
    assert "energy of nodes, idle included [kWh]" in found.output
    assert "W of a GCD at work, from the" in found.output
    assert "W for the rest of each node" in found.output
