"""`hydragnn-flow site check`: what real workers find, and what is said when it is wrong."""

import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from counter_trees import PmCounters
from trainer_cases import call, called, trainer_of
from typer.testing import CliRunner

from hydragnn_flow.cli import app
from hydragnn_flow.data import GraphStore
from hydragnn_flow.execution import Node, Rank, Site, merged, run_ranks, site_probe
from hydragnn_flow.execution import site_check as check
from hydragnn_flow.execution.site import guessed_gcd
from hydragnn_flow.execution.site_check import faults

pytestmark = pytest.mark.xdist_group("processes")

CORE = str(min(os.sched_getaffinity(0)))
NODE = Node(("0", "1"), guessed_gcd("cpu", 1.0), 1, "cpu", cores=(CORE, CORE), interface="lo")
CHECKS = "hydragnn_flow.execution.site_probe:"


def probed(node, request):
    """What is reported of each GCD."""
    reports = []
    for number, gcd in enumerate(node.gcds):
        end = called(f"{CHECKS}probe", request, number, node)
        reports.append(check._known(end, gcd) | check._answer(end))
    return reports


def test_every_gcd_says_what_it_has(alloy_store, tmp_path, monkeypatch):
    monkeypatch.setenv("HOST_SYS", str(tmp_path))
    PmCounters(tmp_path, {"energy": 5, "accel0_energy": 1})
    request = {"device": "cpu", "store": str(alloy_store.path), "interface": "lo"}
    before = os.sched_getaffinity(0)
    reports = probed(NODE, request)
    assert [report["gcd"] for report in reports] == ["0", "1"]
    for report in reports:
        assert report["cores"] == [int(CORE)]
        assert report["threads"] == 1
        assert report["torch"] == torch.__version__
        assert report["graphs"] == sum(len(alloy_store[name]) for name in alloy_store.splits)
        assert report["address"] == "127.0.0.1"
        assert (report["energy"], report["node_energy"]) == ("", "pm_counters")
        trainer = psutil.Process(trainer_of(int(report["gcd"]), node=NODE).pid)
        assert 0 < report["start_seconds"] < time.time() - trainer.create_time()
        threads = {tuple(os.sched_getaffinity(thread.id)) for thread in trainer.threads()}
        assert threads == {(int(CORE),)}, "not bound to the cores of its GCD"
    assert os.sched_getaffinity(0) == before, "this process was bound as well"
    assert faults(site(NODE), reports, []) == []


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"interface": "hsn9"}, "has no network interface 'hsn9'"),
        ({"store": "/no/such/store"}, "/no/such/store does not exist"),
        ({"device": "cuda"}, "sees 0 devices"),
    ],
)
def test_what_a_gcd_cannot_do_is_its_fault(request_, says):
    request = {"device": "cpu", "store": None, "interface": None} | request_
    found = faults(site(NODE), probed(NODE, request), [])
    assert [fault.partition(" of ")[0] for fault in found] == ["GCD 0", "GCD 1"]
    assert all(says in fault for fault in found)


def site(node, nodes=1):
    return Site("mine", nodes, node, lambda directory: None)


GPUS = Node(("0", "1"), guessed_gcd("cuda", 36), 8, "cuda", cores=("0-7", "8-15"))


def gpu(host, gcd, **found):
    """What a GPU that is as it should be reports."""
    cores = list(range(16))
    usual = {"host": host, "gcd": gcd, "identity": gcd, "memory_gib": 39.4, "cores": cores}
    return usual | found


RIGHT = {"between": "two GCDs of a node", "gb_per_s": 90.0, "missing": ""}
SLOW = {"between": "two nodes", "gb_per_s": 1.0, "missing": "librccl-net.so: no such file"}
SILENT = {"between": "two nodes", "fault": "only 1 of 2 ranks met in 120 s"}
SAME = "is the same device as GCD"


@pytest.mark.parametrize(
    ("second", "exchange", "says"),
    [
        (gpu("a", "1"), RIGHT, []),
        (gpu("a", "1", identity="0"), RIGHT, [f"GCD 0 of a: {SAME} 1", f"GCD 1 of a: {SAME} 0"]),
        (gpu("a", "1", memory_gib=23.6), RIGHT, ["GCD 1 of a: has 23.6 GiB of memory"]),
        (gpu("a", "1", cores=[0, 1]), RIGHT, ["GCD 1 of a: may not use all of the cores 8-15"]),
        (gpu("a", "1", not_replayed="it hung"), RIGHT, ["GCD 1 of a: cannot replay recorded"]),
        ({"host": "a", "gcd": "1", "fault": "exit code 1"}, RIGHT, ["GCD 1 of a: exit code 1"]),
        (
            gpu("a", "1"),
            SLOW,
            ["two nodes: exchange data by slow sockets, without a plugin for Slingshot (librccl"],
        ),
        (gpu("a", "1"), SILENT, [f"two nodes: exchange no data ({SILENT['fault']})"]),
    ],
)
def test_what_is_not_as_the_site_says_is_named(second, exchange, says):
    found = faults(site(GPUS), [gpu("a", "0"), second], [RIGHT, exchange])
    assert len(found) == len(says)
    assert all(fault.startswith(said) for fault, said in zip(found, says, strict=True))


