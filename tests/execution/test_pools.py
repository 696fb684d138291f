"""Pool on real workers: blocks come and go as the work needs them."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from unittest.mock import Mock

import psutil
import pytest
from driver_cases import command_of
from parsl import Config
from parsl.executors import ThreadPoolExecutor as Threads
from parsl.executors.high_throughput import executor as parsl_executor
from parsl.launchers.base import Launcher
from pool_cases import PATIENCE, Quick, site, update_until
from segment_cases import make_spec
from trainer_cases import until

from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution import Rank, Site, load_site
from hydragnn_flow.execution.pools import agent
from hydragnn_flow.execution.pools.interchange import NeverCame
from hydragnn_flow.execution.pools.node_energy import read_node_energy
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.execution.pools.waits import WAITS
from hydragnn_flow.execution.pools.workers_file import read_workers

pytestmark = pytest.mark.xdist_group("processes")


class Troubled(Quick):
    """A scheduler that takes its time to cancel; meanwhile somebody presses Ctrl-C.

    It does not answer the first time.
    """

    was_asked = False

    def cancel(self, job_ids):
        if not self.was_asked:
            self.was_asked = True
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1.0)
            raise subprocess.TimeoutExpired("scancel", 60)
        cancelled: list[bool] = super().cancel(job_ids)
        return cancelled


class TwoNodes(Launcher):
    """Starts two worker pools, as two nodes would."""

    def __call__(self, command, *_):
        return f"({command}) & ({command}) & wait"


def jobs(run_directory):
    """Process groups of the blocks that are not ended, as the run directory has them."""
    blocks = read_workers(run_directory).get("blocks", [])
    found = [block for block in blocks if block["state"] != "ended"]
    return [os.getpgid(int(block["job"])) for block in found]


def group_of(pools, host):
    """Process group of the block that a node belongs to."""
    (job,) = [each.job for each in pools._blocks.blocks if each.job.block == host.block]
    return os.getpgid(int(job.number))


def waiting_for(gate):
    """A task that takes until a file is there."""
    return subprocess.call, ["sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.05; done"]


def has_ended(group):
    """Whether no process of a group is left, as everybody's who waited for it."""
    groups = set()
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                groups.add(os.getpgid(process.pid))
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return group not in groups


