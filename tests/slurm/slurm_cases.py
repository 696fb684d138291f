"""Configurations and site files of campaigns for the test cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from campaign_cases import CONFIG, write_config
from cluster import GCDS, INTERFACE, PARTITION

SPACE: dict[str, Any] = {
    "Architecture.hidden_dim": {"int": [4, 8]},
    "Training.Optimizer.learning_rate": {"float": [1e-3, 1e-2], "log": True},
}
SHARED = Path(__file__).with_name("shared_site.py")
SENDING = Path(__file__).with_name("sending_site.py")


def write_campaign(
    folder: Path,
    trials: int,
    epochs: int,
    *,
    space: dict[str, Any] | None = None,
    member_epochs: int = 1,
    architecture: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    structures: int = 32,
    atoms: int = 8,
    mode: str = "memory",
    **search: Any,
) -> Path:
    """A search whose trials each train ``epochs`` in one segment, and two members trained further.

    Half of the structures are to train on. ``architecture`` and ``training`` are keys to set, and
    ``search`` more keys of `search`, or other values for those set here.
    """
    network = CONFIG["network"] | {
        "Architecture": CONFIG["network"]["Architecture"] | (architecture or {}),
        # Every step has a structure for each of four ranks of a trial.
        "Training": CONFIG["network"]["Training"]
        | {"num_epoch": epochs, "batch_size": 4}
        | (training or {}),
    }
    source = {"format": "emt_alloys", "structures": structures, "atoms": [atoms, atoms]}
    return write_config(
        folder,
        data={"source": source, "split": {"val": 0.25, "test": 0.25}, "mode": mode},
        network=network,
        search={"trials": trials, "rungs": "none", "space": space or SPACE} | search,
        ensemble={"size": 2, "epochs": epochs + member_epochs, "coverage": 0.8},
    )


def write_site(
    folder: Path,
    *,
    nodes: int = 4,
    blocks: int = 2,
    gcds: int = GCDS,
    site: str | Path = "slurm",
    walltime: str = "00:30:00",
    scratch: Path | None = None,
    **options: Any,
) -> Path:
    """A site.yaml for the test cluster; a node that says nothing counts as lost after 12 s."""
    path = folder / "site.yaml"
    values = {
        "site": str(site),
        "nodes": nodes,
        "blocks": blocks,
        "walltime": walltime,
        "partition": PARTITION,
        "interface": INTERFACE,
        "heartbeat": 3,
        "node": {"gcds": gcds, "device": "cpu", "memory_gib": 4, "gpus": gcds},
    }
    if scratch is not None:
        values["node"] |= {"scratch": str(scratch)}
    path.write_text(yaml.safe_dump(values | options))
    return path
