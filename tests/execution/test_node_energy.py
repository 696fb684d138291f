"""Energy of nodes: from the counters of real agents to the run directory."""

import os

import pytest
from counter_trees import PmCounters
from pool_cases import site, update_until

from hydragnn_flow.energy_counters import Reading
from hydragnn_flow.execution.pools.node_energy import (
    ENERGY_FILE,
    EnergyFile,
    NodeEnergy,
    read_node_energy,
)
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.execution.pools.waits import WAITS


@pytest.mark.xdist_group("processes")
def test_nodes_are_counted_at_work_and_idle(tmp_path, monkeypatch):
    monkeypatch.setenv("HOST_SYS", str(tmp_path / "sys"))
    monkeypatch.setattr(WAITS, "readings", 0.5)
    node = PmCounters(tmp_path / "sys", {"energy": 1_000_000})
    run = tmp_path / "run"
    run.mkdir()

    def used():
        return read_node_energy(run) or NodeEnergy()

    # The counters are refreshed, and count what this test says.
    with node.running({}), Pool(site(), run / "parsl") as pools:
        # A node that has nothing to do says what it uses by its signs of life.
        update_until(pools, lambda: used().agents >= 1, demand=1)
        early = used()
        node.set(energy=1_001_000)
        update_until(pools, lambda: used().joules >= 1000.0, demand=1)
        idle = used()
        assert (idle.joules, idle.agents, idle.counters) == (1000.0, 1, ("pm_counters",))
        assert idle.node_seconds > early.node_seconds
        node.set(energy=1_001_300)
        last = pools.submit(os.getpid)  # the last of it comes with the results
        update_until(pools, last.done, demand=1)
    assert (used().joules, used().agents) == (1300.0, 1)
    assert used().node_seconds > idle.node_seconds


def test_the_last_reading_of_each_agent_counts(tmp_path):
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
