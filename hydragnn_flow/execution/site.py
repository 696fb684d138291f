"""Sites: descriptions of machines, and the site files that contain them."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.options import (
    Device,
    NodeOptions,
    Options,
    make_options,
    read_site_yaml,
)
from hydragnn_flow.execution.site_facts import check_site
from hydragnn_flow.placement import Gcd

Scheduler = Literal["slurm", "pbs"]
LABEL = "gcd"
"""Name of a site's Parsl executor, which has a worker for each GCD."""


@dataclass(frozen=True)
class Node:
    """One node of a site."""

    gcds: tuple[str, ...]
    """Names of its GCDs as the device runtime knows them; on a laptop, CPU slots."""
    gcd: Gcd
    """Speed and memory of each."""
    cores_per_gcd: int
    """CPU cores, and so threads, for each."""
    device: Device
    """Kind of device for torch; `hip` is an AMD GPU, which torch addresses as `cuda`."""
    scratch: str | None = None
    """Fast directory of the node's own, for a copy of the store; none if not given."""
    cores: tuple[str, ...] = ()
    """Cores of each GCD, GCD after GCD, as in "49-55"; empty if left to the system."""
    interface: str | None = None
    """Network interface on which the ranks of a gang meet; left to the system if not given."""
    watts: float | None = None
    """Most power that all its GCDs draw together [W]; not known if not given."""
    cores_of_a_node: int | None = None
    """CPU cores of the node that trainers may use, to check the others against; unknown if not
    given."""

    @property
    def uncounted_gib(self) -> float:
        """Memory of a process that its measured peak lacks [GiB]: an accelerator's libraries."""
        return 0.0 if self.device == "cpu" else self.gcd.process_gib


@dataclass(frozen=True)
class Site:
    """A machine."""

    name: str
    nodes: int
    """Nodes a campaign may use at a time, in all blocks."""
    node: Node
    parsl_config: Callable[[Path], Any]
    """Directory for Parsl's own files -> `parsl.Config` with an executor `gcd`."""
    blocks: int = 1
    """Most blocks at a time; each has `nodes // blocks` nodes."""
    scheduler: Scheduler | None = None
    """Batch system that starts the blocks; none if processes are started directly."""
    sends_store: bool = False
    """Whether Slurm brings a copy of the store to the scratch of each node before it gets work."""
    ends: float = math.inf
    """Time by the monotonic clock at which all nodes are gone [s], where no scheduler says it."""

    walltime: float = math.inf
    """Longest time of each batch job [s]."""

    @property
    def gcds_of_a_block(self) -> int:
        """GCDs of all nodes of a block."""
        return self.nodes // self.blocks * len(self.node.gcds)


def guessed_gcd(device: Device, memory_gib: float) -> Gcd:
    """A GCD that has not been measured.

    The rates decide only how the first trials are placed; every finished trial corrects them.

    Parameters
    ----------
    device
        What torch computes on.
    memory_gib
        Memory a segment may use [GiB].
    """
    if device == "cpu":
        # One core of a 2024 server processor, one thread, measured on training steps of
        # hidden_dim 8 to 64. Two of them on one core train 0.94 times as much as one after the
        # other, eight 0.68 times: to launch is to compute there.
        return Gcd(
            memory_gib, 3e10, 1.8e10, 1.5e-5, process_gib=0.6, most_segments=1, launches=True
        )
    # One H100: `docs/benchmarks.md`, "An accelerator".
    return Gcd(memory_gib, 1e13, 1e12, launch_seconds=4.5e-5, process_gib=0.6, most_segments=4)


def described_node(facts: NodeOptions, interface: str | None) -> Node:
    """The node that a ``node:`` section describes.

    Parameters
    ----------
    facts
        The section.
    interface
        Network interface where the section names none.
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
    """The site files that come with the package, by name."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_sites", package.parent / "sites"):
        if folder.is_dir():
            return {file.stem: file for file in sorted(folder.glob("*.py"))}
    return {}


def load_site(name: str | Path, **options: Any) -> Site:
    """Load a site.

    Parameters
    ----------
    name
        The name of a site that comes with the package (`frontier`), a site file
        (`sites/mine.py`), or a `site.yaml` that names one of these and gives options. A site file
        defines a function `site(options)` that returns a :class:`Site`.
    **options
        Fields of :class:`~hydragnn_flow.execution.options.Options`; each overrides that of a
        `site.yaml`, and None leaves it alone.

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
        if run.node is None:
            check_site(site, path)
        else:
            check_site(site, source, gcd_key="node")
    return site


def about_site(name: str | Path) -> tuple[str, Options]:
    """The first line of a site file's docstring, and its ``EXAMPLE`` of options.

    Parameters
    ----------
    name
        The name of a shipped site, or a site file.

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
    """Name the site file in any error of its code."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        name = type(error).__name__
        raise InputError(f"{path}: cannot be loaded ({name}: {error})") from error
