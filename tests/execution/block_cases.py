"""Blocks of a pool whose Parsl executor is one on paper."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from hydragnn_flow.execution.pools.block import NodeHealth
from hydragnn_flow.execution.pools.blocks import Blocks
from hydragnn_flow.execution.pools.parsl_executor import BatchJob, Manager, Refused
from hydragnn_flow.execution.pools.scheduler import JobState

NODES, GCDS = 2, 4


class Machine:
    """A Parsl executor on paper: blocks of two nodes with four workers each."""

    label, nodes_per_block, scripts, is_here = "gcd", NODES, "scripts", False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.outstanding = 0
        self.sent: list[Future[Any]] = []
        self.connected: dict[str, Manager] = {}
        self.launched: list[BatchJob] = []
        self.cancelled: list[str] = []
        self.excluded: list[str] = []
        self.takes_cancels = True
        self.refuses, self.refusal = "", Refused
        self.changed: Callable[[], None] = lambda: None
        """Called whenever workers come, change or go: a pool looks at them."""

    def submit(
        self, manager: str | None, function: Any, *arguments: Any, may_be_held: bool = False
    ) -> Future[Any]:
        self.sent.append(Future())
        return self.sent[-1]

    def launch(self) -> BatchJob:
        if self.refuses:
            raise self.refusal(self.refuses)
        number = str(len(self.launched))
        errors = self._folder / f"{number}.err"
        errors.write_text("srun: error: task 0: Exited\n0: no such interface\nsrun: error: bye\n")
        self.launched.append(BatchJob(number, f"10{number}", f"parsl.{number}", errors))
        return self.launched[-1]

    def managers(self) -> list[Manager]:
        return [*self.connected.values()]

    def hold(self, managers: list[str]) -> None:
        for manager in managers:
            self.connected[manager] = self.connected[manager]._replace(held=True)

    def cancel(self, jobs: list[str]) -> bool:
        self.cancelled += jobs
        return self.takes_cancels

    def submitted(self) -> list[str]:
        return [job.number for job in self.launched]

    def exclude(self, nodes: list[str]) -> None:
        self.excluded = list(nodes)

    def connect(self, block: int, tasks: int = 0, idle: float = 0.0, nodes: int = NODES) -> None:
        for node in range(nodes):
            name = f"node{2 * block + node}-abc"
            self.connected[name] = Manager(name, str(block), GCDS, tasks, idle, False, False)
        self.changed()

    def change(self, *nodes: str, **facts: Any) -> None:
        """Of some nodes, or of all."""
        for name in [f"{node}-abc" for node in nodes] or [*self.connected]:
            self.connected[name] = self.connected[name]._replace(**facts)
        self.changed()

    def lose(self, *nodes: str) -> None:
        """Some nodes, or all."""
        for name in [f"{node}-abc" for node in nodes] or [*self.connected]:
            del self.connected[name]
        self.changed()


class AtOnce:
    """A scheduler thread that has done everything when asked."""

    def submit(self, function: Any, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Refused as error:
            future.set_exception(error)
        return future


def submit(pool: Blocks) -> None:
    """Ask the scheduler for a block, and hear that it is submitted."""
    pool.request(1)
    pool.collect()


def have(pool: Blocks, machine: Machine, number: int, tasks: int = 0) -> None:
    """Connect so many blocks."""
    for block in range(number):
        submit(pool)
        machine.connect(block, tasks)


def listed(pool: Blocks, state: Any) -> None:
    for _ in range(2):
        pool.record_states({block.job.number: JobState(state) for block in pool.blocks})


def started(pool: Blocks, seconds_ago: float, *, running: bool = True) -> None:
    """A block that has run, or waited in the queue, for so long, and no worker of it."""
    submit(pool)
    pool.record_states({pool.blocks[-1].job.number: JobState("running" if running else "pending")})
    pool.blocks[-1].entered -= seconds_ago
    pool.refresh()


def spoil(health: NodeHealth, *nodes: str) -> None:
    """Have enough fail on each of the nodes."""
    for node in nodes:
        while not health.is_suspect(node):
            health.record(node, object(), False)
