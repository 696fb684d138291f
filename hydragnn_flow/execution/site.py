"""Sites: descriptions of machines, the files that define them, and the options of a run there.

Options come from a ``site.yaml``, from the command line (with sbatch's names) or from Python. A
site file (Python) fills in the machine's defaults and refuses what the machine cannot do.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pydantic import Field, field_validator

from hydragnn_flow.config.base import Section, validate
from hydragnn_flow.config.domain import did_you_mean
from hydragnn_flow.errors import InputError
from hydragnn_flow.placement import Gcd
from hydragnn_flow.plain_files import PlainLoader, read_yaml, shipped

Device = Literal["cpu", "cuda", "hip", "xpu"]
PARSL = ("2026.10.19", "2026.11")
"""First version of Parsl that the tests pass with, and the first one that they do not know."""
# Options that the command line has too.
_FLAGS = ("account", "partition", "qos", "walltime", "nodes", "blocks")


def cores_in(group: str) -> set[int]:
    """Return the core numbers that a group of CPU cores such as "0-7,64-71" names.

    Raises
    ------
    ValueError
        If ``group`` has another form.
    """
    cores: set[int] = set()
    for numbers in group.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", numbers)
        if match is None:
            raise ValueError(f"cores: {group!r} is not a group such as '0-7,64-71'")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"cores: {group!r} ends before it begins")
        cores |= set(range(first, last + 1))
    return cores


class NodeOptions(Section):
    """Section `node:` of a `site.yaml`: devices, memory and CPU cores of one node of a machine.

    It takes the place of a site file (Python description of a machine).
    """

    gcds: int = Field(ge=1)
    """Number of GCDs of a node: GPU dies as torch counts devices, or slots of CPU cores."""
    device: Device
    """`hip` (AMD), `cuda` (NVIDIA), `xpu` (Intel) or `cpu`."""
    memory_gib: float = Field(gt=0)
    """Memory of a GCD for segments [GiB]: about nine tenths of the device's memory."""
    cores_per_gcd: int = Field(default=1, ge=1)
    """Number of CPU cores, and so of threads, for each GCD."""
    cores: tuple[str, ...] = ()
    """Cores nearest to each GCD, such as `0-7`, by GCD. By default the system chooses them."""
    cores_of_a_node: int | None = Field(default=None, ge=1)
    """Number of CPU cores of a node that trainers may use. GCDs that need more are refused."""
    gpus: int | None = Field(default=None, ge=0)
    """Value of `sbatch --gpus-per-node`. By default one per GCD, and none for `cpu`."""
    scratch: str | None = None
    """Fast directory on the node's own disk, for copies of the store and the environment."""
    interface: str | None = None
    """Network interface of a node, if its name differs from the login node's."""
    watts: float | None = Field(default=None, gt=0)
    """Most power that all GCDs of a node draw together [W], for `hydragnn-flow plan`."""

    @property
    def gpus_per_node(self) -> int:
        """Number of GPUs that a job requests per node, the value of `sbatch --gpus-per-node`."""
        if self.gpus is not None:
            return self.gpus
        return 0 if self.device == "cpu" else self.gcds


