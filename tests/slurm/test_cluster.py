"""The test cluster itself: what the other tests here rely on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from cluster import GCDS, INTERFACE

pytestmark = pytest.mark.slurm

ABOUT = f"echo $(hostname) $ROCR_VISIBLE_DEVICES $(ip -4 -brief addr show {INTERFACE})"
HELD_UNTIL_KILLED = """
import sys, time
from cluster import Cluster
with Cluster(2) as cluster:
    print(*cluster.home.parts, flush=True)
    time.sleep(600)
"""


def test_four_nodes_have_eight_gcds_each_and_addresses_of_their_own(cluster):
    words = ("srun", "--nodes=4", "--ntasks-per-node=1", f"--gpus-per-node={GCDS}")
    lines = cluster.ask(*words, "sh", "-c", ABOUT).splitlines()
    hosts, gcds, _, _, addresses = zip(*map(str.split, lines), strict=True)
    assert set(hosts) == set(cluster.nodes)
    assert set(gcds) == {",".join(map(str, range(GCDS)))}
    assert len(set(addresses)) == 4


def test_a_node_that_loses_power_takes_its_processes_along(cluster):
    job = cluster.ask(
        "sbatch", "--parsable", "--no-kill", "-N2", "--output=/dev/null", "--wrap", "srun sleep 600"
    )
    assert cluster.wait_until(lambda: cluster.squeue()[0].state == "RUNNING")
    node = cluster.nodes[1]
    assert cluster.wait_until(lambda: any(p.name() == "sleep" for p in cluster.processes(node)))
    there = cluster.processes(node)
    cluster.power_off(node)
    _, alive = psutil.wait_procs(there, timeout=60)
    assert not alive
    assert [entry.number for entry in cluster.squeue()] == [job.strip()]
    cluster.clear()
    assert cluster.processes(node)
    assert not cluster.squeue()


def test_a_cluster_ends_with_whoever_started_it():
    holder = subprocess.Popen(
        [sys.executable, "-c", HELD_UNTIL_KILLED],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    home = Path(*holder.stdout.readline().split())
    family = psutil.Process(holder.pid).children(recursive=True)
    assert {"slurmctld", "slurmd", "munged"} <= {process.name() for process in family}
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    give_up = time.monotonic() + 60
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in family):
        assert time.monotonic() < give_up, family
        time.sleep(0.05)
    subprocess.run(["rm", "-rf", str(home)], check=True)
