"""Agent of a node: takes tasks from the driver, and runs each in a thread.

It is Parsl's worker pool without worker processes. Those would take tasks from one queue, so the
GCD of a task would be unknown, and each would take one at a time, so co-located segments would have
to start and end together. Here the driver names the GCD in the task, and a thread waits for the
trainer process that does the work. A node thus needs half as many processes, and asks the shared
file system once for all of them.

Parsl tells the driver the identifiers of connected pools, but not their nodes. The name of the node
is therefore in the identifier, so that a node that spoils work can be recognised.
"""

from __future__ import annotations

import json
import os
import pickle
import platform
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from multiprocessing import dummy
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from hydragnn_flow.execution.parsl_internals import (
    RemoteExceptionWrapper,
    TaskScheduler,
    execute_task,
    oneshot_initialize_logging,
    process_worker_pool,
    serialize,
    set_file_logger,
)
from hydragnn_flow.execution.pools.calls import BLOCK, POOL, STEADY_TIME
from hydragnn_flow.execution.pools.node_energy import begin_to_measure, reading
from hydragnn_flow.execution.pools.waits import drain_seconds
from hydragnn_flow.execution.workers.worker import last_epochs, leave


class Threads(TaskScheduler):
    """Replacement of Parsl's task scheduler, which runs each task in a thread as it comes."""

    def __init__(self) -> None:
        self.results: SimpleQueue[bytes | None] = SimpleQueue()

    def put_task(self, task: dict[str, Any]) -> None:
        """Start a thread that runs a task of the driver."""
        threading.Thread(target=self._run, args=(task,), daemon=True).start()

    def get_result(self, block: bool = True, timeout: float | None = None) -> bytes | None:
        """Return the next result as pickled bytes; None when the manager ends."""
        return self.results.get(block, timeout)

    def _run(self, task: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"type": "result", "task_id": task["task_id"]}
        try:
            answer["result"] = serialize(execute_task(task["buffer"]), buffer_threshold=1_000_000)
        except Exception:
            answer["exception"] = serialize(RemoteExceptionWrapper(*sys.exc_info()))
        self.results.put(pickle.dumps(answer))


_parsls: Any = process_worker_pool
_parsls.time = STEADY_TIME
# Each node would open hundreds of files for a list of packages that nobody reads.
_parsls.distributions = tuple
# Queues between processes need two more processes, which outlive a killed agent and keep its batch
# job from ending; threads need none.
_parsls.SpawnContext = SimpleNamespace(
    cpu_count=os.cpu_count, Manager=dummy.Manager, Queue=dummy.Queue, Value=dummy.Value
)


class Agent(process_worker_pool.Manager):
    """Agent of a node: Parsl's manager of tasks there, with threads instead of worker processes."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        threads: Any = Threads()
        self.task_scheduler, self.pending_result_queue = threads, threads.results
        self._workers, self.worker_count = self.worker_count, 0

    def create_reg_message(self) -> dict[str, Any]:
        """Return the message that registers the node at the interchange, with a worker per GCD."""
        known = {"worker_count": self._workers, "max_capacity": self._workers}
        return {**super().create_reg_message(), **known}

    @staticmethod
    def heartbeat_to_incoming(task_incoming: Any) -> None:
        """Send a heartbeat (sign of life) to a socket, with the node's energy and last epochs.

        The second and third part are JSON; empty if no energy is counted or no epoch has ended.
        """
        parts = (json.dumps(told).encode() if told else b"" for told in (reading(), last_epochs()))
        task_incoming.send_multipart([pickle.dumps({"type": "heartbeat"}), *parts])


def in_time(arguments: Sequence[str], now: float) -> list[str]:
    """Return an agent's arguments, changed so that it takes no new tasks near its batch job's end.

    Parsl counts the time for which an agent takes tasks (`--drain_period`) from the start of the
    agent. The batch job starts earlier, by the time it takes to bring the environment to the nodes.

    Parameters
    ----------
    arguments
        Command-line arguments of the agent, made by Parsl.
    now
        Current Unix time [s].
    """
    option, end = "--drain_period=", os.environ.get("HYDRAGNN_FLOW_JOB_END", "")
    given = next((a.removeprefix(option) for a in arguments if a.startswith(option)), "")
    if not end.isdigit() or not given.isdigit():
        return list(arguments)
    left = max(1, int(end) - int(now))
    seconds = min(int(given), max(1, left - int(drain_seconds(left))))
    return [f"{option}{seconds}" if a.startswith(option) else a for a in arguments]


def main(arguments: Sequence[str]) -> None:
    """Run the agent of this node until the driver ends or its batch job nears its end."""
    options = process_worker_pool.get_arg_parser().parse_args(in_time(arguments, time.time()))
    uid = f"{platform.node()}-{uuid.uuid4().hex[:12]}"
    os.environ |= {BLOCK: str(options.block_id), POOL: uid}
    begin_to_measure()
    folder = Path(options.logdir, f"block-{options.block_id}", uid)
    log_config = None
    if options.logconf in (None, "None"):
        folder.mkdir(parents=True, exist_ok=True)
        set_file_logger(str(folder / "manager.log"))
    else:
        log_config = pickle.loads(Path(options.logconf).read_bytes())
        oneshot_initialize_logging(log_config=log_config, log_dir=folder, log_name="manager")
    Agent(
        addresses=options.addresses,
        address_probe_timeout=int(options.address_probe_timeout),
        port=options.port,
        cores_per_worker=float(options.cores_per_worker),
        mem_per_worker=None,
        max_workers_per_node=int(options.max_workers_per_node),
        prefetch_capacity=0,
        uid=uid,
        block_id=options.block_id,
        heartbeat_threshold=int(options.hb_threshold),
        heartbeat_period=int(options.hb_period),
        poll_period=int(options.poll),
        cpu_affinity="none",
        available_accelerators=(),
        cert_dir=None if options.cert_dir == "None" else options.cert_dir,
        drain_period=None if options.drain_period == "None" else int(options.drain_period),
        log_config=log_config,
    ).start()
    leave()


if __name__ == "__main__":
    # Under its full name, by which tasks find its functions.
    from hydragnn_flow.execution.pools.agent import main as run

    run(sys.argv[1:])