def test_a_node_that_did_not_answer_is_missed():
    lost = {"host": "a node", "gcd": "", "fault": "ManagerLost: gone"}
    reports = [gpu(host, gcd) for host in ("a", "b") for gcd in ("0", "1")]
    found = faults(site(GPUS, nodes=3), [*reports, lost], [])
    assert found == ["only 2 of the block's 3 nodes answered", "a node: ManagerLost: gone"]


def test_whether_a_gpu_replays_is_found_out_in_a_process_that_may_fail(monkeypatch):
    """As on this machine, which has none."""
    monkeypatch.setitem(site_probe.RECORDERS, "cpu", None)
    assert "status 1" in site_probe._not_replayed("cpu")
    monkeypatch.setenv("HYDRAGNN_FLOW_REPLAY", "0")
    assert site_probe._not_replayed("cpu") == ""


class Wrong:
    """A recorder whose replays do nothing."""

    def __init__(self, device):
        pass

    def record(self, function):
        return lambda: None


def test_replays_that_compute_something_else_are_noticed(monkeypatch):
    monkeypatch.setitem(site_probe.RECORDERS, "cpu", Wrong)
    with pytest.raises(RuntimeError, match="something else"):
        site_probe.replay("cpu")
    monkeypatch.setattr(Wrong, "record", lambda self, function: function)
    site_probe.replay("cpu")


# What each device misses with each value of NCCL_NET_PLUGIN, in a process of its own.
LOADS = """
import json, os
from hydragnn_flow.execution.site_probe import missing_plugin
for value in json.loads(os.environ["VALUES"]):
    os.environ["NCCL_NET_PLUGIN"] = value
    print(json.dumps([missing_plugin(device) for device in ("cuda", "hip", "xpu", "cpu")]))
"""


def test_a_plugin_is_looked_for_where_nccl_and_rccl_do(tmp_path):
    """By the loader, or where NCCL_NET_PLUGIN says: a path, a name or the end of one."""
    library = next(Path(psutil.__file__).parent.glob("*.abi3.so"))
    for name in ("libnccl-net.so", "libnccl-net-ofi.so"):
        (tmp_path / name).symlink_to(library)
    values = ["", "ofi", f"none,{tmp_path}/libnccl-net.so", "none", f"{tmp_path}/not.so"]
    found = {}
    for folder in ("/no/such/folder", str(tmp_path)):
        variables = {"LD_LIBRARY_PATH": folder, "VALUES": json.dumps(values)}
        said = subprocess.check_output(
            [sys.executable, "-c", LOADS], env={**os.environ, **variables}, text=True
        )
        answers = [json.loads(line) for line in said.splitlines()]
        assert all(answer[2:] == ["", ""] for answer in answers), "oneCCL and gloo need none"
        found[folder] = [[why.partition(":")[0] for why in answer[:2]] for answer in answers]
    none, wrong = ["none", "none"], [f"{tmp_path}/not.so"] * 2
    assert found[str(tmp_path)] == [["", ""], ["", ""], ["", ""], none, wrong]
    absent = [["libnccl-net.so", "librccl-net.so"], ["ofi", "ofi"], ["", ""], none, wrong]
    assert found["/no/such/folder"] == absent


def test_two_gcds_exchange_data(tmp_path):
    job = call(f"{CHECKS}exchange", {"device": "cpu", "interface": None})
    job = replace(job, directory=str(tmp_path), attempt="1")
    end = merged(run_ranks(NODE, [Rank(job, rank, 2, gcd=rank) for rank in range(2)]))
    assert end.status == "ok", end.reason
    assert end.answer["gb_per_s"] > 0 and end.answer["missing"] == ""


@pytest.fixture
def one_core():
    """This machine as one with a single core, so that a check starts a single trainer process."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {int(CORE)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("one_core")
def test_check_of_a_wrong_site_fails_and_says_why(tmp_path, monkeypatch):
    """The store is on a file system that this process has and the nodes have not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(GraphStore, "open", lambda path: nullcontext())
    ran = CliRunner().invoke(app, ["site", "check", "local", "--store", "missing.gs"])
    assert ran.exit_code == 1, ran.output
    assert "what counts energy" not in ran.output
    assert "missing.gs does not exist" in ran.output.replace("\n", "")
    assert (tmp_path / "runs" / "check-local").is_dir()
