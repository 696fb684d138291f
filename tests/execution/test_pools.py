"""Pools on real workers: blocks come and go as the work needs them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from parsl import Config
from parsl.errors import ParslError
from parsl.executors import ThreadPoolExecutor
from parsl.executors.high_throughput.errors import ManagerLost
from parsl.launchers.base import Launcher
from pool_cases import PATIENCE, Quick, site, update_until

from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution import Site, load_site
from hydragnn_flow.execution.pools import blocks, patience
from hydragnn_flow.execution.pools.pools import Pools
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


def jobs(run_directory: Path, pool: str = "gcd") -> list[int]:
    """Process groups of the blocks that are not ended, as the run directory has them."""
    pools = read_workers(run_directory).get("pools", {pool: {"blocks": []}})
    found = [block for block in pools[pool]["blocks"] if block["state"] != "ended"]
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
        return Config(executors=[ThreadPoolExecutor(label="gcd")], run_dir=str(directory))

    with pytest.raises(InputError, match="'gcd' and 'node'"):
        Pools(Site("threads", 1, load_site("local").node, parsl_config), tmp_path / "parsl")


def test_a_scheduler_that_refuses_jobs_is_quoted(tmp_path: Path) -> None:
    with Pools(site(Refusing), tmp_path / "parsl") as pools:
        pools.submit("gcd", abs, -1)
        with pytest.raises(InputError, match="'gcd': sbatch: error: Invalid account; see"):
            update_until(pools, lambda: False)


def test_blocks_follow_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SECONDS_IDLE", 1.0)
    with Pools(site(), tmp_path / "parsl") as pools:
        pools.update()
        assert not read_workers(tmp_path)["pools"]["gcd"][
            "blocks"
        ]  # nothing is asked for in advance

        update_until(pools, lambda: pools.workers("gcd") == 2, gcd=2)
        assert pools.free("gcd") == 2
        gate = tmp_path / "gate"
        tasks = [pools.submit("gcd", *waiting_for(gate)), pools.submit("gcd", abs, -7)]
        assert pools.free("gcd") == 0
        update_until(pools, tasks[1].done, gcd=2)
        assert tasks[1].result() == 7
        assert pools.free("gcd") == 1

        # The other pool has the place as soon as nothing is at work in it, and not before.
        for _ in range(10):
            pools.update(node=1)
            time.sleep(0.1)
        assert not tasks[0].done()
        gate.touch()
        update_until(pools, lambda: pools.workers("node") == 1, node=1)
        assert tasks[0].result() == 0
        assert pools.workers("gcd") == pools.free("gcd") == 0

        update_until(pools, lambda: pools.workers("node") == 0)
        update_until(pools, lambda: not jobs(tmp_path, "node"))
    assert not read_workers(tmp_path)["pools"]["gcd"]["workers"]


def test_two_pools_share_the_blocks_of_a_site(tmp_path: Path) -> None:
    with Pools(site(blocks=2, gcds=1), tmp_path / "parsl") as pools:
        update_until(pools, lambda: pools.workers("gcd") == 2, gcd=9)
        gate = tmp_path / "gate"
        long = [pools.submit("gcd", *waiting_for(gate)) for _ in range(2)]
        for _ in range(10):
            pools.update(gcd=9, node=3)
            time.sleep(0.1)
        gate.touch()
        update_until(pools, lambda: pools.workers("node") == 1, gcd=9, node=3)
        assert pools.workers("gcd") == 1
        update_until(pools, lambda: all(task.done() for task in long), gcd=9, node=3)
        assert [task.result() for task in long] == [0, 0]  # nobody's work was cut short


def test_a_block_that_dies_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SECONDS_WITHOUT_WORKERS", 1.0)
    with Pools(site(), tmp_path / "parsl") as pools:
        update_until(pools, lambda: pools.workers("gcd") == 2, gcd=2)
        pools.submit("gcd", abs, -1).result(PATIENCE)
        lost = pools.submit("gcd", time.sleep, 600.0)
        update_until(pools, lambda: jobs(tmp_path), gcd=2)
        os.killpg(jobs(tmp_path)[0], signal.SIGKILL)
        update_until(pools, lost.done, gcd=2)
        assert isinstance(lost.exception(), ManagerLost)
        update_until(pools, lambda: pools.workers("gcd") == 2, gcd=2)
        assert pools.submit("gcd", abs, -2).result(PATIENCE) == 2


def test_a_block_that_lost_a_node_is_replaced_when_what_waits_needs_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment over two nodes would otherwise wait until the block's time is up."""
    monkeypatch.setattr(blocks, "SECONDS_IDLE", 1.0)
    with Pools(site(nodes_per_block=2, launcher=TwoNodes()), tmp_path / "parsl") as pools:
        update_until(pools, lambda: pools.workers("node") == 2, node=2)
        assert pools.submit("node", abs, -1).result(PATIENCE) == 1
        (group,) = jobs(tmp_path, "node")
        _worker_pools(group)[0].kill()
        update_until(pools, lambda: pools.workers("node") == 1, node=2)
        with monkeypatch.context() as patch:  # the other node has had its time to connect
            patch.setattr(blocks, "SECONDS_TO_CONNECT", 0.0)
            update_until(pools, lambda: group not in jobs(tmp_path, "node"), node=2)
        update_until(pools, lambda: pools.workers("node") == 2, node=2)


