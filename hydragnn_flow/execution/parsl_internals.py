"""Internals of Parsl on which this package relies: names that its documentation does not promise.

Parsl has a release a week, and renames such names. The other modules import them from here, and
`tests/execution/test_parsl_internals.py` lists the attributes that they read, set or replace.
"""

# ruff: noqa: F401 -- imported from here

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import parsl.addresses
import parsl.config
from parsl.addresses import address_by_interface
from parsl.app.errors import RemoteExceptionWrapper
from parsl.dataflow.rundirs import make_rundir
from parsl.executors.base import ParslExecutor
from parsl.executors.errors import InvalidResourceSpecification
from parsl.executors.execute_task import execute_task
from parsl.executors.high_throughput import executor, interchange, process_worker_pool
from parsl.executors.high_throughput.errors import (
    CommandClientBadError,
    CommandClientTimeoutError,
    ManagerLost,
)
from parsl.executors.high_throughput.manager_selector import BlockIdManagerSelector
from parsl.executors.high_throughput.mpi_resource_management import TaskScheduler
from parsl.jobs.states import TERMINAL_STATES, JobState
from parsl.log_utils import set_file_logger
from parsl.logconfigs.base import oneshot_initialize_logging
from parsl.monitoring.radios.filesystem import FilesystemRadio
from parsl.providers import LSFProvider, PBSProProvider, SlurmProvider, cluster_provider
from parsl.providers.errors import SubmitException
from parsl.serialize import deserialize, pack_apply_message, serialize
from parsl.utils import setproctitle

WORKER_POOL = "process_worker_pool.py"
"""Program of Parsl's workers, in the launch command of an executor."""
IN_A_THREAD = "_parsl_internal"
"""Label of the executor whose apps run in threads of the script, in every `DataFlowKernel`."""


class _Named:
    """Mixin of Parsl's providers: a batch job is named after its run directory and its block."""

    script_dir: str | None

    def submit(self, command: str, tasks_per_node: int, job_name: str = "parsl") -> str:
        """Submit a batch job; return its number.

        Parameters
        ----------
        command
            Command line that starts the workers of a node.
        tasks_per_node
            Number of workers to start on each node.
        job_name
            Parsl's name of the job, which ends with the block and is the same for all runs.
        """
        # RUN_DIR/parsl/000/submit_scripts; both batch systems take these characters.
        run = re.sub(r"[^A-Za-z0-9._-]", "_", Path(self.script_dir or "").parts[-4])[:64]
        name = f"{run}.{job_name.rpartition('.')[2]}"
        number: str = super().submit(command, tasks_per_node, name)  # type: ignore[misc]
        return number


class Qsub(_Named, PBSProProvider):
    """Parsl's PBS Pro provider, whose jobs are named after the run directory."""


class _Asking(cluster_provider.ClusterProvider):
    """Base that Parsl's providers call for each command of a scheduler."""

    def execute_wait(self, cmd: str, timeout: int | None = None) -> tuple[int, str, str]:
        """Run a command for Parsl; return its exit code, standard output and standard error.

        Parameters
        ----------
        cmd
            Command line to run in a shell; `sacct` is not run, and gets the exit code 1.
        timeout
            Time limit of the command [s]; None for the provider's own.

        Raises
        ------
        SubmitException
            If `bsub` refuses a job, whose reason Parsl would only log.
        """
        if cmd.startswith("sacct"):
            return 1, "", "not asked"
        code, out, err = super().execute_wait(cmd, timeout)  # type: ignore[no-untyped-call]
        if cmd.startswith("bsub"):
            if code:
                raise SubmitException(cmd, "refused", out, err, code)  # type: ignore[no-untyped-call]
            self.errors = f"{cmd.split()[-1]}.stderr"  # of the last job; Parsl keeps no path
        return code, out, err


class Bsub(_Named, LSFProvider, _Asking):
    """Parsl's LSF provider, whose jobs are named after the run directory."""


class Sbatch(_Named, SlurmProvider, _Asking):
    """Parsl's Slurm provider, which submits and cancels jobs without asking `sacct`.

    Parsl's own provider runs `sacct` when it is made, to read the states of jobs from there later,
    and waits if the accounting database hangs. Here the states come from `squeue`
    (pools/scheduler.py).
    """


class _Published(parsl.Config):
    """Parsl's `Config` of which only the executors are read.

    Pages of computing centres give arguments that Parsl has removed since.
    """

    def __init__(self, executors: Any = None, **others: Any) -> None:
        del others
        super().__init__(executors=executors)


class _Address(str):
    """Address of a network interface of this host."""

    interface: str


def _address_by_interface(name: str) -> str:
    """Return the address of an interface, or its name if this host does not have it."""
    try:
        found = _Address(address_by_interface(name))
    except OSError:
        found = _Address(name)
    found.interface = name
    return found


def _load(*_: object) -> None:
    raise RuntimeError("parsl.load is the campaign's; remove it from the file")


@contextmanager
def as_published() -> Iterator[None]:
    """Context manager: let a file with a published `parsl.Config` be loaded on any host.

    An address remembers its ``interface``, which this host need not have; Parsl asks no web service
    for further addresses, and Slurm no database for its jobs; and `Config` takes arguments that
    Parsl has removed since.
    """
    ours = {
        (parsl.addresses, "address_by_interface"): _address_by_interface,
        (executor, "get_all_addresses"): set,
        (parsl, "Config"): _Published,
        (parsl, "load"): _load,
        (parsl.config, "Config"): _Published,
        (parsl.providers, "SlurmProvider"): Sbatch,
        (parsl.providers, "PBSProProvider"): Qsub,
        (parsl.providers, "LSFProvider"): Bsub,
    }
    with replaced_by(ours):
        yield


@contextmanager
def replaced_by(ours: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Context manager: give attributes of Parsl's modules other values.

    ``ours`` has them by module and name of the attribute.
    """
    before = {(owner, name): getattr(owner, name) for owner, name in ours}
    try:
        for (owner, name), value in ours.items():
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name), value in before.items():
            setattr(owner, name, value)