class Options(Section):
    """Options of a run on a machine (site), such as account, queue, time limit and nodes.

    The site file, the machine's Python description, sets the options that are not given.
    """

    account: str | None = None
    """Project that pays (`sbatch -A`, `qsub -A`, `bsub -P`)."""
    partition: str | None = None
    """Partition (`sbatch -p`) or, with PBS and LSF, queue (`qsub -q`, `bsub -q`)."""
    qos: str | None = None
    """Quality of service (`sbatch -q`)."""
    constraint: str | None = None
    """Features of nodes (`sbatch -C`), in addition to those that the site needs."""
    walltime: str | None = None
    """Time limit of each batch job, as `HH:MM:SS`."""
    nodes: int | None = Field(default=None, ge=1)
    """Number of nodes that the campaign uses at a time, in all its batch jobs."""
    blocks: int | None = Field(default=None, ge=1)
    """Number of batch jobs at a time, each of `nodes / blocks` nodes."""
    interface: str | None = None
    """Network interface of the login node at which workers reach the driver; with `slurm` and
    `allocation` also that of the nodes."""
    worker_init: str | None = None
    """Shell lines to run before the workers start, such as `module load rocm`."""
    environment: str | None = None
    """Place of the Python environment on the nodes: a copy in their scratch (`stage`) or in a
    directory, or no copy (`shared`)."""
    heartbeat: int | None = Field(default=None, ge=1)
    """Longest time between heartbeats of a node [s]. A node silent four times as long counts as
    lost."""
    node: NodeOptions | None = None
    """Description of a node, for `slurm` and `allocation`, or what a `parsl.Config` lacks of it."""
    executors: tuple[str, ...] | None = None
    """Label of the executor to use, if a `parsl.Config` has several."""

    @field_validator("account", "partition", "qos", "constraint", "interface", mode="before")
    @classmethod
    def _is_one_word(cls, value: Any) -> Any:
        # Each goes into a line of the batch script.
        if value is not None and not (isinstance(value, str) and re.fullmatch(r"\S+", value)):
            raise ValueError(f"must be one word, a number in quotes; got {value!r}")
        return value

    @field_validator("walltime", mode="before")
    @classmethod
    def _is_hours_minutes_seconds(cls, walltime: Any) -> Any:
        if walltime is None:
            return None
        form = r"\d{1,4}:[0-5]\d:[0-5]\d"
        if not re.fullmatch(form, str(walltime)) or _seconds(walltime) < 60:
            raise ValueError(f"must be HH:MM:SS and at least a minute, got {walltime!r}")
        return walltime

    @property
    def walltime_seconds(self) -> int:
        """Time limit of each batch job, rounded down to whole minutes [s]; 0 if none is given."""
        return _seconds(self.walltime or "00:00:00") // 60 * 60

    @property
    def nodes_per_block(self) -> int:
        """Number of nodes in each batch job."""
        return (self.nodes or 1) // (self.blocks or 1)

    def resolved(
        self, site: str, *, needs: Iterable[str] = (), refuses: Iterable[str] = (), **defaults: Any
    ) -> Options:
        """Return a copy of these options in which a site's defaults fill the options not given.

        Parameters
        ----------
        site
            Name of the site, for messages.
        needs
            Names of options that the site requires.
        refuses
            Names of options that have no meaning on the site.
        **defaults
            Values for options that the user left out.

        Raises
        ------
        InputError
            If an option is missing or has no meaning on the site, or ``nodes`` is not a multiple
            of ``blocks``.
        """
        for name in refuses:
            if getattr(self, name) is not None:
                raise InputError(f"site {site}: takes no option `{name}`; leave it out")
        left = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        filled = self.model_copy(update=left)
        for name in needs:
            if getattr(filled, name) is None:
                flag = f"--{name}, or " if name in _FLAGS else ""
                raise InputError(f"site {site}: needs `{name}`; give {flag}{name} in a site.yaml")
        nodes, blocks = filled.nodes or 1, filled.blocks or 1
        if nodes % blocks:  # before the site divides them
            raise InputError(
                f"site {site}: `nodes` {nodes} is not a multiple of `blocks` {blocks}; give "
                f"{nodes - nodes % blocks or blocks} nodes or other blocks"
            )
        return filled


def _read_site_yaml(path: Path) -> tuple[str, dict[str, Any]]:
    """Read the ``site.yaml`` at ``path``; return the name of the site, and its options.

    The options are plain values by key. If a file with the name of the site lies in the same
    directory, the path of that file is returned as the name.
    """
    values = read_yaml(path, PlainLoader)
    if not isinstance(values.get("site"), str):
        raise InputError(f"{path}: site: this key is required; name a site or a site file")
    name = values.pop("site")
    beside = path.parent / name
    return (str(beside) if beside.is_file() else name), values


def _seconds(walltime: str) -> int:
    hours, minutes, seconds = map(int, walltime.split(":"))
    return 3600 * hours + 60 * minutes + seconds


Scheduler = Literal["slurm", "pbs", "lsf"]


