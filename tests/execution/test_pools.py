"""Pool on real workers: blocks come and go as the work needs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from parsl import Config
from parsl.errors import ParslError
from parsl.executors import ThreadPoolExecutor as Threads
from parsl.executors.high_throughput.errors import ManagerLost
from parsl.launchers.base import Launcher
from pool_cases import PATIENCE, Quick, site, update_until
from segment_cases import make_spec

from hydragnn_flow.data import GraphStore
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution import Rank, Site, load_site
from hydragnn_flow.execution.pools import blocks, patience, pool, workers_file
from hydragnn_flow.execution.pools.interchange import NeverCame
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.execution.pools.workers_file import read_workers

pytestmark = pytest.mark.xdist_group("processes")


class Refusing(Quick):
    """A scheduler that takes no job, as one does that does not know the account."""

    def submit(self, *_: object, **__: object) -> str:
        raise ParslError("submission failed\nsbatch: error: Invalid account\n")


class Moody(Quick):
    """A scheduler that refuses the second job, as one in maintenance."""

    submitted = 0

    def submit(self, *arguments: Any, **options: Any) -> str:
        Moody.submitted += 1
        if Moody.submitted == 2:
            raise ParslError("sbatch: error: Slurm controller is in maintenance")
        job: str = super().submit(*arguments, **options)
        return job


class Slow(Quick):
    """A scheduler that takes its time to cancel, and meanwhile somebody presses Ctrl-C."""

    was_asked = False

    def cancel(self, job_ids: list[str]) -> list[bool]:
        if not self.was_asked:
            self.was_asked = True
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1.0)
        cancelled: list[bool] = super().cancel(job_ids)
        return cancelled


class Deaf(Quick):
    """A scheduler that does not answer the first cancellation in time."""

    def cancel(self, job_ids: list[str]) -> list[bool]:
        if not self.was_asked:
            self.was_asked = True
            raise subprocess.TimeoutExpired("scancel", 60)
        cancelled: list[bool] = super().cancel(job_ids)
        return cancelled

    was_asked = False


class TwoNodes(Launcher):
    """Starts two worker pools, as two nodes would."""

    def __call__(self, command: str, *_: object) -> str:
        return f"({command}) & ({command}) & wait"


def jobs(run_directory: Path) -> list[int]:
    """Process groups of the blocks that are not ended, as the run directory has them."""
    blocks = read_workers(run_directory).get("blocks", [])
    found = [block for block in blocks if block["state"] != "ended"]
    return [os.getpgid(int(block["job"])) for block in found]


def waiting_for(gate: Path) -> tuple[Any, ...]:
    """A task that takes until a file is there."""
    return subprocess.call, ["sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.05; done"]


def has_ended(group: int) -> bool:
    """Whether no process of a group is left, as everybody's who waited for it."""
    groups = set()
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                groups.add(os.getpgid(process.pid))
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return group not in groups


def test_a_pool_that_is_not_there_is_named_before_anything_starts(tmp_path: Path) -> None:
    def parsl_config(directory: Path) -> Config:
        return Config(executors=[Threads(label="gcd")], run_dir=str(directory))

    with pytest.raises(InputError, match="it needs 'gcd', a HighThroughputExecutor"):
        Pool(Site("threads", 1, load_site("local").node, parsl_config), tmp_path / "parsl")


def test_a_scheduler_that_refuses_jobs_is_quoted(tmp_path: Path) -> None:
    with Pool(site(Refusing), tmp_path / "parsl") as pools:
        pools.submit(abs, -1)
        with pytest.raises(InputError, match="workers: sbatch: error: Invalid account; see"):
            update_until(pools, lambda: False)


def test_nobody_else_can_read_the_keys_of_a_run(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Pool(site(), tmp_path / "parsl"):
            pass
    finally:
        os.umask(before)
    keys = [*tmp_path.rglob("*.key*")]
    assert len(keys) == 4 and all(path.read_text() for path in keys)
    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}
    assert {path.parent.stat().st_mode & 0o777 for path in keys} == {0o700}


def test_blocks_follow_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SECONDS_IDLE", 1.0)
    with Pool(site(), tmp_path / "parsl") as pools:
        pools.update()
        assert not read_workers(tmp_path)["blocks"], "nothing is asked for in advance"

        update_until(pools, lambda: pools.workers() == 2, 2)
        (host,) = pools.hosts()
        gate = tmp_path / "gate"
        tasks = [pools.submit(*work, manager=host.name) for work in (waiting_for(gate), (abs, -7))]
        update_until(pools, tasks[1].done, 2)
        assert tasks[1].result() == 7

        # It is given back when nothing is at work in it, and not before.
        for _ in range(20):
            pools.update()
            time.sleep(0.1)
        assert not tasks[0].done() and pools.workers() == 2
        gate.touch()
        update_until(pools, lambda: pools.workers() == 0)
        assert tasks[0].result() == 0
        assert not pools.hosts()
        update_until(pools, lambda: not jobs(tmp_path))
    assert not read_workers(tmp_path)["workers"]


