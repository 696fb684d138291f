"""Parsl executor: starts batch jobs and workers, carries tasks and results.

The executor is used without Parsl's DataFlowKernel, which manages dependencies between tasks,
repeats tasks and scales executors; a campaign needs none of that.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import zmq
from parsl.executors import HighThroughputExecutor

from hydragnn_flow.energy_counters import Reading
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution.parsl_internals import (
    TERMINAL_STATES,
    WORKER_POOL,
    CommandClientBadError,
    CommandClientTimeoutError,
    pack_apply_message,
)
from hydragnn_flow.execution.parsl_internals import JobState as ParslState
from hydragnn_flow.execution.pools import interchange
from hydragnn_flow.execution.pools.calls import AGENT, node_of
from hydragnn_flow.execution.pools.scheduler import JobState
from hydragnn_flow.log import LastEpoch

# Phrases of sbatch, qsub and Parsl for a scheduler, or its authentication, that is out of reach. A
# single word could be in the name of an account, queue or path that is refused.
_NO_ANSWER = re.compile(
    r"^(?!.*\b(invalid|unknown)\b).*\b(unable to (contact|connect|communicate|establish)|"
    r"(cannot|could not|failed to) (connect|communicate)|communications? (\w+ )?(failure|error)|"
    r"connect(ion)? (failure|refused|reset|closed|timed out)|not connected|timed out|"
    r"is unreachable|no route to host|in standby mode|shutting down|munge (en|de)code failed|"
    r"munge\.socket|end of (file|message)|zero bytes were|temporarily un)",
    re.IGNORECASE | re.MULTILINE,
)


class Manager(NamedTuple):
    """Worker pool of one node of a batch job, as Parsl reports it: its workers and tasks.

    Parsl calls it a manager; in this package it is the node's agent.
    """

    id: str
    """Parsl's identifier of the pool."""
    block: str
    """Parsl's identifier of its block."""
    workers: int
    tasks: int
    idle_seconds: float
    held: bool
    """True if it gets no further tasks, by decision of this driver."""
    draining: bool
    """True if it takes no new tasks, because its batch job is about to end."""

    @property
    def node(self) -> str:
        """Name of the node on which the worker pool runs."""
        return node_of(self.id)

    @property
    def usable(self) -> bool:
        """True if the worker pool takes tasks: neither held by the driver nor about to end."""
        return not self.held and not self.draining


class BatchJob(NamedTuple):
    """Batch job that was submitted: its identifiers and the file of its standard error."""

    block: str
    """Parsl's identifier of the block, by which its workers report."""
    number: str
    name: str
    errors: Path
    """Path of the file with the job's standard error."""


class Refused(Exception):
    """Error: the scheduler refused a batch job; its words are the message."""


class NoAnswer(Refused):
    """Error: the scheduler is out of reach, or did not say whether it took a batch job."""