@dataclass(frozen=True)
class Node:
    """Description of one compute node of a site (machine): its devices (GCDs), cores and network.

    All nodes of a site are alike.
    """

    gcds: tuple[str, ...]
    """Name of each GCD of a node in the device runtime, such as "0"; on a laptop, of CPU slots."""
    gcd: Gcd
    """Speed and memory of each GCD."""
    cores_per_gcd: int
    """Number of CPU cores, and so of threads, for each GCD."""
    device: Device
    """Type of the devices; `hip` is an AMD GPU, which torch addresses as `cuda`."""
    scratch: str | None = None
    """Fast directory on the node's disk for a copy of the store; None if there is none."""
    cores: tuple[str, ...] = ()
    """CPU cores of each GCD, such as "49-55", in the order of the GCDs; empty if the system
    chooses them."""
    interface: str | None = None
    """Network interface between the ranks (processes) of a job; None for loopback, which connects
    only ranks on one node."""
    watts: float | None = None
    """Largest power of all GCDs of a node together [W]; None if unknown."""
    cores_of_a_node: int | None = None
    """Number of CPU cores of the node that trainers may use, to check the other values; None if
    unknown."""

    @property
    def uncounted_gib(self) -> float:
        """Memory of a trainer process that its measured peak leaves out [GiB]; 0 on CPUs.

        This is the memory of the accelerator's libraries.
        """
        return 0.0 if self.device == "cpu" else self.gcd.process_gib


@dataclass(frozen=True)
class Site:
    """Machine as the campaign uses it: its nodes, scheduler and Parsl configuration."""

    name: str
    nodes: int
    """Maximum number of nodes of the campaign at a time, in all Parsl blocks (batch jobs)."""
    node: Node
    parsl_config: Callable[[Path], Any]
    """Function that takes the directory for Parsl's files, and returns a `parsl.Config` with one
    `HighThroughputExecutor`."""
    blocks: int = 1
    """Maximum number of blocks (batch jobs) at a time; each has `nodes // blocks` nodes."""
    scheduler: Scheduler | None = None
    """Batch system that starts the blocks; None if they are processes of this host."""
    sends_store: bool = False
    """True if Slurm copies the store to the scratch of each node before the node gets jobs."""
    ends: float = math.inf
    """Monotonic time at which this driver loses all nodes [s]; infinite if unknown, or if a
    scheduler reports the end of each batch job."""

    walltime: float = math.inf
    """Time limit of each batch job [s]; infinite if there is none."""
    priority: str = ""
    """Sentence on numbers of nodes that the queue prefers, for plans; empty without preference."""
    shared: Callable[[Path], AbstractContextManager[Any]] | None = None
    """Function that takes a directory and returns workers that others use too, as a context
    manager; None for workers of one's own."""
    notes: tuple[str, ...] = ()
    """Sentences about facts that are guessed, for `hydragnn-flow site show`."""

    @property
    def gcds(self) -> int:
        """Maximum number of GCDs (devices) that a campaign has at a time, in all its batch jobs."""
        return self.nodes * len(self.node.gcds)

    @property
    def gcds_of_a_block(self) -> int:
        """Number of GCDs (devices) in each block (batch job)."""
        return self.nodes // self.blocks * len(self.node.gcds)


def guessed_gcd(device: Device, memory_gib: float) -> Gcd:
    """Return a description of a GCD (device) with guessed speeds, for a device never measured.

    Parameters
    ----------
    device
        Type of the device; all accelerators get the rates of an H100.
    memory_gib
        Memory that a segment may use [GiB].
    """
    if device == "cpu":
        # One core of a 2024 server processor, one thread, measured on training steps of
        # hidden_dim 8 to 64. Two segments on one core train 0.94 times as fast as in sequence,
        # eight 0.68 times: launching is computing there.
        return Gcd(
            memory_gib, 3e10, 1.8e10, 1.5e-5, process_gib=0.6, most_segments=1, launches=True
        )
    # One H100: `docs/benchmarks.md`, "An accelerator".
    return Gcd(memory_gib, 1e13, 1e12, launch_seconds=4.5e-5, process_gib=0.6, most_segments=4)


