"""Energy of nodes: from the counters of real agents to the run directory."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from counter_trees import PmCounters
from pool_cases import site, update_until

from hydragnn_flow.energy_counters import Reading
from hydragnn_flow.execution.pools import pool
from hydragnn_flow.execution.pools.node_energy import (
    ENERGY_FILE,
    EnergyFile,
    NodeEnergy,
    read_node_energy,
)
from hydragnn_flow.execution.pools.pool import Pool

WATTS = 500.0


@pytest.mark.xdist_group("processes")
def test_nodes_are_counted_at_work_and_idle_by_driver_after_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_SYS", str(tmp_path / "sys"))
    monkeypatch.setattr(pool, "SECONDS_BETWEEN_READINGS", 0.5)
    node = PmCounters(tmp_path / "sys", {"energy": 1_000_000})
    run = tmp_path / "run"
    run.mkdir()

    def used() -> NodeEnergy:
        return read_node_energy(run) or NodeEnergy()

    with node.running({"energy": WATTS}):
        with Pool(site(), run / "parsl") as pools:
            update_until(pools, pools.hosts, demand=1)
            task = pools.submit(os.getpid)
            update_until(pools, task.done, demand=1)
            at_work = used()
            # A node that has nothing to do says what it uses by its signs of life.
            update_until(pools, lambda: used().node_seconds > at_work.node_seconds + 2, demand=1)
            early = used()
        first = used()
        with Pool(site(), run / "parsl") as pools:
            update_until(pools, pools.hosts, demand=1)
            assert used() == first, "what an earlier driver has counted stays"
            time.sleep(1.0)
            # The last of it comes with the results.
            pools.submit(os.getpid).result(60)
    both = used()
    assert first.node_seconds >= early.node_seconds
    assert (first.agents, both.agents) == (1, 2) and both.counters == ("pm_counters",)
    assert both.node_seconds > first.node_seconds + 1
    # A thread moves the counters, which comes late on a busy machine.
    for counted in (first, both):
        assert counted.joules == pytest.approx(WATTS * counted.node_seconds, rel=0.3, abs=150)


@pytest.mark.xdist_group("processes")
def test_nothing_is_written_where_nothing_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_SYS", str(tmp_path / "sys"))
    with Pool(site(), tmp_path / "parsl") as pools:
        update_until(pools, pools.hosts, demand=1)
        pools.submit(os.getpid).result(60)
    assert not (tmp_path / ENERGY_FILE).exists() and read_node_energy(tmp_path) is None


def test_the_last_reading_of_each_agent_counts(tmp_path: Path) -> None:
    file = EnergyFile(tmp_path)
    file.record([])
    assert read_node_energy(tmp_path) is None
    file.record([("a", Reading(50.0, 5.0, "RAPL")), ("b", Reading(10.0, 1.0, "pm_counters"))])
    # Messages of one agent come in any order.
    file.record([("a", Reading(30.0, 3.0, "RAPL")), ("b", Reading(20.0, 2.0, "pm_counters"))])
    expected = NodeEnergy(70.0, 7.0, 2, ("RAPL", "pm_counters"))
    assert read_node_energy(tmp_path) == expected
    EnergyFile(tmp_path).record([("c", Reading(1.0, 1.0, "RAPL"))])
    assert read_node_energy(tmp_path) == NodeEnergy(71.0, 8.0, 3, ("RAPL", "pm_counters"))
    (tmp_path / ENERGY_FILE).write_text('{"joules": "many"}')
    assert read_node_energy(tmp_path) is None
