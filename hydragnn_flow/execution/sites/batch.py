"""Parsl executor and provider of a site, and the batch jobs that start its workers.

A site file gives a function that makes a Parsl provider, which submits jobs to its scheduler.
Settings that all machines share, because Parsl's defaults do not suit training on GPUs, are here.

Parsl is imported only where its objects are made: the import takes more than a second, and a
mistake in an option is reported before it.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from hydragnn_flow.data.reading.node_cache import directory_of_user
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.binding import address_of
from hydragnn_flow.execution.pools.calls import AGENT
from hydragnn_flow.execution.pools.waits import drain_seconds
from hydragnn_flow.execution.site import Node, Options, Scheduler, Site
from hydragnn_flow.execution.sites.staging import (
    SCRIPT,
    is_environment,
    pack_environment,
    place_of,
)
from hydragnn_flow.log import tell

if TYPE_CHECKING:
    from parsl import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    from hydragnn_flow.execution.parsl_internals import Bsub, Qsub, Sbatch


_logger = logging.getLogger(__name__)

HEARTBEAT = 15
"""Default of the option `heartbeat` at sites with few nodes [s]."""
_MANY = 64
"""Number of nodes from which the shared file system needs protection: Parsl's logs are not kept,
and what Slurm can send to the nodes' own disks is sent there."""
NO_RERUN = {"slurm": "#SBATCH --no-kill\n#SBATCH --no-requeue", "pbs": "#PBS -r n"}
NO_RERUN |= {"lsf": "#BSUB -rn"}
"""Lines of a batch script, by scheduler: if a node fails the others go on, and no job is rerun."""
JSRUN = "-a 1 -c ALL_CPUS -g ALL_GPUS --bind=none"
"""Options of the `jsrun` that starts an agent on each node with all that the node has."""


def seconds_between_heartbeats(nodes: int) -> int:
    """Return the default of the option `heartbeat` at a site with ``nodes`` nodes [s]."""
    # A whole machine sends some hundred a second, and a lost node is still missed within 90 s.
    return HEARTBEAT + nodes // 2_000


def slurm_jobs(
    options: Options,
    *,
    gpus_per_node: int,
    cores_per_node: int | None = None,
    directives: Sequence[str] = (),
    **arguments: Any,
) -> Callable[..., Sbatch]:
    """Return a function that makes a Parsl provider, the object that submits jobs to Slurm.

    Parameters
    ----------
    options
        Options of the run, completed by the site's defaults.
    gpus_per_node
        Value of `sbatch --gpus-per-node`; 0 to leave it out.
    cores_per_node
        Number of CPUs, as Slurm counts them, for workers on a node; by default all CPUs of the job.
    directives
        Further lines `#SBATCH` that the machine needs.
    **arguments
        Further arguments of Parsl's `SlurmProvider`, which override the arguments set here.
    """

    def provider(**block: Any) -> Sbatch:
        from parsl.launchers import SrunLauncher

        from hydragnn_flow.execution.parsl_internals import Sbatch

        ours: dict[str, Any] = {
            "account": options.account,
            "partition": options.partition,
            "qos": options.qos,
            "constraint": options.constraint,
            "gpus_per_node": gpus_per_node or None,
            "exclusive": True,
            "cmd_timeout": 60,
            "scheduler_options": "\n".join([*directives, NO_RERUN["slurm"]]),
            "launcher": SrunLauncher(overrides=srun_options(cores_per_node, gpus_per_node)),
        }
        return Sbatch(**ours | arguments | block)

    return provider


