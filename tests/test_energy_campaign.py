"""A campaign on a machine that counts its energy, killed once: every joule is where it belongs."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from campaign_cases import CONFIG, write_config
from counter_trees import PmCounters
from driver_cases import PATIENCE, TWO_CORES, lines, start, start_until
from typer.testing import CliRunner

from hydragnn_flow import cli
from hydragnn_flow.campaign.cost_files import CostFiles
from hydragnn_flow.execution import load_site
from hydragnn_flow.execution.binding import bound_to
from hydragnn_flow.execution.pools.node_energy import read_node_energy
from hydragnn_flow.placement import measured_power
from hydragnn_flow.report.trials_frame import trials_frame
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import SegmentResult

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]
SOCKETS, NODE = 200.0, 500.0
"""Power of the processors, which segments are charged with, and of the whole node [W]."""


class Counted(NamedTuple):
    run: Path
    log: Path
    segments: list[SegmentResult]
    summary: dict[str, Any]
    early: float
    """Joules that the nodes had used when the first driver was killed."""


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("energy")
    search = {**CONFIG["search"], "trials": 4, "objectives": ["val_error", "joules"]}
    config = write_config(folder, search=search)
    files = config, folder / "run", folder / "output"
    machine = PmCounters(folder / "sys", {"cpu_energy": 1_000, "energy": 50_000})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOST_SYS", str(folder / "sys"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        with machine.running({"cpu_energy": SOCKETS, "energy": NODE}):
            driver = start_until(
                lambda run: lines(run / "segments.jsonl") > 0, "a segment that ended", *files
            )
            driver.kill()
            driver.wait()
            early = read_node_energy(files[1])
            last = start(*files)
            assert last.wait(timeout=PATIENCE) == 0, files[2].read_text()
        directory = RunDirectory(files[1])
        summary = json.loads(directory.summary.read_text())
        before = early.joules if early else 0.0
        yield Counted(*files[1:], list(directory.results()), summary, before)


def test_each_segment_is_charged_with_its_slots_part_of_the_sockets(counted):
    assert counted.segments
    for segment in counted.segments:
        assert segment.joules is not None and len(segment.gcds) == 1
        # A slot has half of them. On a busy machine, counters that a thread moves come late.
        expected = SOCKETS / 2 * segment.seconds
        assert segment.joules == pytest.approx(expected, rel=0.3, abs=50)


def test_nodes_use_more_than_segments_and_are_counted_through_a_killed_driver(counted):
    summary = counted.summary
    own = sum(segment.joules or 0.0 for segment in counted.segments)
    assert summary["joules"] == pytest.approx(own) and summary["uncounted"] == 0
    assert summary["counters"] == ["pm_counters"]
    assert summary["node_joules"] > max(own, counted.early)
    watts = summary["node_joules"] / summary["counted_node_hours"] / 3600
    assert watts == pytest.approx(NODE, rel=0.3)


def test_trials_and_the_campaign_say_what_they_used(counted):
    frame = trials_frame(counted.run)
    of_trials = sum(s.joules or 0.0 for s in counted.segments if s.kind == "trial")
    assert frame["joules"].sum() == pytest.approx(of_trials)
    assert (frame["value.joules"].dropna() > 0).all()
    page = (counted.run / "report.html").read_text()
    assert "of the nodes in" in page and "the rest idle or not charged" in page
    assert "idle included" in counted.log.read_text()


def test_later_plans_know_what_the_machine_draws(counted, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(counted.run.parent / "cache"))
    with bound_to(TWO_CORES):
        site = load_site("local")
        power = measured_power(CostFiles(site).read())
        assert power is not None and power.rest_watts is not None
        assert power.gcd_watts == pytest.approx(SOCKETS / 2, rel=0.4)
        own = sum(segment.joules or 0.0 for segment in counted.segments)
        seconds = counted.summary["counted_node_hours"] * 3600
        assert power.rest_watts == pytest.approx(NODE - own / seconds, rel=0.3)
        config = str(counted.run.parent / "small.yaml")
        store = str(counted.run / "store.gs")
        command = ["plan", config, "--store", store, "--draws", "3"]
        found = CliRunner().invoke(cli.app, command, env={"COLUMNS": "200"}, catch_exceptions=False)
    assert found.exit_code == 0
    assert "energy of segments [kWh]" in found.output
    assert "energy of nodes, idle included [kWh]" in found.output
    assert "W of a GCD at work, from the" in found.output
    assert "W for the rest of each node" in found.output
