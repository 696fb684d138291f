"""Gangs: workers that run the ranks of one segment together, killed, stopped and left out."""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from driver_cases import command_of
from segment_cases import make_spec
from trainer_cases import LONG, PATIENCE, checkpoint, trainers_below

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import merged
from hydragnn_flow.execution.binding import LOOPBACK
from hydragnn_flow.execution.workers import rendezvous as rendezvous_module
from hydragnn_flow.execution.workers.rendezvous import RanksMissing
from hydragnn_flow.segment import SegmentResult, TrainingOutcome
from hydragnn_flow.training.monitor import SPARE_SECONDS
from hydragnn_flow.training.runner import run_segment

pytestmark = pytest.mark.xdist_group("processes")

HERE = Path(__file__).parent


class Worker:
    """A worker process, which runs its group of one gang after another in warm trainer processes.

    Parameters
    ----------
    prefix
        Words before its command: those of a node with a network of its own.
    """

    def __init__(self, prefix):
        self.prefix = prefix
        self.interface = "hsn0" if prefix else LOOPBACK
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(HERE / "gang_worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, spec, each=1, number=0, **rank):
        """So many ranks of a segment, on GCDs one after the other."""
        places = [{"number": number + k, "gcd": k, "nodes": 2} | rank for k in range(each)]
        self._say({"spec": spec.to_dict(), "ranks": places, "interface": self.interface})

    def call_off(self, spec, reason):
        self._say({"call off": [spec.attempt, reason]})

    def _say(self, message):
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def result(self):
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE)[0], "it was left waiting"
        return merged([SegmentResult(**one) for one in json.loads(self.process.stdout.readline())])

    def listens_on(self):
        """Addresses of its machine, as Linux writes them, on which anybody listens."""
        net = Path(f"/proc/{self.process.pid}/net")
        rows = [row for file in ("tcp", "tcp6") for row in (net / file).read_text().splitlines()]
        return {row.split()[1].partition(":")[0] for row in rows if row.split()[3] == "0A"}

    @property
    def trainers(self):
        return trainers_below(psutil.Process(self.process.pid))

    def end(self):
        if self.process.poll() is not None:
            return
        trainers = self.trainers
        self.process.kill()
        self.process.wait()
        for trainer in trainers:
            with suppress(psutil.NoSuchProcess):
                trainer.kill()


@pytest.fixture(scope="module")
def nodes():
    """Commands that run a program on one of two machines joined by a cable, `hsn0` to `hsn0`.

    Each is a network namespace of its own, without a name server and without any other network.
    None where this machine cannot make any.
    """
    if os.geteuid() != 0 or not shutil.which("ip"):
        yield []
        return
    names = [f"hf{os.getpid()}{letter}" for letter in "ab"]
    made = []
    try:
        for name in names:
            if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
                yield []
                return
            made.append(name)
        ends = [word for name in names for word in ("name", "hsn0", "netns", name)]
        ip("link", "add", *ends[:4], "type", "veth", "peer", *ends[4:])
        for number, name in enumerate(names, start=1):
            ip("-n", name, "address", "add", f"10.178.0.{number}/24", "dev", "hsn0")
            for interface in ("lo", "hsn0"):
                ip("-n", name, "link", "set", interface, "up")
        as_host = [["sh", "-c", f'hostname {name}; exec "$@"', "sh"] for name in names]
        inside = [["ip", "netns", "exec", name, "unshare", "--uts"] for name in names]
        yield [[*node, *host] for node, host in zip(inside, as_host, strict=True)]
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


@pytest.fixture(scope="module")
def two_workers(nodes):
    workers = [Worker(node) for node in nodes or [[], []]]
    yield workers
    for worker in workers:
        worker.end()


@pytest.fixture
def workers(two_workers):
    """Workers on two nodes, or here; one that a test has killed is replaced."""
    for number, worker in enumerate(two_workers):
        if worker.process.poll() is not None:
            two_workers[number] = Worker(worker.prefix)
    return two_workers


def gang(folder, store, epochs, **changes):
    """A segment as a driver sends it."""
    return make_spec(folder, store, epochs, attempt=uuid.uuid4().hex, **changes)


def send(workers, spec, each=1, **group):
    """So many ranks to each of some workers."""
    for place, worker in enumerate(workers):
        worker.send(spec, each, number=each * place, world=each * len(workers), **group)


