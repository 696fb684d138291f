"""What a user says of a run on a machine: account, partition, walltime, nodes.

It comes from a ``site.yaml``, from the command line (with sbatch's names) or from Python; a site
file reads it, fills in the site's own defaults and refuses what the machine cannot honour.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, field_validator, model_validator

from hydragnn_flow.config.base import Section, validate
from hydragnn_flow.errors import InputError

Device = Literal["cpu", "cuda", "hip", "xpu"]
# Options that stand on the command line too.
_FLAGS = ("account", "partition", "walltime", "nodes", "blocks")


def cores_in(group: str) -> set[int]:
    """The CPU cores that a group such as "0-7,64-71" names.

    Raises
    ------
    ValueError
        If it is not written so.
    """
    cores: set[int] = set()
    for part in group.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise ValueError(f"cores: {group!r} is not a group such as '0-7,64-71'")
        first, last = int(match[1]), int(match[2] or match[1])
        cores |= set(range(first, last + 1))
    return cores


class NodeOptions(Section):
    """What one node has; for a machine that has no site file of its own."""

    gcds: int = Field(ge=1)
    """GCDs of a node: what torch counts as devices, or the slots to make of its CPU cores."""
    device: Device
    """`hip` (AMD), `cuda` (NVIDIA), `xpu` (Intel) or `cpu`."""
    memory_gib: float = Field(gt=0)
    """Memory a segment may use on a GCD [GiB]: leave about a tenth of what it has free."""
    cores_per_gcd: int = Field(default=1, ge=1)
    """CPU cores, and so threads, for each GCD."""
    cores: tuple[str, ...] = ()
    """Cores nearest to each GCD, GCD after GCD, as in `["49-55", "57-63"]`; left to the system
    where not given."""
    gpus: int | None = Field(default=None, ge=0)
    """What `sbatch --gpus-per-node` takes; by default one per GCD, none for `cpu`."""
    scratch: str | None = None
    """Fast directory of the node's own, for copies of the store and the environment."""
    interface: str | None = None
    """Network interface of a node, where it has another name than on the login node."""

    @model_validator(mode="after")
    def _has_cores_for_each(self) -> NodeOptions:
        if self.cores and len(self.cores) != self.gcds:
            raise ValueError(f"cores: {len(self.cores)} groups for {self.gcds} GCDs; give one each")
        for group in self.cores:
            cores_in(group)
        return self


class Options(Section):
    """A run on a machine; what is not given is left to the site."""

    account: str | None = None
    """Project that pays (`sbatch -A`, `qsub -A`)."""
    partition: str | None = None
    """Partition (`sbatch -p`) or, with PBS, queue (`qsub -q`)."""
    qos: str | None = None
    """Quality of service (`sbatch -q`)."""
    constraint: str | None = None
    """Features the nodes must have (`sbatch -C`), with those the site itself needs."""
    walltime: str | None = None
    """Longest time of each batch job, as `HH:MM:SS`; another follows while there is work."""
    nodes: int | None = Field(default=None, ge=1)
    """Nodes the campaign may use at a time, in all its batch jobs."""
    blocks: int | None = Field(default=None, ge=1)
    """Batch jobs at a time, of `nodes / blocks` nodes each. Small ones start sooner."""
    interface: str | None = None
    """Network interface of the login node, and of the nodes, on which driver, workers and ranks
    meet; as `ip addr` names it."""
    worker_init: str | None = None
    """Shell lines before the workers start, such as `module load rocm`."""
    environment: str | None = None
    """`stage` copies the Python environment into the nodes' scratch when a job starts, a directory
    names another place for it; without, nodes read it where it is."""
    heartbeat: int | None = Field(default=None, ge=1)
    """Seconds between signs of life; after four missed ones a node counts as lost."""
    node: NodeOptions | None = None
    """What a node has, for the sites `slurm` and `allocation`."""

    @field_validator("walltime")
    @classmethod
    def _is_hours_minutes_seconds(cls, walltime: str | None) -> str | None:
        if walltime is None:
            return None
        match = re.fullmatch(r"(\d{1,4}):([0-5]\d):([0-5]\d)", walltime)
        if match is None or _seconds(walltime) < 60:
            raise ValueError(f"must be HH:MM:SS and at least a minute, got {walltime!r}")
        return walltime

    @property
    def walltime_seconds(self) -> int:
        """Longest time of each batch job [s]; in whole minutes, as it is asked for."""
        return _seconds(self.walltime or "00:00:00") // 60 * 60

    @property
    def nodes_per_block(self) -> int:
        """Nodes of each batch job."""
        return (self.nodes or 1) // (self.blocks or 1)

    def resolved(
        self, site: str, *, needs: Iterable[str] = (), refuses: Iterable[str] = (), **defaults: Any
    ) -> Options:
        """Fill in a site's defaults and check what is then asked for.

        Parameters
        ----------
        site
            Its name, for messages.
        needs
            Options without which the site cannot work.
        refuses
            Options that mean nothing on this site.
        **defaults
            Values of options the user left out.

        Raises
        ------
        InputError
            If an option is missing or means nothing here, or the nodes are not a multiple of the
            blocks.
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
        if nodes % blocks:
            raise InputError(
                f"site {site}: {nodes} nodes cannot be shared equally by {blocks} blocks; "
                f"give {nodes - nodes % blocks or blocks} nodes or other blocks"
            )
        return filled


class _Loader(yaml.SafeLoader):
    """Without YAML 1.1's numbers to the base 60: a walltime stays the text it is."""


_INT = "tag:yaml.org,2002:int"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag != _INT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INT, re.compile(r"[-+]?[0-9]+$"), list("-+0123456789"))


def read_site_yaml(path: Path) -> tuple[str, dict[str, Any]]:
    """Name of the site and options that a ``site.yaml`` gives.

    A site file it names is looked for beside it.

    Raises
    ------
    InputError
        If it cannot be read, or names no site.
    """
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be read ({said}); correct it") from error
    if not isinstance(values, dict) or not isinstance(values.get("site"), str):
        raise InputError(f"{path}: site: this key is required; name a site or a site file")
    name = values.pop("site")
    beside = path.parent / name
    return (str(beside) if beside.is_file() else name), values


def make_options(values: dict[str, Any], source: object) -> Options:
    """Options of these values.

    Raises
    ------
    InputError
        If a key is unknown or a value wrong; ``source`` is named in it.
    """
    options: Options = validate(Options, values, source)
    return options


def _seconds(walltime: str) -> int:
    hours, minutes, seconds = map(int, walltime.split(":"))
    return 3600 * hours + 60 * minutes + seconds
