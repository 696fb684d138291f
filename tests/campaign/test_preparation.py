"""The preparation on a site's pools, with the machine faked and everything else real."""

import pytest
from job_cases import CallsHere, ended

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import prepare_store
from hydragnn_flow.data.preparing import prepare as preparing
from hydragnn_flow.data.sources import emt_alloys
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution import Node, Site
from hydragnn_flow.execution.jobs import Jobs, Task, run_calls
from hydragnn_flow.placement import Gcd

NODE = Node(("0",), Gcd(8, 1e10, 1e10, 1e-5, 0.5, 2), 1, "cpu")


def prepared(folder, machine, nodes):
    pools = CallsHere(machine, *nodes)
    site = Site("fake", len(nodes), NODE, lambda directory: None)
    source = {"format": "emt_alloys", "structures": 30, "atoms": [8, 8]}
    data = DataConfig.model_validate({"source": source, "split": {"val": 0.2, "test": 0.1}})
    work = "preparing the store"

    def workers(requests):
        jobs = Jobs[Task](pools, site)
        return run_calls(jobs, "preparation", "hydragnn_flow.data:run_task", requests, work)

    return prepare_store(data, 4.0, 12, 0, folder / "store.gs", workers=workers), pools


@pytest.fixture(autouse=True)
def always_by_workers(monkeypatch):
    monkeypatch.setattr(preparing, "_FEW", 0)
    monkeypatch.setattr(preparing, "_FEWEST", 4)
    monkeypatch.setattr(emt_alloys, "_PER_CHUNK", 4)


@pytest.mark.parametrize("status", ["refused", "killed"])
def test_a_bad_node_among_others_costs_no_preparation(tmp_path, status):
    def machine(node, request):
        return ended(status, "its process was killed by SIGBUS") if node == "bad" else None

    store, pools = prepared(tmp_path, machine, ["bad", "node1", "node2", "node3"])
    assert sum(len(store[name]) for name in store.splits) == 30
    assert pools.health.is_of_no_use("bad") == (status == "refused")
    failed = {what for node, what in pools.ran if node == "bad"}
    assert failed and failed <= {what for node, what in pools.ran if node != "bad"}


def left_of(folder):
    """Tasks whose work stays for the next preparation."""
    return len(list(folder.glob(".store.gs.preparing/*/unit-*/record.pickle")))


def test_a_pool_that_breaks_while_tasks_are_sent_deletes_no_work(tmp_path, monkeypatch):
    """It is the site's fault, not the input's: what is prepared stays."""
    run = CallsHere.run

    def broken(self, ranks, node):
        if len(self.ran) == 3:
            raise InputError("site fake: its workers do not fit the driver")
        return run(self, ranks, node)

    monkeypatch.setattr(CallsHere, "run", broken)
    with pytest.raises(InputError, match="do not fit the driver"):
        prepared(tmp_path, lambda node, request: None, ["node1", "node2"])
    assert left_of(tmp_path) == 3


def test_a_disk_that_fails_for_minutes_is_no_failure_of_a_task(tmp_path):
    failures = [ended("lost", "the disk failed (No space left on device)")] * 5

    def machine(node, request):
        return failures.pop() if failures else None

    store, pools = prepared(tmp_path, machine, ["node1"])
    assert sum(len(store[name]) for name in store.splits) == 30
    assert not pools.health.is_suspect("node1")


def test_nodes_that_all_have_fewer_devices_are_no_fault_of_the_input(tmp_path):
    """So what is prepared stays."""
    done = 0

    def machine(node, request):
        nonlocal done
        if done == 3:
            return ended("refused", f"GCD 4 of {node}: the batch job was given only 4")
        done += 1
        return None

    with pytest.raises(InputError, match=r"GCD 4 of node\d"):
        prepared(tmp_path, machine, ["node1", "node2"])
    assert left_of(tmp_path) == 3


def test_a_task_that_fails_everywhere_names_the_nodes(tmp_path):
    def machine(node, request):
        is_bad = request["directory"].endswith("unit-00001")
        return ended("killed", "its process was killed by SIGKILL") if is_bad else None

    with pytest.raises(CampaignStopped, match=r"on node1, node2, node3: .*SIGKILL"):
        prepared(tmp_path, machine, ["node1", "node2", "node3"])