def test_segments_at_work_are_listed_where_they_are(
    tmp_path: Path, alloy_store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As their lines of the ledger will name it."""
    monkeypatch.setattr(workers_file, "SECONDS_BETWEEN_WRITES", 0.0)
    monkeypatch.setattr(pool, "SECONDS_BETWEEN_CHECKS", 0.0)
    with Pool(site(), tmp_path / "parsl") as pools:
        update_until(pools, lambda: pools.workers() == 2, 2)
        (host,) = pools.hosts()
        spec = make_spec(tmp_path / "trial", alloy_store, 1, number=7)
        ended = pools.run([Rank(spec, gcd=1)], host.name)
        update_until(pools, lambda: read_workers(tmp_path)["segments"], 2)
        (line,) = read_workers(tmp_path)["segments"]
        assert (line["kind"], line["number"], line["to_epoch"]) == ("trial", 7, 1)
        update_until(pools, ended.done, 2)
        (result,) = ended.result()
        assert result.status == "ok" and line["started"] <= result.started
        assert (line["node"], line["gcds"]) == (result.node, result.gcds) == (line["node"], ["1"])
        update_until(pools, lambda: not read_workers(tmp_path)["segments"], 2)


def test_tasks_go_to_the_node_that_is_chosen(tmp_path: Path) -> None:
    with Pool(site(nodes_per_block=2, launcher=TwoNodes()), tmp_path / "parsl") as pools:
        update_until(pools, lambda: pools.workers() == 4, 4)
        first, second = pools.hosts()
        assert first.block == second.block and first.name != second.name
        asked = [second, second, first, second, first]
        tasks = [
            pools.submit(os.getenv, "PARSL_WORKER_POOL_ID", manager=host.name) for host in asked
        ]
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


def test_a_node_runs_as_many_tasks_as_the_driver_sends_it(tmp_path: Path) -> None:
    """In its agent, side by side; an error in one is told and harms no other."""
    with Pool(site(gcds=1), tmp_path / "parsl") as pools:
        update_until(pools, pools.hosts, 1)
        (host,) = pools.hosts()
        gates = [tmp_path / f"gate{number}" for number in range(4)]
        waiting = [pools.submit(*waiting_for(gate), manager=host.name) for gate in gates]
        wrong = pools.submit(int, "no number", manager=host.name)
        update_until(pools, wrong.done, 1)
        assert "no number" in str(wrong.exception())
        for gate, task in reversed([*zip(gates, waiting, strict=True)]):
            assert not task.done()
            gate.touch()
            assert task.result(PATIENCE) == 0
        agents = {pools.submit(os.getpid, manager=host.name).result(PATIENCE) for _ in range(3)}
        assert len(agents) == 1


def test_a_block_that_dies_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SECONDS_WITHOUT_WORKERS", 1.0)
    with Pool(site(), tmp_path / "parsl") as pools:
        update_until(pools, lambda: pools.workers() == 2, 2)
        pools.submit(abs, -1).result(PATIENCE)
        lost = pools.submit(time.sleep, 600.0)
        update_until(pools, lambda: jobs(tmp_path), 2)
        os.killpg(jobs(tmp_path)[0], signal.SIGKILL)
        update_until(pools, lost.done, 2)
        assert isinstance(lost.exception(), ManagerLost)
        update_until(pools, lambda: pools.workers() == 2, 2)
        assert pools.submit(abs, -2).result(PATIENCE) == 2


@pytest.mark.parametrize("got_further", [True, False])
def test_a_block_whose_lost_segment_left_a_checkpoint_was_not_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, got_further: bool
) -> None:
    monkeypatch.setattr(blocks, "SECONDS_WITHOUT_WORKERS", 1.0)
    spec = make_spec(tmp_path / "0", None, 1, attempt="first")
    with Pool(site(gcds=1), tmp_path / "parsl") as pools:
        update_until(pools, pools.hosts, 1)
        lost = pools.run([Rank(spec, gcd=0)], pools.hosts()[0].name)
        update_until(pools, lambda: pools._blocks.at_work, 1)
        if got_further:
            spec.checkpoint.touch()
        os.killpg(jobs(tmp_path)[0], signal.SIGKILL)
        update_until(pools, lambda: pools._blocks.ended, 1)
        assert [result.status for result in lost.result(PATIENCE)] == ["lost"]
        events = [event for _, event in pools._blocks.events]
    assert any("ended without" in event for event in events) != got_further


def test_a_block_that_lost_a_node_is_replaced_when_what_waits_needs_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment over two nodes would otherwise wait until the block's time is up."""
    monkeypatch.setattr(blocks, "SECONDS_IDLE", 1.0)
    with Pool(site(nodes_per_block=2, launcher=TwoNodes()), tmp_path / "parsl") as pools:
        update_until(pools, lambda: pools.workers() == 4, 4)
        assert pools.submit(abs, -1).result(PATIENCE) == 1
        (group,) = jobs(tmp_path)
        _agents(group)[0].kill()
        update_until(pools, lambda: pools.workers() == 2, 4)
        with monkeypatch.context() as patch:  # the other node has had its time to connect
            patch.setattr(blocks, "SECONDS_TO_CONNECT", 0.0)
            update_until(pools, lambda: group not in jobs(tmp_path), 4)
        update_until(pools, lambda: pools.workers() == 4, 4)


def test_blocks_that_never_do_anything_stop_the_campaign_with_their_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "SECONDS_AFTER_FRUITLESS", (0.5, 0.5))
    broken = site(worker_init="echo 'bash: module: command not found' >&2; exit 1")
    with (
        pytest.raises(CampaignStopped, match=r"3 blocks .* \(bash: module: command not found\)"),
        Pool(broken, tmp_path / "parsl") as pools,
    ):
        update_until(pools, lambda: "command not found" in pools.waiting(), 1)
        update_until(pools, lambda: False, 1)
    assert len(read_workers(tmp_path)["blocks"]) == 3