def pbs_jobs(
    options: Options, *, cpus_per_node: int, directives: Sequence[str], **arguments: Any
) -> Callable[..., Qsub]:
    """Return a function that makes a Parsl provider, the object that submits jobs to PBS Pro.

    Parameters
    ----------
    options
        Options of the run, completed by the site's defaults.
    cpus_per_node
        Number of hardware threads of a node.
    directives
        Further lines `#PBS` that the machine needs.
    **arguments
        Further arguments of Parsl's `PBSProProvider`, which override the arguments set here.
    """

    def provider(**block: Any) -> Qsub:
        from parsl.launchers import MpiExecLauncher

        from hydragnn_flow.execution.parsl_internals import Qsub

        ours: dict[str, Any] = {
            "account": options.account,
            "queue": options.partition,
            "cpus_per_node": cpus_per_node,
            "cmd_timeout": 60,
            "scheduler_options": "\n".join([*directives, NO_RERUN["pbs"]]),
            # Trainer processes bind themselves, each to the cores of its own GCD.
            "launcher": MpiExecLauncher(bind_cmd="--cpu-bind", overrides="--ppn 1"),
        }
        return Qsub(**ours | arguments | block)

    return provider


def lsf_jobs(
    options: Options,
    *,
    cores_per_node: int | None = None,
    directives: Sequence[str] = (),
    **arguments: Any,
) -> Callable[..., Bsub]:
    """Return a function that makes a Parsl provider, the object that submits jobs to LSF.

    Parameters
    ----------
    options
        Options of the run, completed by the site's defaults.
    cores_per_node
        Number of slots to request on each node, whose workers Open MPI starts; None on machines
        whose jobs have whole nodes and `jsrun`.
    directives
        Further lines `#BSUB` that the machine needs.
    **arguments
        Further arguments of Parsl's `LSFProvider`, which override the arguments set here.
    """

    def provider(**block: Any) -> Bsub:
        from parsl.launchers import JsrunLauncher, MpiRunLauncher

        from hydragnn_flow.execution.parsl_internals import Bsub

        mpirun = MpiRunLauncher(overrides="--map-by ppr:1:node --bind-to none")
        ours: dict[str, Any] = {
            "project": options.account,
            "queue": options.partition,
            "request_by_nodes": not cores_per_node,
            "cores_per_node": cores_per_node,
            "cores_per_block": (cores_per_node or 0) * block["nodes_per_block"],
            "cmd_timeout": 60,
            "bsub_redirection": True,  # otherwise most clusters ignore the lines #BSUB
            "scheduler_options": "\n".join([*directives, NO_RERUN["lsf"]]),
            "launcher": mpirun if cores_per_node else JsrunLauncher(overrides=JSRUN),
        }
        return Bsub(**ours | arguments | block)

    return provider


def local_processes(**block: Any) -> LocalProvider:
    """Return a Parsl provider that starts workers as processes of this host, without batch jobs.

    It can be the ``provider`` of :class:`Executors`, which calls it with keywords.
    """
    from parsl.providers import LocalProvider

    return LocalProvider(**block)


def srun_options(cores_per_node: int | None, gpus_per_node: int) -> str:
    """Return the options of the `srun` that starts a worker pool on each node of a batch job.

    Parameters
    ----------
    cores_per_node
        Number of CPUs for workers on a node; None for all CPUs of the job.
    gpus_per_node
        Number of GPUs on a node; 0 requests no GPUs.
    """
    gpus = f" --gpus-per-node={gpus_per_node}" if gpus_per_node else ""
    # srun does not inherit sbatch's cores: without -c all workers share one.
    cores = cores_per_node or "$SLURM_CPUS_ON_NODE"
    return f"--ntasks-per-node=1 -c {cores}{gpus} --no-kill --kill-on-bad-exit=0"


