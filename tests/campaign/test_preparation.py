"""The preparation on a site's pools, with the machine faked and everything else real."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from hydragnn_flow.campaign.pool_workers import PoolWorkers
from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import prepare_store
from hydragnn_flow.data.preparing import prepare as preparing
from hydragnn_flow.data.preparing import run_task
from hydragnn_flow.data.sources import emt_alloys
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution import Node, Site
from hydragnn_flow.execution.pools.node_health import NodeHealth
from hydragnn_flow.execution.workers.worker import TaskEnd
from hydragnn_flow.placement import Gcd

NODE = Node(("0",), Gcd(8, 1e10, 1e10, 1e-5, 0.5, 2), 1, "cpu")

Machine = Callable[[str, dict[str, Any]], TaskEnd]


class FakePool:
    """Runs tasks at once, by a function of the test's, on the node that is free again first."""

    def __init__(self, machine, nodes):
        self._machine, self._nodes, self._next = machine, nodes, 0
        self.health = NodeHealth()
        self.given: list[str] = []

    def update(self):
        self.health.check(len(self._nodes), set())

    def waiting(self):
        return ""

    def record(self, node, work, worked):
        self.health.record(node, work, worked)

    def avoid(self, node, reason):
        self.health.condemn(node, reason)

    def submit(self, runs, node, function, request):
        free = [each for each in self._nodes if not self.health.is_suspect(each)] or self._nodes
        # A node that fails is free again at once; the others take turns.
        where = "bad" if "bad" in free else free[self._next % len(free)]
        self._next += 1
        self.given.append(where)
        future: Future[TaskEnd] = Future()
        future.set_result(self._machine(where, request))
        return future


def good(node, request):
    run_task(request)
    return TaskEnd(node, "ok")


def prepared(folder, machine, nodes):
    pools = FakePool(machine, nodes)
    site = Site("fake", len(nodes), NODE, lambda directory: None)
    data = DataConfig.model_validate(
        {
            "source": {"format": "emt_alloys", "structures": 60, "atoms": [8, 8]},
            "split": {"val": 0.2, "test": 0.1},
        }
    )
    workers = PoolWorkers(site, lambda: pools, "hydragnn_flow.data:run_task")
    return prepare_store(data, 4.0, 12, 0, folder / "store.gs", workers=workers), pools


@pytest.fixture(autouse=True)
def always_by_workers(monkeypatch):
    monkeypatch.setattr(preparing, "_FEW", 0)
    monkeypatch.setattr(preparing, "_FEWEST", 8)
    monkeypatch.setattr(emt_alloys, "_PER_CHUNK", 8)


@pytest.mark.parametrize("status", ["refused", "failed"])
def test_a_bad_node_among_others_costs_no_preparation(tmp_path, status):
    def machine(node, request):
        if node == "bad":
            return TaskEnd(node, status, "its process was killed by SIGBUS")
        return good(node, request)

    store, pools = prepared(tmp_path, machine, ["bad", "node1", "node2", "node3"])
    assert sum(len(store[name]) for name in store.splits) == 60
    assert pools.health.is_suspect("bad")
    assert {"node1", "node2", "node3"} <= set(pools.given)


def test_a_disk_that_fails_for_minutes_is_no_failure_of_a_task(tmp_path):
    failures = 5

    def machine(node, request):
        nonlocal failures
        if failures:
            failures -= 1
            return TaskEnd(node, "lost", "the disk failed (No space left on device)")
        return good(node, request)

    store, pools = prepared(tmp_path, machine, ["node1"])
    assert sum(len(store[name]) for name in store.splits) == 60
    assert not pools.health.is_suspect("node1")


def test_nodes_that_all_have_fewer_devices_are_no_fault_of_the_input(tmp_path):
    """So what is prepared stays."""
    done = 0

    def machine(node, request):
        nonlocal done
        if done == 3:
            return TaskEnd(node, "refused", f"GCD 4 of {node}: the batch job was given only 4")
        done += 1
        return good(node, request)

    with pytest.raises(InputError, match=r"GCD 4 of node\d"):
        prepared(tmp_path, machine, ["node1", "node2"])
    assert len(list(tmp_path.glob(".store.gs.preparing/*/unit-*/record.json"))) == 3


def test_a_task_that_fails_everywhere_names_the_nodes(tmp_path):
    def machine(node, request):
        if request["directory"].endswith("unit-00001"):
            return TaskEnd(node, "failed", "its process was killed by SIGKILL")
        return good(node, request)

    with pytest.raises(CampaignStopped, match=r"on node1, node2, node3: .*SIGKILL"):
        prepared(tmp_path, machine, ["node1", "node2", "node3"])