def test_a_run_that_had_workers_is_patient_with_its_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "SECONDS_AFTER_REFUSAL", (0.5,))
    monkeypatch.setattr(Moody, "submitted", 0)
    with Pool(site(Moody, blocks=2), tmp_path / "parsl") as pools:
        update_until(pools, lambda: pools.workers() == 2, 2)
        update_until(pools, lambda: pools.workers() == 4, 4)
    assert Moody.submitted == 3


def test_ctrl_c_and_a_lost_terminal_leave_an_interchange_that_begins(tmp_path: Path) -> None:
    def tell() -> None:
        while True:
            for child in psutil.Process().children():
                with suppress(psutil.Error):
                    words = child.cmdline()
                    if words[:1] == [sys.executable] and "interchange" in words[2]:
                        child.send_signal(signal.SIGINT)
                        child.send_signal(signal.SIGHUP)
                        return

    with ThreadPoolExecutor(1) as thread:
        told = thread.submit(tell)
        with Pool(site(), tmp_path / "parsl") as pools:
            told.result(PATIENCE)
            update_until(pools, lambda: pools.workers() == 2, 2)
            (group,) = jobs(tmp_path)
            assert pools.submit(abs, -1).result(PATIENCE) == 1
    _wait_until_ended(group)


def test_without_parsls_interchange_the_campaign_stops_at_once(tmp_path: Path) -> None:
    with (
        pytest.raises(CampaignStopped, match="interchange has ended"),
        Pool(site(), tmp_path / "parsl") as pools,
    ):
        update_until(pools, lambda: pools.workers() == 2, 2)
        group = jobs(tmp_path)[0]
        children = psutil.Process().children()
        interchanges = [child for child in children if "interchange" in _command(child)]
        for interchange in interchanges:
            interchange.send_signal(signal.SIGINT)  # as Ctrl-C in a terminal does
            interchange.send_signal(signal.SIGHUP)  # and its loss
        assert pools.submit(abs, -1).result(PATIENCE) == 1
        for interchange in interchanges:
            interchange.kill()
            interchange.wait()
        update_until(pools, lambda: False, 2)
    _wait_until_ended(group)


@pytest.mark.parametrize("state", ["starting", "working"])
def test_a_second_ctrl_c_does_not_keep_blocks_from_being_cancelled(
    tmp_path: Path, state: str
) -> None:
    with pytest.raises(KeyboardInterrupt), Pool(site(Slow), tmp_path / "parsl") as pools:
        update_until(
            pools,
            lambda: pools.workers() or (state == "starting" and jobs(tmp_path)),
            2,
        )
        group = jobs(tmp_path)[0]
        if state == "working":
            pools.submit(time.sleep, 600.0)
        raise KeyboardInterrupt
    _wait_until_ended(group)
    assert read_workers(tmp_path)["blocks"][0]["state"] == "ended"


def test_a_cancellation_without_an_answer_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "SECONDS_BETWEEN_TRIES", 0.1)
    with Pool(site(Deaf), tmp_path / "parsl") as pools:
        update_until(pools, lambda: jobs(tmp_path), 2)
        (group,) = jobs(tmp_path)
    _wait_until_ended(group)
    assert read_workers(tmp_path)["blocks"][0]["state"] == "ended"


def test_an_interrupt_while_blocks_are_given_back_is_not_lost(tmp_path: Path) -> None:
    # A shell starts what it puts in the background with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), Pool(site(Slow), tmp_path / "parsl") as pools:
        update_until(pools, lambda: pools.workers(), 2)
    signal.signal(signal.SIGINT, before)


def _command(process: psutil.Process) -> str:
    # Parsl gives its interchange a title.
    return " ".join(process.cmdline())


def _agents(group: int) -> list[psutil.Process]:
    """The agents of a block's nodes."""
    module = ["-m", "hydragnn_flow.execution.pools.agent"]
    return [
        process
        for process in psutil.process_iter()
        if os.getpgid(process.pid) == group and process.cmdline()[1:3] == module
    ]


def _wait_until_ended(group: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while not has_ended(group):
        assert time.monotonic() < deadline
        time.sleep(0.1)