@pytest.mark.parametrize("each", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_gang_of_two_workers_equals_one_process(tmp_path, alloy_store, nodes, workers, each):
    spec = gang(tmp_path / "gang", alloy_store, 3, kind="member")
    spec.folder.rmdir()  # a driver leaves it to the first who needs it
    send(workers, spec, each)
    group_results = [worker.result() for worker in workers]
    result = merged(group_results)
    assert (result.status, result.to_epoch) == ("ok", 3), result.reason
    other = result.gcds[-1].rpartition("/")[0]
    gcds = [str(gcd) for gcd in range(each)]
    assert result.gcds == gcds + [f"{other}/{gcd}" if nodes else gcd for gcd in gcds]
    assert (other not in ("", result.node)) is bool(nodes)
    assert result.cpu_seconds == sum(group_result.cpu_seconds for group_result in group_results)
    alone = run_segment(make_spec(tmp_path / "alone", alloy_store, 3))
    np.testing.assert_allclose(result.history, alone.history, rtol=1e-5)
    assert group_results[0].history == group_results[1].history
    assert not nodes or not any(worker.listens_on() for worker in workers), "they go on listening"


def test_a_gang_saves_before_its_deadline(tmp_path, alloy_store, workers):
    for seconds in (6, 60, 300):  # on a busy machine a gang takes long to take its first step
        send(workers, gang(tmp_path / "gang", alloy_store, LONG), seconds=SPARE_SECONDS + seconds)
        group_results = [worker.result() for worker in workers]
        if "its time is up" in group_results[0].reason:
            break
    assert [group_result.status for group_result in group_results] == ["interrupted"] * 2
    assert group_results[0].reason == group_results[1].reason, (
        "the ranks did not end after the same step"
    )
    assert "its time is up" in group_results[0].reason, "its workers ended it, at the deadline"
    again = gang(tmp_path / "gang", alloy_store, group_results[0].to_epoch + 1)
    send(workers, again)
    resumed = merged([worker.result() for worker in workers])
    assert (resumed.status, resumed.from_epoch) == ("ok", group_results[0].to_epoch)
    said = f"in epoch {resumed.from_epoch + 1} after step {resumed.from_step}"
    assert group_results[0].reason.endswith(said)


def test_ranks_listen_on_their_interface_alone_and_a_killed_one_ends_all_groups_until_sent_again(
    tmp_path, alloy_store, nodes, workers
):
    spec = gang(tmp_path / "gang", alloy_store, LONG)
    send(workers, spec)
    checkpoint(spec.folder)
    if nodes:  # 10.178.0.1 and 10.178.0.2
        assert [worker.listens_on() for worker in workers] == [{"0100B20A"}, {"0200B20A"}]
    workers[1].trainers[0].kill()
    group_results = [worker.result() for worker in workers]
    result = merged(group_results)
    assert result.status == "killed", group_results
    assert "SIGKILL" in result.reason
    assert group_results[0].status in ("lost", "interrupted"), group_results[0].reason
    again = gang(tmp_path / "gang", alloy_store, 5)
    send(workers, again)
    resumed = merged([worker.result() for worker in workers])
    assert resumed.status == "ok", resumed.reason
    assert resumed.from_epoch + resumed.from_step > 0


def test_a_group_ends_without_the_others_or_where_it_was_called_off_before(
    tmp_path, alloy_store, workers
):
    spec = gang(tmp_path / "alone", alloy_store, 1)
    workers[1].send(spec, number=1, world=2, seconds_to_meet=3.0)
    alone = workers[1].result()
    assert alone.status == "lost" and "rank 0, which did not come" in alone.reason
    spec = gang(tmp_path / "gang", alloy_store, LONG)
    workers[0].call_off(spec, "node n2 does not answer")
    workers[0].send(spec, world=2)
    late = workers[0].result()
    assert late.status == "interrupted" and "node n2 does not answer" in late.reason


def test_a_gang_that_was_taken_for_lost_spoils_nothing_of_the_next_sending(
    tmp_path, alloy_store, workers
):
    """Both train at the same time, until the nodes of the first notice that nobody listens."""
    first = gang(tmp_path / "gang", alloy_store, LONG)
    send(workers, first)
    checkpoint(first.folder)
    second = gang(tmp_path / "gang", alloy_store, 2)
    send(workers, second, gcd=1)
    result = merged([worker.result() for worker in workers])
    assert result.status == "ok", result.reason
    kept = second.folder / result.checkpoint
    content = kept.read_bytes()
    for worker in workers:
        worker.call_off(first, "nobody waits for it")
    assert [worker.result().status for worker in workers] == ["interrupted"] * 2
    assert kept.read_bytes() == content


def test_a_lost_worker_ends_the_other_group(tmp_path, alloy_store, workers):
    """As where a node dies: the worker and its trainer processes are gone at once."""
    spec = gang(tmp_path / "gang", alloy_store, LONG)
    send(workers, spec)
    checkpoint(spec.folder)
    trainers = [each for each in workers[0].trainers if "trial 0" in command_of(each)]
    assert trainers
    workers[1].end()
    left = workers[0].result()
    assert left.status == "lost", left.reason
    assert not any(trainer.is_running() for trainer in trainers), "torch may hang in it"
    reason = "its worker was lost: no heartbeat"
    gone = SegmentResult.of(spec, TrainingOutcome.cut_short("lost", reason))
    assert merged([left, gone]).reason == gone.reason


def group_result(status, reason="", node="n1", **values):
    outcome = {"to_epoch": 5, "status": status, "reason": reason}
    return SegmentResult(kind="member", number=0, rung=0, node=node, **outcome, **values)


BROKEN = group_result("lost", "the connection to another rank broke", "n2")
ENDED = group_result("interrupted", "another rank of the gang ended: somehow", "n3")
ABORTED = group_result("killed", "SIGABRT", "n4")


@pytest.mark.parametrize(
    ("cause", "consequences"),
    [
        (group_result("killed", "its process was killed by SIGKILL"), [BROKEN, ENDED]),
        (group_result("error", "ValueError: no"), [BROKEN, ENDED]),
        (group_result("out_of_memory", "out of memory"), [ENDED, ABORTED]),
        (group_result("diverged", "training loss is nan"), [ABORTED]),
        (group_result("lost", "its node n9 was lost", node=""), [ABORTED, BROKEN]),
        (group_result("lost", "only 3 of 4 ranks met within 300 s"), [ENDED, ENDED]),
        (group_result("interrupted", "its time is up, in epoch 3 after step 1"), [ENDED]),
    ],
)
def test_a_gang_ends_for_its_cause(cause, consequences):
    for group_results in ([cause, *consequences], [*consequences, cause]):
        result = merged(group_results)
        assert (result.status, result.reason) == (cause.status, cause.reason)


def test_a_gang_has_the_gcds_and_costs_of_all_its_groups():
    result = merged(
        [
            group_result("ok", gcds=["0", "1"], cpu_seconds=1.0, peak_memory_gib=3.0),
            group_result("ok", gcds=["2"], cpu_seconds=2.0, peak_memory_gib=1.0),
            group_result("ok", node="n2", gcds=["0", "1"], cpu_seconds=4.0, peak_memory_gib=4.0),
        ]
    )
    assert result.places == [("n1", "0"), ("n1", "1"), ("n1", "2"), ("n2", "0"), ("n2", "1")]
    assert (result.cpu_seconds, result.peak_memory_gib) == (7.0, 4.0)


@pytest.mark.parametrize(
    ("status", "joules", "expected"),
    [
        ("ok", [100.0, 120.0], 220.0),
        ("ok", [100.0, None], None),  # one node does not count, and the sum would be too small
        ("ok", [0.0, 0.0], 0.0),
        ("interrupted", [100.0, None], 100.0),  # of one that ended badly, what is known counts
        ("lost", [None], None),
    ],
)
def test_a_gang_has_the_energy_of_all_its_groups(status, joules, expected):
    assert merged([group_result(status, joules=value) for value in joules]).joules == expected


def meet(folder, rank, patience=60.0, **changes):
    """A rank that looks for the others in a folder; nobody asks it to stop."""
    here = tempfile.mkdtemp(dir=folder)
    given = {"here": here, "interface": None, "rank": rank, "size": 2} | changes
    return rendezvous_module.rendezvous(
        folder=str(folder), key="key", patience=patience, should_stop=lambda: False, **given
    )


@pytest.mark.parametrize(
    ("steps", "network", "net"),
    [(("7.0", "7.0"), "", None), (("7.0", "7.1"), "", "Socket"), (("7.0", "7.1"), "another", None)],
)
def test_ranks_of_several_job_steps_use_sockets_on_slingshot(
    tmp_path, monkeypatch, capsys, steps, network, net
):
    """It connects processes of one step, and RCCL would wait for the others."""
    monkeypatch.setattr(rendezvous_module, "SLINGSHOT", tmp_path / network)
    monkeypatch.delenv("NCCL_NET", raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", LOOPBACK)  # as it is set here, for it to be restored
    for name in ("CCL_LOCAL_RANK", "CCL_LOCAL_SIZE", "FI_PROVIDER", "FI_TCP_IFACE"):
        monkeypatch.setenv(name, "cxi")
    of_threads = threading.local()
    monkeypatch.setattr(rendezvous_module, "_step", lambda: of_threads.step)
    met = threading.Barrier(2, timeout=60)

    def run(rank):
        of_threads.step = steps[rank]
        with meet(tmp_path, rank):
            assert os.environ["CCL_LOCAL_RANK"] in "01", "both are on this node"
            assert os.environ["CCL_LOCAL_SIZE"] == "2"
            met.wait()

    with ThreadPoolExecutor(2) as ranks:
        list(ranks.map(run, range(2)))
    assert os.environ.pop("NCCL_NET", None) == net
    assert os.environ["FI_PROVIDER"] == ("cxi" if net is None else "tcp")
    assert ("the ranks are in 2 job steps" in capsys.readouterr().out) is (net is not None)


@pytest.mark.parametrize(
    ("rank", "interface", "error", "said"),
    [
        (0, None, RanksMissing, r"only 1 of 2 ranks met .*missing: rank 1"),
        (1, None, InputError, "ranks on another and .*name its network `interface`"),
        (1, "hsn9", InputError, "no network interface 'hsn9'"),
    ],
)
def test_ranks_that_cannot_meet_say_why(tmp_path, monkeypatch, rank, interface, error, said):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", LOOPBACK)
    if rank:  # rank 0 is on another node
        place = {"key": "key", "node": "another", "address": "10.0.0.1", "port": 1}
        (tmp_path / rendezvous_module.FILE).write_text(json.dumps(place))
    with pytest.raises(error, match=said), meet(tmp_path, rank, 0.1, interface=interface):
        pass