@dataclass(frozen=True)
class Executors:
    """Function object that makes the Parsl configuration of a site, with one executor.

    It is called with the directory for Parsl's files, as `parsl_config` of a :class:`Site`.
    """

    node: Node
    options: Options
    """Options of the run, as resolved by the site."""
    provider: Callable[..., Any]
    """Function that makes a Parsl provider from `nodes_per_block`, `init_blocks`, `min_blocks`,
    `max_blocks`, `worker_init`, and `walltime` if there is one."""
    address: Callable[[], str | None]
    """Function that returns the address of this host at which workers reach the driver; None if
    they try all of its addresses."""
    first_lines: tuple[str, ...] = ()
    """Shell lines that this machine needs at the start of every batch job."""
    staged: Path | None = None
    """Directory of each node for its copy of the Python environment; None to make no copy."""
    broadcast: bool = False
    """True if a batch job sends the environment to its nodes by Slurm's sbcast."""
    has_to_stage: bool = True
    """True to raise an error if the environment cannot be packed; False to make no copies then."""
    sends_store: bool = False
    """True to make a directory on each node for the store that Slurm will send there."""
    own: Any = None
    """Executor of a user's own `parsl.Config`, whose arguments are kept where none is set here."""

    def __call__(self, directory: Path) -> Config:
        """Make the Parsl configuration; pack the Python environment for the nodes if it is staged.

        Raises
        ------
        InputError
            If this host has no address that workers could reach, or ``has_to_stage`` is True and
            the environment cannot be packed.
        """
        address = self.address()
        if self.staged is None:
            return self.config(directory, address)
        try:
            pack_environment(directory, self.staged)
        except InputError as error:
            if self.has_to_stage:
                raise
            tell(_logger, "%s; nodes read it where it is", error)
            return replace(self, staged=None).config(directory, address)
        return self.config(directory, address)

    def config(self, directory: Path, address: str | None) -> Config:
        """Make the site's Parsl configuration, without packing the Python environment.

        Parameters
        ----------
        directory
            Directory for Parsl's files.
        address
            Address at which workers connect to the driver; None for any of this host.
        """
        from parsl import Config

        return Config(
            executors=[self._executor(address, directory)],
            run_dir=str(directory),
            # Blocks follow the demand of the campaign (pools/blocks.py), not the tasks it has sent.
            strategy="none",
            # The campaign repeats lost segments itself, since it knows their checkpoints.
            retries=0,
        )

    def _executor(self, address: str | None, directory: Path) -> HighThroughputExecutor:
        from parsl.executors import HighThroughputExecutor

        from hydragnn_flow.execution.parsl_internals import WORKER_POOL, BlockIdManagerSelector

        nodes = self.options.nodes or 1
        heartbeat = self.options.heartbeat or seconds_between_heartbeats(nodes)
        walltime = self.options.walltime_seconds
        own = self.own or HighThroughputExecutor(label="gcd", address=address)
        kept = {name: getattr(own, name) for name in signature(HighThroughputExecutor).parameters}
        ours: dict[str, Any] = {
            "address": address,
            "encrypted": True,
            "launch_cmd": own.launch_cmd.replace(WORKER_POOL, self._worker_pool(directory)),
            "max_workers_per_node": len(self.node.gcds),
            "cores_per_worker": 1e-6,  # so that the number of workers above counts
            # Trainer processes bind themselves: Parsl sets the variables of all vendors at once,
            # which hides every AMD GCD but the first (parsl issue 3858).
            "available_accelerators": (),
            "cpu_affinity": "none",
            "prefetch_capacity": 0,
            # For tasks without a node of the driver's choice: blocks are filled one after another.
            "manager_selector": BlockIdManagerSelector(),
            # Nodes reach the driver one after another.
            "address_probe_timeout": round(30.0 + 0.02 * nodes),
            # They tell of epochs that have ended: within 10 s, unless nodes are thousands.
            "heartbeat_period": min(heartbeat, 5 + nodes // 600),
            "heartbeat_threshold": 4 * heartbeat,
            # Segments end on their own before their job does. Shortly before that, workers stop
            # accepting tasks.
            "drain_period": walltime - int(drain_seconds(walltime)) if walltime else None,
            # Otherwise Parsl gives up a pool for good when its first job fails.
            "block_error_handler": False,
            "provider": self.provider(**self._block(directory)),
        }
        if nodes > _MANY:
            # A whole machine would make 100,000 new files in one directory at every start.
            ours["worker_logdir_root"] = f"/tmp/hydragnn_flow-{uuid4().hex}"
        return HighThroughputExecutor(**kept | ours)

    def _worker_pool(self, directory: Path) -> str:
        # By module rather than by script, which works in an environment that was moved.
        command = f"{Path(sys.executable).name} -m {AGENT}"
        if self.staged is None:
            return command
        return f". {shlex.quote(str(directory.absolute() / SCRIPT))}; {command}"

    def _block(self, directory: Path) -> dict[str, Any]:
        options = self.options
        block: dict[str, Any] = {
            "nodes_per_block": options.nodes_per_block,
            "init_blocks": 0,
            "min_blocks": 0,
            "max_blocks": options.blocks or 1,
            "worker_init": self._worker_init(directory),
        }
        if options.walltime:
            block["walltime"] = options.walltime
        return block

    def _worker_init(self, directory: Path) -> str:
        """Return the shell lines at the start of a batch job; ``directory`` has Parsl's files."""
        options = self.options
        lines = [*self.first_lines, options.worker_init or ""]
        if is_environment() and "PYTHONUSERBASE" not in os.environ:
            # Packages in ~/.local would replace those of the environment, staged or not. Modules
            # that mean users to install their own set PYTHONUSERBASE (NERSC, ALCF).
            lines.insert(0, "export PYTHONNOUSERSITE=1")
        # After the user's lines, as a module must not bring another Python than the driver's.
        lines.append(f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH")
        if path := os.environ.get("PYTHONPATH"):
            # Modules of the user; PBS passes no variables to jobs.
            folders = os.pathsep.join(str(Path(f).absolute()) for f in path.split(os.pathsep) if f)
            lines.append(f"export PYTHONPATH={shlex.quote(folders)}${{PYTHONPATH:+:$PYTHONPATH}}")
        if options.walltime:
            # Unix time at which the job ends; segments write their last checkpoint before it.
            lines.append(
                "export HYDRAGNN_FLOW_JOB_END=${SLURM_JOB_END_TIME:-"
                f"$(( $(date +%s) + {options.walltime_seconds} ))}}"
            )
        if self.staged is not None and self.broadcast:
            lines.append(f"sh {shlex.quote(str(directory.absolute() / SCRIPT))} broadcast")
        if self.sends_store and self.node.scratch is not None:
            folder = shlex.quote(str(directory_of_user(Path(self.node.scratch))))
            on_each = f"srun --nodes=$SLURM_JOB_NUM_NODES --ntasks-per-node=1 mkdir -p {folder}"
            lines.append(f"(umask 077; {on_each})")
        return "\n".join(line for line in lines if line)


def batch_site(
    name: str,
    node: Node,
    run: Options,
    provider: Callable[..., Any],
    *,
    scheduler: Scheduler | None,
    first_lines: tuple[str, ...] = (),
    priority: str = "",
) -> Site:
    """Make a site (description of a machine) whose workers are started by batch jobs.

    Parameters
    ----------
    name
        Name of the site.
    node
        Description of each node.
    run
        Options of the run, completed by the site's defaults.
    provider
        Function that makes a Parsl provider, such as :func:`slurm_jobs`, :func:`pbs_jobs` and
        :func:`lsf_jobs` return, or another that takes the keywords of ``provider`` in
        :class:`Executors`.
    scheduler
        Batch system of the jobs; None if they are processes of this host.
    first_lines
        Shell lines that this machine needs at the start of every batch job.
    priority
        Sentence on numbers of nodes that the queue prefers, such as :func:`priority_of` returns.
    """
    if scheduler == "pbs":  # which starts jobs in the home directory
        first_lines = (*first_lines, 'cd "$PBS_O_WORKDIR"')
    is_slurm, nodes, environment = scheduler == "slurm", run.nodes or 1, run.environment
    sends = is_slurm and node.scratch is not None and nodes >= _MANY
    if environment is None and sends:
        environment = "stage"
    executors = Executors(
        node,
        run,
        provider,
        address_on(run.interface, name),
        first_lines,
        staged=place_of(environment, node.scratch, name),
        broadcast=is_slurm,
        has_to_stage=run.environment is not None,
        sends_store=sends,
    )
    return Site(
        name=name,
        nodes=nodes,
        node=node,
        parsl_config=executors,
        blocks=run.blocks or 1,
        scheduler=scheduler,
        sends_store=sends,
        walltime=run.walltime_seconds or math.inf,
        priority=priority,
        # A scheduler tells the end of each job.
        ends=time.monotonic() + run.walltime_seconds
        if scheduler is None and run.walltime_seconds
        else math.inf,
    )


def address_on(interface: str | None, site: str) -> Callable[[], str]:
    """Return a function that finds the address of this host at which workers reach the driver.

    Parameters
    ----------
    interface
        Network interface; None for the address to which the host's name resolves.
    site
        Name of the site, for messages.
    """

    def address() -> str:
        if interface is not None:
            return address_of(interface)
        remedy = "give `interface` in a site.yaml, one of those `ip addr` lists that nodes reach"
        try:
            named = socket.gethostbyname(socket.gethostname())
        except OSError as error:
            raise InputError(
                f"site {site}: the name of this host is unknown here; {remedy}"
            ) from error
        if ipaddress.ip_address(named).is_loopback:
            raise InputError(
                f"site {site}: the name of this host resolves to {named}, which no other node can "
                f"reach; {remedy}"
            )
        return named

    return address


@dataclass(frozen=True)
class Limit:
    """Limit of a queue: jobs of ``fewest`` to ``most`` nodes may run for at most ``hours`` [h]."""

    fewest: int
    most: int
    hours: int
    days: int = 0
    """Time by which such a job is ahead in the queue, as if it had waited so long [d]."""


def check_limits(site: str, run: Options, queue: str, limits: Sequence[Limit]) -> None:
    """Raise an error if a queue would refuse the batch jobs of a run for their size or time.

    Parameters
    ----------
    site
        Name of the site, for messages.
    run
        Options of the run, completed by the site's defaults.
    queue
        Name of the queue with these limits.
    limits
        Limits in increasing order of their numbers of nodes, without gaps.

    Raises
    ------
    InputError
        If the run's batch jobs are too small, too large or too long.
    """
    nodes, fewest, most = run.nodes_per_block, limits[0].fewest, limits[-1].most
    if not fewest <= nodes <= most:
        raise InputError(
            f"site {site}: `{queue}` takes jobs of {fewest} to {most} nodes, not of {nodes}; give "
            "other `nodes`, `blocks` or `partition`"
        )
    hours = next(limit.hours for limit in limits if nodes <= limit.most)
    if run.walltime_seconds > 3600 * hours:
        raise InputError(
            f"site {site}: `{queue}` gives a job of {nodes} {'node' if nodes == 1 else 'nodes'} at "
            f"most {hours} h; give a shorter `walltime` than {run.walltime}: another job follows "
            "while there is work"
        )


def priority_of(run: Options, limits: Sequence[Limit], most_aging: int) -> str:
    """Return a sentence on the priority of blocks (batch jobs); empty if there is nothing to say.

    Parameters
    ----------
    run
        Options of the run, completed by the site's defaults.
    limits
        Limits of the queue, with the days by which jobs are ahead.
    most_aging
        Maximum number of a user's jobs whose priority grows while they wait.
    """
    nodes, blocks = run.nodes or 1, run.blocks or 1
    days = {
        few: next((limit.days for limit in limits if nodes // few <= limit.most), 0)
        for few in range(1, blocks + 1)
        if nodes % few == 0
    }
    best = max(days, key=lambda few: (days[few], few))
    waited = f"a job of {nodes // best:,} nodes is queued as if it had waited {days[best]} days"
    if days[best] > days[blocks]:
        less = f"one of {nodes // blocks:,} {days[blocks]}"
        return f"--blocks {best} has more priority: {waited}, {less}"
    if days[best]:
        return waited
    if blocks > most_aging:
        return f"--blocks {most_aging} is enough: no more jobs of a user gain priority by waiting"
    return ""
