"""Sites: descriptions of machines, and the site files that define them."""

from __future__ import annotations

import importlib.util
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.options import (
    Device,
    NodeOptions,
    Options,
    cores_in,
    make_options,
    read_site_yaml,
)
from hydragnn_flow.placement import Gcd

Scheduler = Literal["slurm", "pbs"]
LABEL = "gcd"
"""Name of a site's Parsl executor, which has one worker per GCD."""


@dataclass(frozen=True)
class Node:
    """Node of a site."""

    gcds: tuple[str, ...]
    """Names of its GCDs in the device runtime; on a laptop, CPU slots."""
    gcd: Gcd
    """Speed and memory of each GCD."""
    cores_per_gcd: int
    """Number of CPU cores, and so of threads, for each GCD."""
    device: Device
    """Kind of device for torch; `hip` is an AMD GPU, which torch addresses as `cuda`."""
    scratch: str | None = None
    """Fast local directory for a copy of the store; None if there is none."""
    cores: tuple[str, ...] = ()
    """Cores of each GCD, in the order of the GCDs, as in "49-55"; empty for the system's choice."""
    interface: str | None = None
    """Network interface of the ranks of a gang; None for the system's choice."""
    watts: float | None = None
    """Largest power of all its GCDs together [W]; None if unknown."""
    cores_of_a_node: int | None = None
    """Number of CPU cores of the node that trainers may use, to check the other values; None if
    unknown."""

    @property
    def uncounted_gib(self) -> float:
        """Memory of a process missing from its measured peak [GiB]: an accelerator's libraries."""
        return 0.0 if self.device == "cpu" else self.gcd.process_gib


@dataclass(frozen=True)
class Site:
    """Machine with nodes, as the campaign uses it."""

    name: str
    nodes: int
    """Maximum number of nodes of the campaign at a time, in all blocks."""
    node: Node
    parsl_config: Callable[[Path], Any]
    """Function from a directory for Parsl's files to a `parsl.Config` with an executor `gcd`."""
    blocks: int = 1
    """Maximum number of blocks at a time; each has `nodes // blocks` nodes."""
    scheduler: Scheduler | None = None
    """Batch system that starts the blocks; None if processes are started directly."""
    sends_store: bool = False
    """True if Slurm copies the store to the scratch of each node before it gets work."""
    ends: float = math.inf
    """Monotonic time at which all nodes end [s], where no scheduler tells it."""

    walltime: float = math.inf
    """Longest time of each batch job [s]."""

    @property
    def gcds(self) -> int:
        """Number of GCDs at a time, in all blocks."""
        return self.nodes * len(self.node.gcds)

    @property
    def gcds_of_a_block(self) -> int:
        """Number of GCDs in a block."""
        return self.nodes // self.blocks * len(self.node.gcds)


def guessed_gcd(device: Device, memory_gib: float) -> Gcd:
    """Make a GCD with guessed rates, for a device that was not measured.

    The rates only affect the placement of the first trials; every finished trial corrects them.

    Parameters
    ----------
    device
        Kind of device that torch computes on.
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
    """Make a node from a ``node:`` section.

    Parameters
    ----------
    facts
        Section that describes the node.
    interface
        Network interface if the section names none.
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
    """Site files that come with the package, by name."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_sites", package.parent / "sites"):
        if folder.is_dir():
            return {file.stem: file for file in sorted(folder.glob("*.py"))}
    return {}


def load_site(name: str | Path, **options: Any) -> Site:
    """Load a site from its name or file.

    Parameters
    ----------
    name
        Name of a site that comes with the package (`frontier`), a site file (`sites/mine.py`), or a
        `site.yaml` that names one of these and gives options. A site file defines a function
        `site(options)` that returns a :class:`Site`.
    **options
        Fields of :class:`~hydragnn_flow.execution.options.Options`; each overrides that of a
        `site.yaml`, unless it is None.

    Raises
    ------
    InputError
        If there is no such site, its file does not define one, it refuses the options, or its facts
        contradict each other.
    """
    name = os.fspath(name)
    source = f"--site {name}"
    values: dict[str, Any] = {}
    site_file = name
    if Path(name).suffix in (".yaml", ".yml"):
        source = str(name)
        site_file, values = read_site_yaml(Path(name))
    values |= {key: value for key, value in options.items() if value is not None}
    path, run = _find(site_file, source), make_options(values, source)
    site = _site_of(path, run)
    with _loading(path):
        # Facts of shipped sites are right; what contradicts them was given.
        given = run.node is not None or path in shipped_sites().values()
        check_site(site, source if given else path, "node.gcd" if run.node is None else "node")
    return site


def about_site(name: str | Path) -> tuple[str, Options]:
    """Read the first line of a site file's docstring, and its ``EXAMPLE`` of options.

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
            f"{source}: {name} is neither a file nor one of {', '.join(shipped)}; check the name"
        )
    if path.suffix != ".py":
        raise InputError(f"{source}: {name} is no site file; name a Python file or a shipped site")
    return path


def _site_of(path: Path, options: Options) -> Site:
    module = _module_of(path)
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
        spec.loader.exec_module(module)
    return module


@contextmanager
def _loading(path: Path) -> Iterator[None]:
    """Name the site file in any error raised by its code."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        name = type(error).__name__
        raise InputError(f"{path}: cannot be loaded ({name}: {error})") from error


def check_site(site: Site, source: object, gcd_key: str = "node.gcd") -> None:
    """Refuse a site whose facts contradict each other or are impossible.

    Parameters
    ----------
    site
        Site as returned by its file.
    source
        File with the facts, for the message.
    gcd_key
        Key of the facts of a GCD in that file: `node` in a `site.yaml`.

    Raises
    ------
    InputError
        With the first contradiction; the message names file, key and remedy.
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
    have, need = node.cores_of_a_node, gcds * node.cores_per_gcd
    if have is not None and need > have:
        yield (
            f"node.cores_per_gcd: {gcds} GCDs of {node.cores_per_gcd} cores need {need}, and a "
            f"node has {have}; give fewer"
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
