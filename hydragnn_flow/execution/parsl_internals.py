"""Internals of Parsl on which this package relies, and the versions that it is tested with.

Parsl has a release a week, and renames what its documentation does not promise. The other modules
import such names from here, and :data:`USED` lists the attributes that they read, set or replace.
Another version is thus refused in one sentence, and does not fail in the middle of a campaign.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import parsl.addresses
import parsl.config
from parsl.addresses import address_by_interface
from parsl.app.errors import RemoteExceptionWrapper
from parsl.dataflow.rundirs import make_rundir
from parsl.executors import HighThroughputExecutor
from parsl.executors.execute_task import execute_task
from parsl.executors.high_throughput import executor as executors
from parsl.executors.high_throughput import interchange, process_worker_pool
from parsl.executors.high_throughput.errors import (
    CommandClientBadError,
    CommandClientTimeoutError,
    ManagerLost,
)
from parsl.executors.high_throughput.executor import DEFAULT_LAUNCH_CMD
from parsl.executors.high_throughput.manager_record import ManagerRecord
from parsl.executors.high_throughput.manager_selector import BlockIdManagerSelector
from parsl.executors.high_throughput.mpi_resource_management import TaskScheduler
from parsl.jobs.states import TERMINAL_STATES, JobState
from parsl.log_utils import set_file_logger
from parsl.logconfigs.base import oneshot_initialize_logging
from parsl.providers import LocalProvider, PBSProProvider, SlurmProvider
from parsl.providers.errors import SubmitException
from parsl.serialize import pack_apply_message, serialize
from parsl.utils import setproctitle
from parsl.version import VERSION

from hydragnn_flow.errors import InputError
from hydragnn_flow.log import tell

__all__ = [
    "DEFAULT_LAUNCH_CMD",
    "TERMINAL_STATES",
    "WORKER_POOL",
    "BlockIdManagerSelector",
    "CommandClientBadError",
    "CommandClientTimeoutError",
    "JobState",
    "ManagerLost",
    "RemoteExceptionWrapper",
    "Sbatch",
    "SubmitException",
    "TaskScheduler",
    "as_published",
    "check_parsl",
    "execute_task",
    "interchange",
    "make_rundir",
    "oneshot_initialize_logging",
    "pack_apply_message",
    "process_worker_pool",
    "serialize",
    "set_file_logger",
    "setproctitle",
]

_logger = logging.getLogger(__name__)

WORKER_POOL = "process_worker_pool.py"
"""Program of Parsl's workers, in the launch command of an executor."""
TESTED = ("2026.10.19", "2026.11")
"""First version of Parsl that the tests passed with, and the first one not known to them."""
_OF_PROVIDERS = "script_dir resources worker_init launcher nodes_per_block max_blocks submit cancel"
USED: dict[Any, str] = {
    HighThroughputExecutor: "provider label address encrypted logdir run_id run_dir cert_dir "
    "interchange_launch_cmd launch_cmd interchange_proc outgoing_q incoming_q command_client "
    "_result_queue_thread bad_state_is_set executor_exception status_facade blocks_to_job_id "
    "scale_out_facade submit_payload outstanding start shutdown heartbeat_period logconf_path "
    "worker_port initialize_scaling _get_launch_command available_accelerators cpu_affinity "
    "max_workers_per_node workers_per_node cores_per_worker mem_per_worker",
    interchange.Interchange: "start process_command process_task_incoming count socks "
    "process_manager_socket_message expire_bad_managers expire_drained_managers command_channel "
    "task_incoming manager_sock results_outgoing _ready_managers heartbeat_threshold",
    ManagerRecord: "tasks active draining drain_time idle_since",
    process_worker_pool.Manager: "start create_reg_message heartbeat_to_incoming task_scheduler "
    "pending_result_queue worker_count",
    TaskScheduler: "put_task get_result",
    interchange: "time",
    process_worker_pool: "time distributions SpawnContext get_arg_parser",
    SlurmProvider: f"{_OF_PROVIDERS} execute_wait scheduler_options walltime cores_per_node "
    "mem_per_node status_polling_interval",
    PBSProProvider: f"{_OF_PROVIDERS} execute_wait scheduler_options walltime cpus_per_node "
    "select_options status_polling_interval",
    LocalProvider: f"{_OF_PROVIDERS} status status_polling_interval",
    parsl.addresses: "address_by_interface",
    executors: "get_all_addresses",
}
"""Attributes that this package reads, sets or replaces, by class or module of Parsl."""


def check_parsl() -> None:
    """Warn if Parsl has another version than those tested.

    Raises
    ------
    InputError
        If it lacks an attribute of :data:`USED`.
    """
    first, after = TESTED
    remedy = f"install 'parsl>={first},<{after}'"
    for owner, names in USED.items():
        for name in {*names.split()} - _attributes(owner):
            raise InputError(f"Parsl {VERSION}: has no {owner.__name__}.{name}; {remedy}")
    if not _numbers(first) <= _numbers(VERSION) < _numbers(after):
        tell(
            _logger,
            "Parsl %s is none of the versions tested with this package; %s",
            VERSION,
            remedy,
        )


def _attributes(owner: Any) -> set[str]:
    """Return the attributes of a module, or of a class and its objects.

    Attributes of objects are those that the methods name.
    """
    found = {*dir(owner), *getattr(owner, "__annotations__", ())}
    if isinstance(owner, ModuleType):
        return found
    for kind in owner.__mro__:
        for method in filter(inspect.isfunction, vars(kind).values()):
            found |= {*inspect.unwrap(method).__code__.co_names}
    return found


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


class Sbatch(SlurmProvider):
    """Parsl's Slurm provider, which submits and cancels jobs without asking `sacct`.

    Parsl's own provider runs `sacct` when it is made, to read the states of jobs from there later,
    and waits if the accounting database hangs. Here the states come from `squeue`
    (pools/scheduler.py).
    """

    def execute_wait(self, cmd: str, timeout: int | None = None) -> tuple[int, str, str]:
        """Run a command for Parsl; return its exit code, standard output and standard error.

        A command `sacct` is not run, and gets the exit code 1.

        Parameters
        ----------
        cmd
            Command line to run in a shell.
        timeout
            Time limit of the command [s]; None for the provider's own.
        """
        if cmd.startswith("sacct"):
            return 1, "", "not asked"
        answer: tuple[int, str, str]
        answer = super().execute_wait(cmd, timeout)  # type: ignore[no-untyped-call]
        return answer


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


@contextmanager
def as_published() -> Iterator[None]:
    """Context manager: let a file with a published `parsl.Config` be loaded on any host.

    An address remembers its ``interface``, which this host need not have; Parsl asks no web service
    for further addresses, and Slurm no database for its jobs; and `Config` takes arguments that
    Parsl has removed since.
    """
    ours = {
        (parsl.addresses, "address_by_interface"): _address_by_interface,
        (executors, "get_all_addresses"): set,
        (parsl, "Config"): _Published,
        (parsl.config, "Config"): _Published,
        (parsl.providers, "SlurmProvider"): Sbatch,
    }
    before = {(owner, name): getattr(owner, name) for owner, name in ours}
    try:
        for (owner, name), value in ours.items():
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name), value in before.items():
            setattr(owner, name, value)