def described_node(facts: NodeOptions, interface: str | None) -> Node:
    """Make the description of a node from the ``node:`` section of a ``site.yaml``.

    Parameters
    ----------
    facts
        Values of the ``node:`` section.
    interface
        Network interface of the node if ``facts`` names none.
    """
    return Node(
        gcds=tuple(str(gcd) for gcd in range(facts.gcds)),
        gcd=guessed_gcd(facts.device, facts.memory_gib),
        cores_per_gcd=facts.cores_per_gcd,
        device=facts.device,
        scratch=facts.scratch,
        cores=facts.cores,
        interface=facts.interface or interface,
        watts=facts.watts,
        cores_of_a_node=facts.cores_of_a_node,
    )


def shipped_sites() -> dict[str, Path]:
    """Return the paths of the site files that come with the package, by name of the site."""
    return {file.stem: file for file in shipped("sites", "*.py")}


def load_site(name: str | Path, **options: Any) -> Site:
    """Load a site (description of a machine) from its name or file.

    Parameters
    ----------
    name
        Name of a site that comes with the package (`frontier`), a site file (`sites/mine.py`), or a
        `site.yaml` that names one of these and gives options. A site file defines a function
        `site(options)` that returns a :class:`Site`, or a `parsl.Config`.
    **options
        Fields of :class:`~hydragnn_flow.execution.site.Options`; each that is not None overrides
        the same field of a `site.yaml`.

    Raises
    ------
    InputError
        If there is no such site, its file does not define a site, the site refuses the options, its
        facts contradict each other, or Parsl has a version that was not tested.
    """
    _check_parsl()
    name = os.fspath(name)
    source = f"--site {name}"
    values: dict[str, Any] = {}
    site_file = name
    if Path(name).suffix in (".yaml", ".yml"):
        source = str(name)
        site_file, values = _read_site_yaml(Path(name))
    values |= {key: value for key, value in options.items() if value is not None}
    path = _find(site_file, source)
    site = _site_of(path, values, source)
    with _loading(path):
        # Facts of shipped sites are right; what contradicts them was given.
        given = "node" in values or path in shipped_sites().values()
        check_site(site, source if given else path, "node" if "node" in values else "node.gcd")
    return site


def _check_parsl() -> None:
    """Refuse another version of Parsl than those tested, before it is imported."""
    here, (first, after) = version("parsl"), PARSL
    numbers = [[*map(int, re.findall(r"\d+", one)[:3])] for one in (first, here, after)]
    if not numbers[0] <= numbers[1] < numbers[2]:
        raise InputError(
            f"Parsl {here} was not tested with this package, which relies on internals of Parsl; "
            f"install 'parsl>={first},<{after}'"
        )


def about_site(name: str | Path) -> tuple[str, Options]:
    """Return the first line of a site file's docstring, and the file's example of options.

    Parameters
    ----------
    name
        Name of a shipped site, or a site file.

    Raises
    ------
    InputError
        If there is no such file, or it cannot be loaded.
    """
    module = _module_of(_find(str(name), "site"))
    return (module.__doc__ or "").partition("\n")[0], getattr(module, "EXAMPLE", Options())


def _find(name: str, source: str) -> Path:
    shipped = shipped_sites()
    path = shipped.get(name, Path(name))
    if not path.is_file():
        raise InputError(
            f"{source}: {name} is neither a file nor one of {', '.join(shipped)}"
            f"{did_you_mean(name, shipped) or '; check the name'}"
        )
    if path.suffix != ".py":
        raise InputError(f"{source}: {name} is no site file; name a Python file or a shipped site")
    return path


def _site_of(path: Path, values: dict[str, Any], source: str) -> Site:
    module = _module_of(path)
    if not hasattr(module, "site"):
        with _loading(path):
            from hydragnn_flow.execution.sites.own_config import site_of

            return site_of(path, module, values, source)
    options: Options = validate(Options, values, source)
    if options.executors is not None:
        raise InputError(f"{source}: executors: {path.name} defines no parsl.Config; leave it out")
    with _loading(path):
        site = module.site(options)
    if not isinstance(site, Site):
        raise InputError(f"{path}: site() must return a hydragnn_flow Site, not {type(site)}")
    return site


