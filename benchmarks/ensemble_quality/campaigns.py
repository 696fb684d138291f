"""Campaigns with shipped configurations and other data."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from results import REPOSITORY

_QUICK: dict[str, dict[str, Any]] = {
    "search": {"trials": 2, "min_epochs": 1, "rungs": "none"},
    "ensemble": {"size": 2, "epochs": 2},
}


def campaign(
    shipped: str,
    path: Path,
    changes: Mapping[str, Any],
    *,
    epochs: int | None = None,
    folder: Path | None = None,
    quick: bool = False,
) -> None:
    """Run a shipped configuration in the run directory ``path``.

    ``changes`` replace its sections, ``epochs`` those of its members, and ``folder`` is that of the
    data.

    Raises
    ------
    SystemExit
        With the end of what it printed, if the campaign fails.
    """
    config = REPOSITORY / "configs" / f"{shipped}.yaml"
    content = yaml.safe_load(config.read_text(encoding="utf-8")) | dict(changes)
    network = json.loads((config.parent / content["network"]).read_text(encoding="utf-8"))
    content["network"] = f"{path.name}.json"
    if epochs is not None:
        content["ensemble"] |= {"epochs": epochs}
    if quick:
        network["NeuralNetwork"]["Training"]["num_epoch"] = 1
        for section, values in _QUICK.items():
            content[section] |= values
    written = path.with_name(f"{path.name}.yaml")
    written.with_name(content["network"]).write_text(json.dumps(network), encoding="utf-8")
    written.write_text(yaml.safe_dump(content), encoding="utf-8")
    words = [str(written), "--run-dir", str(path)]
    words += [] if folder is None else ["--data", str(folder.resolve())]
    command = [sys.executable, "-m", "hydragnn_flow", "run", *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"the campaign of {path.name} ended: {ended.stderr[-2000:]}")
