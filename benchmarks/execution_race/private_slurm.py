"""Blocks of a private Slurm, of real daemons in namespaces of this machine; as root."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from execution_race.start import Stages

_REPOSITORY = Path(__file__).resolve().parents[2]
_CLUSTER = _REPOSITORY / "tests" / "slurm"
_SECONDS = 3600.0


class CannotRun(Exception):
    """This machine lacks what a private Slurm needs; the message says what."""


def measure(folder: Path, starts: int) -> list[Stages]:
    """What :func:`execution_race.start.measure` finds on the login node of such a cluster.

    Raises
    ------
    CannotRun
        Where this machine lacks something.
    """
    if str(_CLUSTER) not in sys.path:
        sys.path.append(str(_CLUSTER))
    cluster: Any = import_module("cluster")
    if lacking := cluster.missing():
        raise CannotRun(lacking)
    folder.mkdir()
    site = folder / "site.yaml"
    site.write_text(yaml.safe_dump(_site(cluster)), encoding="utf-8")
    with cluster.Cluster(nodes=1) as slurm:
        command = [sys.executable, "-m", "execution_race.start", site, folder / "run", str(starts)]
        printed = slurm.ask(*command, seconds=_SECONDS)
    return [Stages(**stages) for stages in json.loads(printed.splitlines()[-1])]


def _site(cluster: Any) -> dict[str, Any]:
    node = {"gcds": cluster.GCDS, "device": "cpu", "memory_gib": 4, "gpus": cluster.GCDS}
    return {
        "site": "slurm",
        "nodes": 1,
        "blocks": 1,
        "walltime": "00:30:00",
        "partition": cluster.PARTITION,
        "interface": cluster.INTERFACE,
        "heartbeat": 3,
        "node": node,
    }