def _module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"hydragnn_flow_site_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # it is a .py file
    module = importlib.util.module_from_spec(spec)
    with _loading(path):
        text = path.read_text(encoding="utf-8")
        # Only a file that imports Parsl waits for that.
        if re.search(r"^\s*(from|import) parsl\b", text, re.M) and "def site(" not in text:
            from hydragnn_flow.execution.parsl_internals import as_published

            with as_published():
                spec.loader.exec_module(module)
        else:
            spec.loader.exec_module(module)
    return module


@contextmanager
def _loading(path: Path) -> Iterator[None]:
    """Context manager: turn an error raised inside it into one that names the site file ``path``.

    An InputError stays as it is.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        name = type(error).__name__
        raise InputError(f"{path}: cannot be loaded ({name}: {error})") from error


def check_site(site: Site, source: object, gcd_key: str = "node.gcd") -> None:
    """Raise an error if the facts of a site (machine) contradict each other or are impossible.

    Parameters
    ----------
    site
        Site as returned by its file.
    source
        File that the message names as the source of the facts.
    gcd_key
        Key in that file that holds the facts of a GCD (device): `node` in a `site.yaml`.

    Raises
    ------
    InputError
        If there is a contradiction; the message names file, key and remedy of the first one.
    """
    for said in _contradictions(site, gcd_key):
        raise InputError(f"{source}: {said}")


def _contradictions(site: Site, key: str) -> Iterator[str]:
    node, gcd, gcds = site.node, site.node.gcd, len(site.node.gcds)
    counts = {
        "nodes": site.nodes,
        "blocks": site.blocks,
        f"{key}.most_segments": gcd.most_segments,
        "node.cores_per_gcd": node.cores_per_gcd,
    }
    for name, count in counts.items():
        if count < 1:
            yield f"{name}: must be at least 1, got {count}; correct it"
    if rest := site.nodes % site.blocks:
        yield (
            f"nodes: {site.nodes} is not a multiple of the {site.blocks} blocks; give "
            f"{site.nodes - rest or site.blocks} nodes or other blocks"
        )
    if not gcds:
        yield "node.gcds: the node has no GCD; name at least one"
    name, times = Counter(node.gcds).most_common(1)[0]
    if times > 1:
        yield f"node.gcds: {name!r} is there {times} times; give each GCD a name of its own"
    for fact in ("memory_gib", "flops", "bandwidth", "launch_seconds"):
        if not 0 < (value := getattr(gcd, fact)) < math.inf:
            yield f"{key}.{fact}: must be above 0 and finite, got {value:g}; correct it"
    if not 0 <= gcd.process_gib < gcd.memory_gib:
        yield (
            f"{key}.memory_gib: {gcd.memory_gib:g} GiB leave nothing beside the "
            f"{gcd.process_gib:g} GiB that a process takes before it has a model; give more memory "
            "or fewer GCDs"
        )
    if node.scratch is not None and not Path(node.scratch).is_absolute():
        yield f"node.scratch: must be an absolute path, got {node.scratch!r}; correct it"
    have, need = node.cores_of_a_node, gcds * node.cores_per_gcd
    if have is not None and need > have:
        yield (
            f"node.cores_per_gcd: {gcds} GCDs of {node.cores_per_gcd} cores need {need}, and a "
            f"node has {have}; give fewer cores or GCDs"
        )
    if node.cores and len(node.cores) != gcds:
        yield f"node.cores: {len(node.cores)} groups for {gcds} GCDs; give one each"
    groups: list[tuple[str, set[int]]] = []
    for group in node.cores:
        try:
            groups.append((group, cores_in(group)))
        except ValueError as error:
            yield f"node.{error}; correct it"
    for group, cores in groups:
        # A core may have one, two or four hardware threads, each of which may be named.
        if len(cores) not in [node.cores_per_gcd * threads for threads in (1, 2, 4)]:
            yield (
                f"node.cores: {group!r} names {len(cores)} for a cores_per_gcd of "
                f"{node.cores_per_gcd}; make them agree"
            )
    for (one, first), (other, second) in combinations(groups, 2):
        if both := first & second:
            yield (
                f"node.cores: {one!r} and {other!r} both name core {min(both)}; give each GCD "
                "cores of its own"
            )