def test_blocks_that_never_do_anything_stop_the_campaign_with_their_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "SECONDS_AFTER_FRUITLESS", (0.5, 0.5))
    broken = site(worker_init="echo 'bash: module: command not found' >&2; exit 1")
    with (
        pytest.raises(CampaignStopped, match=r"3 blocks .* \(bash: module: command not found\)"),
        Pools(broken, tmp_path / "parsl") as pools,
    ):
        update_until(pools, lambda: "command not found" in pools.waiting(), gcd=1)
        update_until(pools, lambda: False, gcd=1)
    assert len(read_workers(tmp_path)["pools"]["gcd"]["blocks"]) == 3


def test_a_run_that_had_workers_is_patient_with_its_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "SECONDS_AFTER_REFUSAL", (0.5,))
    monkeypatch.setattr(Moody, "submitted", 0)
    with Pools(site(Moody), tmp_path / "parsl") as pools:
        update_until(pools, lambda: pools.workers("gcd") == 2, gcd=2)
        update_until(pools, lambda: pools.workers("node") == 1, node=1)
    assert Moody.submitted == 3


def test_without_parsls_interchange_the_campaign_stops_at_once(tmp_path: Path) -> None:
    with (
        pytest.raises(CampaignStopped, match="interchange of pool 'gcd' has ended"),
        Pools(site(), tmp_path / "parsl") as pools,
    ):
        update_until(pools, lambda: pools.workers("gcd") == 2, gcd=2)
        group = jobs(tmp_path)[0]
        children = psutil.Process().children()
        interchanges = [child for child in children if "interchange" in _command(child)]
        for interchange in interchanges:
            interchange.send_signal(signal.SIGINT)  # as Ctrl-C in a terminal does
            interchange.send_signal(signal.SIGHUP)  # and its loss
        assert pools.submit("gcd", abs, -1).result(PATIENCE) == 1
        for interchange in interchanges:
            interchange.kill()
            interchange.wait()
        update_until(pools, lambda: False, gcd=2)
    _wait_until_ended(group)


@pytest.mark.parametrize("state", ["starting", "working"])
def test_a_second_ctrl_c_does_not_keep_blocks_from_being_cancelled(
    tmp_path: Path, state: str
) -> None:
    with pytest.raises(KeyboardInterrupt), Pools(site(Slow), tmp_path / "parsl") as pools:
        update_until(
            pools,
            lambda: pools.workers("gcd") or (state == "starting" and jobs(tmp_path)),
            gcd=2,
        )
        group = jobs(tmp_path)[0]
        if state == "working":
            pools.submit("gcd", time.sleep, 600.0)
        raise KeyboardInterrupt
    _wait_until_ended(group)
    assert read_workers(tmp_path)["pools"]["gcd"]["blocks"][0]["state"] == "ended"


def test_a_cancellation_without_an_answer_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "SECONDS_BETWEEN_TRIES", 0.1)
    with Pools(site(Deaf), tmp_path / "parsl") as pools:
        update_until(pools, lambda: jobs(tmp_path), gcd=2)
        (group,) = jobs(tmp_path)
    _wait_until_ended(group)
    assert read_workers(tmp_path)["pools"]["gcd"]["blocks"][0]["state"] == "ended"


def test_an_interrupt_while_blocks_are_given_back_is_not_lost(tmp_path: Path) -> None:
    # A shell starts what it puts in the background with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), Pools(site(Slow), tmp_path / "parsl") as pools:
        update_until(pools, lambda: pools.workers("gcd"), gcd=2)
    signal.signal(signal.SIGINT, before)


def _command(process: psutil.Process) -> str:
    # Parsl gives its interchange a title.
    return " ".join(process.cmdline())


def _worker_pools(group: int) -> list[psutil.Process]:
    """The worker pools of a block, without their workers."""
    module = ["-m", "hydragnn_flow.execution.pools.worker_pool"]
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