def test_a_pool_that_is_not_there_is_named_before_anything_starts(tmp_path):
    def parsl_config(directory):
        return Config(executors=[Threads(label="gcd")], run_dir=str(directory))

    with pytest.raises(InputError, match="has ThreadPoolExecutor; it needs one High"):
        Pool(Site("threads", 1, load_site("local").node, parsl_config), tmp_path / "parsl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "läufe,12:30=a+b@50%"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def pools(folder):
    """Blocks of two nodes, on which nothing counts energy; begun by a user who shares all files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOST_SYS", str(folder / "no counters"))
        before = os.umask(0)
        try:
            two = site(nodes_per_block=2, launcher=TwoNodes())
            with Pool(two, folder / "parsl") as pools:
                os.umask(before)
                pools.update()
                yield pools
            # The last test leaves it open: the garbage collector would wait for it for ever.
            assert pools._blocks.parsl._executor.incoming_q.zmq_context.closed
        finally:
            os.umask(before)


@pytest.fixture
def nodes(pools):
    """Both nodes of a block that is whole."""
    update_until(pools, lambda: pools.workers() == 4, 4)
    return pools.hosts()


def test_nothing_is_asked_for_in_advance_and_nobody_else_can_read_the_keys(folder, pools):
    assert not read_workers(folder)["blocks"]
    keys = [*folder.rglob("*.key*")]
    assert len(keys) == 4 and all(path.read_text() for path in keys)
    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}
    assert {path.parent.stat().st_mode & 0o777 for path in keys} == {0o700}


def test_segments_at_work_are_listed_where_they_are_with_their_last_epoch(
    folder, pools, nodes, tmp_path, alloy_store, monkeypatch
):
    """As their lines of the ledger will say it."""
    monkeypatch.setattr(WAITS, "writes", 0.0)
    monkeypatch.setattr(WAITS, "checks", 0.0)
    spec = make_spec(tmp_path / "trial", alloy_store, 100_000, number=7, attempt="first")
    ended = pools.run([Rank(spec, gcd=1)], nodes[0].name)
    update_until(pools, lambda: read_workers(folder)["segments"], 4)
    (line,) = read_workers(folder)["segments"]
    assert (line["kind"], line["number"], line["to_epoch"]) == ("trial", 7, 100_000)
    seen: dict[int, list[float]] = {}

    def several_seen():
        (line,) = read_workers(folder)["segments"]
        if "last_epoch" in line:
            epoch, *seen[epoch] = line["last_epoch"]
        return len(seen) == 2

    update_until(pools, several_seen, 4)
    assert pools.last_epochs()["first"].number >= max(seen)
    pools.release(nodes[0].name, "first")
    update_until(pools, ended.done, 4)
    (result,) = ended.result()
    assert result.status == "interrupted" and line["started"] <= result.started
    assert (line["node"], line["gcds"]) == (result.node, result.gcds) == (line["node"], ["1"])
    for epoch, (loss, error, end) in seen.items():
        assert result.history[epoch - 1][1::2] == [loss, error]
        assert end > result.ended, "it has thousands of epochs left"
    update_until(pools, lambda: not read_workers(folder)["segments"], 4)
    update_until(pools, lambda: not pools.last_epochs(), 4)


def test_a_node_runs_as_many_tasks_as_the_driver_sends_it(folder, pools, nodes, tmp_path):
    """In its agent, side by side; an error in one is told and harms no other."""
    name = nodes[0].name
    gates = [tmp_path / f"gate{number}" for number in range(4)]
    waiting = [pools.submit(*waiting_for(gate), manager=name) for gate in gates]
    wrong = pools.submit(int, "no number", manager=name)
    update_until(pools, wrong.done, 4)
    assert "no number" in str(wrong.exception())
    for gate, task in reversed([*zip(gates, waiting, strict=True)]):
        assert not task.done()
        gate.touch()
        assert task.result(PATIENCE) == 0
    agents = {pools.submit(os.getpid, manager=name).result(PATIENCE) for _ in range(3)}
    assert len(agents) == 1
    assert read_node_energy(folder) is None, "nothing counts here"


def test_a_block_is_given_back_when_nothing_is_at_work_in_it_and_not_before(
    folder, pools, nodes, tmp_path, monkeypatch
):
    monkeypatch.setattr(WAITS, "idle", 1.0)
    gate = tmp_path / "gate"
    tasks = [pools.submit(*work, manager=nodes[0].name) for work in (waiting_for(gate), (abs, -7))]
    update_until(pools, tasks[1].done, 4)
    assert tasks[1].result() == 7
    for _ in range(20):
        pools.update()
        time.sleep(0.1)
    assert not tasks[0].done() and pools.workers() == 4
    gate.touch()
    update_until(pools, lambda: pools.workers() == 0)
    assert tasks[0].result() == 0
    assert not pools.hosts()
    update_until(pools, lambda: not jobs(folder))
    assert not read_workers(folder)["workers"]


def test_a_block_that_lost_a_node_is_replaced_when_what_waits_needs_both(pools, nodes, monkeypatch):
    """A segment over two nodes would otherwise wait until the block's time is up."""
    monkeypatch.setattr(WAITS, "idle", 1.0)
    assert pools.submit(abs, -1).result(PATIENCE) == 1
    group = group_of(pools, nodes[0])
    in_block = [one for one in psutil.process_iter() if os.getpgid(one.pid) == group]
    next(one for one in in_block if one.cmdline()[1:3] == ["-m", agent.__name__]).kill()
    update_until(pools, lambda: pools.workers() <= 2, 4)
    with monkeypatch.context() as patch:  # the other node has had its time to connect
        patch.setattr(WAITS, "connect", 0.0)
        update_until(pools, lambda: has_ended(group), 4)
    update_until(pools, lambda: pools.workers() == 4, 4)


@pytest.mark.parametrize("got_further", [True, False])
def test_a_block_that_dies_is_replaced_and_was_not_for_nothing_if_it_left_a_checkpoint(
    pools, nodes, tmp_path, monkeypatch, got_further
):
    monkeypatch.setattr(WAITS, "without_workers", 1.0)
    before = {*pools._blocks.events}
    spec = make_spec(tmp_path / "0", None, 1, attempt="first")
    lost = pools.run([Rank(spec, gcd=0)], nodes[0].name)
    update_until(pools, lambda: pools._blocks.at_work or lost.done(), 4)
    if got_further:
        spec.checkpoint.touch()
    os.killpg(group_of(pools, nodes[0]), signal.SIGKILL)
    update_until(pools, lambda: nodes[0] not in pools.hosts(), 4)
    update_until(pools, lambda: pools.workers() == 4, 4)
    assert [result.status for result in lost.result(PATIENCE)] == ["lost"]
    told = [event for _, event in {*pools._blocks.events} - before]
    assert any("ended without" in event for event in told) != got_further
    if not got_further:  # or the next block would not have been for nothing
        assert pools.submit(abs, -2).result(PATIENCE) == 2


def test_tasks_go_to_the_node_that_is_chosen(pools, nodes):
    first, second = nodes
    assert first.block == second.block and first.name != second.name
    asked = [second, second, first, second, first]
    tasks = [pools.submit(os.getenv, "PARSL_WORKER_POOL_ID", manager=host.name) for host in asked]
    update_until(pools, lambda: all(task.done() for task in tasks), 4)
    assert [task.result() for task in tasks] == [host.name for host in asked]
    gone = pools.submit(abs, -1, manager="node9-abc")
    update_until(pools, gone.done, 4)
    assert isinstance(gone.exception(), NeverCame)
    assert {*pools.hosts()} == {first, second}, "no node is blamed for it"
    held = [manager for manager in pools._blocks.usable if manager.id == second.name]
    pools._blocks.parsl.hold([manager.id for manager in held])
    back = pools.submit(abs, -1, manager=second.name)
    wait([back], PATIENCE)
    assert isinstance(back.exception(), NeverCame)
    assert {*pools.hosts()} == {first}, "it would be sent there again"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_results_that_nobody_receives_any_more_stop_the_campaign(pools, monkeypatch):
    """The last test of these pools, which are of no use afterwards."""

    full = MemoryError("ulimit -v of a login node")
    monkeypatch.setattr(parsl_executor, "deserialize", Mock(side_effect=full))
    task = pools.submit(abs, -1)
    with pytest.raises(CampaignStopped, match="receives the results has ended"):
        update_until(pools, task.done, 4)


def test_blocks_that_never_do_anything_stop_the_campaign_with_their_last_words(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(WAITS, "fruitless", 0.2)
    broken = site(worker_init="echo 'bash: module: command not found' >&2; exit 1")
    with (
        pytest.raises(CampaignStopped, match=r"3 blocks .* \(bash: module: command not found\)"),
        Pool(broken, tmp_path / "parsl") as pools,
    ):
        update_until(pools, lambda: "command not found" in pools.waiting(), 1)
        update_until(pools, lambda: False, 1)
    assert len(read_workers(tmp_path)["blocks"]) == 3


def test_signals_leave_the_interchange_and_without_it_the_campaign_stops_at_once(tmp_path):
    """Ctrl-C in a terminal and its loss, while the interchange begins and later."""

    def tell(begins):
        commands = {child: command_of(child) for child in psutil.Process().children()}
        found = [c for c, of in commands.items() if of.startswith(begins) and "interchange" in of]
        for interchange in found:
            interchange.send_signal(signal.SIGINT)
            interchange.send_signal(signal.SIGHUP)
        return found

    with (
        ThreadPoolExecutor(1) as thread,
        pytest.raises(CampaignStopped, match="interchange has ended"),
    ):
        told = thread.submit(until, lambda: tell(sys.executable))
        with Pool(site(), tmp_path / "parsl") as pools:
            told.result(PATIENCE)
            update_until(pools, lambda: pools.workers() == 2, 2)
            (group,) = jobs(tmp_path)
            interchanges = tell("parsl: ")  # each has given itself a title
            assert pools.submit(abs, -1).result(PATIENCE) == 1
            for interchange in interchanges:
                interchange.kill()
                interchange.wait()
            update_until(pools, lambda: False, 2)
    until(lambda: has_ended(group))


@pytest.mark.parametrize("state", ["starting", "working"])
def test_ctrl_c_does_not_keep_blocks_from_being_cancelled(tmp_path, state):
    """A second one while they start, or the first one while they are given back."""
    # A shell starts what it puts in the background with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(KeyboardInterrupt),
        Pool(site(Troubled), tmp_path / "parsl") as pools,
    ):
        patch.setattr(WAITS, "cancel", 0.1)
        update_until(pools, lambda: pools.workers() or (state == "starting" and jobs(tmp_path)), 2)
        (group,) = jobs(tmp_path)
        if state == "starting":
            raise KeyboardInterrupt
        pools.submit(time.sleep, 600.0)
    signal.signal(signal.SIGINT, before)
    until(lambda: has_ended(group))
    assert read_workers(tmp_path)["blocks"][0]["state"] == "ended"
