"""Options of a run on a machine: account, partition, walltime, nodes.

They come from a ``site.yaml``, from the command line (with sbatch's names) or from Python. A site
file reads them, fills in the site's own defaults and refuses what the machine cannot do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from hydragnn_flow.config.base import Section, validate
from hydragnn_flow.errors import InputError
from hydragnn_flow.plain_files import PlainLoader, read_yaml

Device = Literal["cpu", "cuda", "hip", "xpu"]
# Options that the command line has too.
_FLAGS = ("account", "partition", "walltime", "nodes", "blocks")


def cores_in(group: str) -> set[int]:
    """Parse the CPU cores in a group such as "0-7,64-71".

    Raises
    ------
    ValueError
        If the group has another form.
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
    """Description of one node, for a machine that has no site file."""

    gcds: int = Field(ge=1)
    """Number of GCDs of a node: devices as torch counts them, or slots of its CPU cores."""
    device: Device
    """`hip` (AMD), `cuda` (NVIDIA), `xpu` (Intel) or `cpu`."""
    memory_gib: float = Field(gt=0)
    """Memory for segments on a GCD [GiB]: about nine tenths of the device's."""
    cores_per_gcd: int = Field(default=1, ge=1)
    """Number of CPU cores, and so of threads, for each GCD."""
    cores: tuple[str, ...] = ()
    """Cores nearest to each GCD, in the order of the GCDs. By default the system decides."""
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

    @field_validator("scratch")
    @classmethod
    def _is_absolute(cls, scratch: str | None) -> str | None:
        if scratch is not None and not Path(scratch).is_absolute():
            raise ValueError(f"must be an absolute path, got {scratch!r}")
        return scratch

    @property
    def gpus_per_node(self) -> int:
        """Value of `sbatch --gpus-per-node`; 0 asks for none."""
        if self.gpus is not None:
            return self.gpus
        return 0 if self.device == "cpu" else self.gcds


class Options(Section):
    """Options of a run on a machine. The site decides what is not given."""

    account: str | None = None
    """Project that pays (`sbatch -A`, `qsub -A`)."""
    partition: str | None = None
    """Partition (`sbatch -p`) or, with PBS, queue (`qsub -q`)."""
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
    """Time between heartbeats [s]. A node that misses four counts as lost."""
    node: NodeOptions | None = None
    """Description of a node, for the sites `slurm` and `allocation`."""

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
        """Longest time of each batch job [s], in whole minutes as requested."""
        return _seconds(self.walltime or "00:00:00") // 60 * 60

    @property
    def nodes_per_block(self) -> int:
        """Number of nodes in each batch job."""
        return (self.nodes or 1) // (self.blocks or 1)

    def resolved(
        self, site: str, *, needs: Iterable[str] = (), refuses: Iterable[str] = (), **defaults: Any
    ) -> Options:
        """Fill in a site's defaults.

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
            If an option is missing or has no meaning here.
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
        return filled


def read_site_yaml(path: Path) -> tuple[str, dict[str, Any]]:
    """Read the name of the site and the options in a ``site.yaml``.

    A site file next to it is preferred to a shipped site of that name.

    Raises
    ------
    InputError
        If it cannot be read, or names no site.
    """
    values = read_yaml(path, PlainLoader)
    if not isinstance(values.get("site"), str):
        raise InputError(f"{path}: site: this key is required; name a site or a site file")
    name = values.pop("site")
    beside = path.parent / name
    return (str(beside) if beside.is_file() else name), values


def make_options(values: dict[str, Any], source: object) -> Options:
    """Make options from plain values.

    Raises
    ------
    InputError
        If a key is unknown or a value wrong; the message names ``source``.
    """
    options: Options = validate(Options, values, source)
    return options


def _seconds(walltime: str) -> int:
    hours, minutes, seconds = map(int, walltime.split(":"))
    return 3600 * hours + 60 * minutes + seconds
