"""What a machine offers, and the site files that say so."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hydragnn_flow.errors import InputError
from hydragnn_flow.placement import Gcd

Device = Literal["cpu", "cuda", "hip", "xpu"]


@dataclass(frozen=True)
class Node:
    """One node of a site."""

    gcds: tuple[str, ...]
    """Names of its GCDs as the device runtime knows them; on a laptop, CPU slots."""
    gcd: Gcd
    """What each can do."""
    cores_per_gcd: int
    """CPU cores, and so threads, for each."""
    device: Device
    """What torch computes on; `hip` is an AMD GPU, which torch addresses as `cuda`."""
    scratch: str | None = None
    """Fast directory of the node's own, for a copy of the store; none where not given."""


@dataclass(frozen=True)
class Site:
    """A machine."""

    name: str
    nodes: int
    """Nodes a campaign may use at a time."""
    node: Node
    parsl_config: Callable[[Path], Any]
    """Directory for Parsl's own files -> `parsl.Config` with executors `gcd` and `node`."""


def shipped_sites() -> dict[str, Path]:
    """The site files that come with the package, by name."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_sites", package.parent / "sites"):
        if folder.is_dir():
            return {file.stem: file for file in sorted(folder.glob("*.py"))}
    return {}


def load_site(name: str | Path) -> Site:
    """Load a site file.

    Parameters
    ----------
    name
        Path of a site file (`sites/mine.py`), or the name of one that comes with the package
        (`local`). The file defines a function `site()` that returns a :class:`Site`.

    Raises
    ------
    InputError
        If there is no such site, or its file does not define one.
    """
    shipped = shipped_sites()
    path = shipped.get(str(name), Path(name))
    if not path.is_file():
        raise InputError(
            f"--site {name}: is neither a file nor one of {', '.join(shipped)}; check the name"
        )
    spec = importlib.util.spec_from_file_location(f"hydragnn_flow_site_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"--site {name}: is not a Python file; give a .py file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        site = module.site()
    except Exception as error:
        raise InputError(f"{path}: cannot be loaded ({type(error).__name__}: {error})") from error
    if not isinstance(site, Site):
        raise InputError(f"{path}: site() must return a hydragnn_flow Site, not {type(site)}")
    return site