class ParslExecutor:
    """Parsl executor of a pool: submits batch jobs, and sends tasks to the workers in them.

    Parameters
    ----------
    site
        Name of the site, for messages.
    executor
        HighThroughputExecutor of the site.
    """

    def __init__(self, site: str, executor: HighThroughputExecutor) -> None:
        self._site = site
        self._executor: Any = executor  # Parsl has no types
        self._provider: Any = executor.provider
        self.label: str = executor.label

    @property
    def nodes_per_block(self) -> int:
        """Number of nodes of each batch job."""
        return int(self._provider.nodes_per_block)

    @property
    def is_here(self) -> bool:
        """True if the workers connect by the loopback address, and so run on this host."""
        try:
            return ipaddress.ip_address(self._executor.address).is_loopback
        except ValueError:  # none, or a name
            return False

    @property
    def scripts(self) -> str:
        """Path of the folder with the batch scripts and their output."""
        return str(self._provider.script_dir)

    @property
    def seconds_between_questions(self) -> float:
        """Minimum time between two queries for the states of batch jobs [s]."""
        return float(self._provider.status_polling_interval)

    @property
    def seconds_to_miss(self) -> float:
        """Time between two heartbeats (signs of life) of a worker pool [s]."""
        return float(self._executor.heartbeat_period)

    @property
    def outstanding(self) -> int:
        """Number of tasks that were sent and have not returned."""
        return int(self._executor.outstanding())

    def start(self, run: str, directory: Path) -> None:
        """Start Parsl's processes on this host, above all the interchange, which forwards tasks.

        Parameters
        ----------
        run
            Unique name of this start of the driver.
        directory
            Directory for Parsl's logs and certificates.
        """
        executor = self._executor
        # The interchange ignores Ctrl-C and the loss of a terminal. The driver ends it after giving
        # everything back. A shell does this, since Python takes seconds until it could.
        deaf = ["/bin/sh", "-c", "trap '' INT HUP; exec \"$@\"", "sh"]
        command = [sys.executable, "-m", interchange.__name__, str(os.getpid())]
        executor.interchange_launch_cmd = [*deaf, *command]
        # A user's own site may still have Parsl's original command.
        executor.launch_cmd = executor.launch_cmd.replace(WORKER_POOL, f"python -m {AGENT}")
        executor.run_id, executor.run_dir = run, str(directory)
        scripts = directory / "submit_scripts"
        scripts.mkdir(exist_ok=True)
        self._provider.script_dir = str(scripts)
        if executor.encrypted:  # existing files keep their mode when keys are written
            certificates = Path(executor.logdir) / "certificates"
            certificates.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in ("server.key", "server.key_secret", "client.key", "client.key_secret"):
                (certificates / name).touch(mode=0o600)
        executor.start()

    def shut_down(self) -> None:
        """End Parsl's processes on this host."""
        if self._executor.interchange_proc is not None:
            # Do not wait for messages that nobody will read.
            self._executor.outgoing_q.zmq_socket.setsockopt(zmq.LINGER, 0)
            self._executor.shutdown()
            # Left open if its thread has died; the garbage collector would wait for it for ever.
            self._executor.incoming_q.close()

    def submit(
        self, manager: str | None, function: Any, *arguments: Any, may_be_held: bool = False
    ) -> Future[Any]:
        """Send a task, a call ``function(*arguments)``, to a worker pool; return its future.

        Parameters
        ----------
        manager
            Identifier of the worker pool; None for any free one.
        function, *arguments
            Function to call, and its arguments.
        may_be_held
            True to send the task also to a pool that gets no further tasks.

        Raises
        ------
        InputError, CampaignStopped
            If the task would not reach a worker.
        """
        self._check()
        context: dict[str, Any] = {}
        if manager is not None:
            context = {interchange.MANAGER: manager, interchange.MAY_BE_HELD: may_be_held}
        call = pack_apply_message(function, arguments, {})
        future: Future[Any] = self._executor.submit_payload(context, call)
        return future

    def managers(self) -> list[Manager]:
        """List the worker pools that are connected now, one on each node.

        Raises
        ------
        InputError, CampaignStopped
            If no pool can connect any more.
        """
        return [
            Manager(
                id=manager["manager"],
                block=manager["block_id"],
                workers=manager["worker_count"],
                tasks=manager["tasks"],
                idle_seconds=manager["idle_duration"],
                held=not manager["active"],
                draining=manager["draining"],
            )
            for manager in self._command("MANAGERS")
        ]

    def readings(self) -> dict[str, Reading]:
        """Return the last energy reading of each node, by the identifier of its worker pool.

        Pools that have ended recently are included.

        Raises
        ------
        InputError, CampaignStopped
            If no pool can connect any more.
        """
        if self._executor.interchange_proc is None:
            return {}
        found: dict[str, bytes] = self._command(interchange.READINGS)
        return {manager: Reading(*json.loads(reading)) for manager, reading in found.items()}

    def last_epochs(self) -> dict[str, LastEpoch]:
        """Return the last epoch of each training, by its attempt; on many nodes a sample of 64.

        Raises
        ------
        InputError, CampaignStopped
            If no pool can connect any more.
        """
        found: dict[str, bytes] = self._command((interchange.EPOCHS, 64))
        of_nodes = [json.loads(epochs) for epochs in found.values()]
        return {attempt: LastEpoch(*epoch) for node in of_nodes for attempt, epoch in node.items()}

    def hold(self, managers: Sequence[str]) -> None:
        """Send no further tasks to the worker pools with these identifiers, for good."""
        self._command((interchange.HOLD, list(managers)))

    def launch(self) -> BatchJob:
        """Submit a batch job that starts workers, and return it; wait for the scheduler's answer.

        Raises
        ------
        Refused
            If the scheduler refuses the job; :class:`NoAnswer` if the scheduler does not answer.
        """
        blocks = self._executor.scale_out_facade(1)
        if not blocks:
            # Parsl keeps the exception of a submission as the text of its block's status.
            message = str([*self._executor.status_facade.values()][-1].message)
            said = message.rpartition("stderr=")[2]
            lines = [line.strip() for line in said.splitlines() if line.strip()]
            refused = Refused if lines and not _NO_ANSWER.search(said) else NoAnswer
            raise refused(lines[-1] if lines else "no reason given")
        number = self._executor.blocks_to_job_id[blocks[0]]
        facts = self._provider.resources.get(number, {})
        others = getattr(self._provider, "errors", f"{facts.get('script_path')}.err")
        errors = Path(facts.get("job_stderr_path") or others)
        return BatchJob(blocks[0], number, errors.name.removesuffix(".stderr"), errors)

    def submitted(self) -> list[str]:
        """Return the scheduler's job numbers of all batch jobs submitted so far."""
        return list(self._executor.blocks_to_job_id.values())

    def cancel(self, jobs: Sequence[str]) -> bool:
        """Cancel batch jobs, given by their numbers; return whether the scheduler cancelled all."""
        try:
            return all(self._provider.cancel(list(jobs)))
        except Exception:  # such as a timeout of the scheduler
            return False

    def states(self, jobs: Sequence[str]) -> dict[str, JobState]:
        """Return the states of batch jobs that are processes of this host, by job number.

        Jobs whose state is unknown are left out.
        """
        try:
            found = self._provider.status(list(jobs))
        except Exception:  # whatever the cause, the states are unknown
            return {}
        states = {}
        for job, status in zip(jobs, found, strict=True):
            if status.state in TERMINAL_STATES:
                states[job] = JobState("ended")
            elif status.state == ParslState.RUNNING:
                states[job] = JobState("running")
        return states

    def exclude(self, nodes: Sequence[str]) -> None:
        """Exclude nodes, by name, from batch jobs that are submitted later; for Slurm only."""
        lines = self._provider.scheduler_options.splitlines()
        lines = [line for line in lines if not line.startswith("#SBATCH --exclude=")]
        if nodes:
            names = ",".join(node.partition(".")[0] for node in nodes)
            lines.append(f"#SBATCH --exclude={names}")
        self._provider.scheduler_options = "\n".join(lines) + "\n"

    def _command(self, command: Any) -> Any:
        self._check()
        try:
            return self._executor.command_client.run(command, timeout_s=60.0)
        except (CommandClientTimeoutError, CommandClientBadError):
            raise CampaignStopped(
                f"site {self._site}: Parsl's interchange does not answer; "
                "the same command continues"
            ) from None

    def _check(self) -> None:
        if self._executor.bad_state_is_set:
            raise InputError(
                f"site {self._site}: its workers do not fit the driver "
                f"({self._executor.executor_exception}); let `worker_init` give them its "
                "environment"
            )
        code = self._executor.interchange_proc.poll()
        if code is not None:
            raise CampaignStopped(
                f"site {self._site}: Parsl's interchange has ended (exit "
                f"code {code}); the same command continues"
            )
        if not self._executor._result_queue_thread.is_alive():
            raise CampaignStopped(
                f"site {self._site}: the thread that receives the results "
                "has ended; the same command continues"
            )


def last_words(errors: Path) -> str:
    """Return the line of a job's standard error (file ``errors``) that best explains its end."""
    try:
        text = errors.read_bytes()[-8192:].decode(errors="replace")
    except OSError:
        text = ""
    # srun labels each line with its task.
    lines = [re.sub(r"^\s*\d+: ", "", line).strip() for line in text.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith(("srun:", "slurmstepd:"))]
    return (own or lines or ["it left no word"])[-1]
