"""Make a golden run: the files of a campaign that outlive its processes, as they are written now.

    python tests/golden/make.py tests/golden/run_2

It trains three tiny trials and two members, keeps what later versions must be able to read, and
writes down what the ensemble predicts. CONTRIBUTING.md says when to make another.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from ase import Atoms
from ase.build import bulk

from hydragnn_flow import Ensemble, load_site, run_campaign
from hydragnn_flow.config import RunConfig
from hydragnn_flow.ensemble.summary import write_checksums

CONFIG: dict[str, Any] = {
    "name": "golden",
    "seed": 1,
    "data": {
        "source": {
            "format": "emt_alloys",
            "structures": 30,
            "elements": ["Cu", "Ni"],
            "atoms": [8, 8],
        },
        "split": {"val": 0.35, "test": 0.2},
    },
    "network": {
        "Architecture": {
            "mpnn_type": "SchNet",
            "hidden_dim": 4,
            "num_conv_layers": 1,
            "num_gaussians": 4,
            "radius": 3.5,
            "activation_function": "silu",
            "enable_interatomic_potential": True,
            "energy_peratom_weight": 1.0,
            "force_weight": 1.0,
            "output_heads": {"node": {"num_headlayers": 1, "dim_headlayers": [4]}},
        },
        "Variables_of_interest": {"output_names": ["energy"], "type": ["node"]},
        "Training": {"num_epoch": 4, "batch_size": 4, "Optimizer": {"learning_rate": 5e-3}},
    },
    "search": {
        "trials": 3,
        "min_epochs": 2,
        "reduction_factor": 2,
        "space": {
            "Architecture.hidden_dim": {"choices": [2, 4]},
            "Training.Optimizer.learning_rate": {"float": [1e-3, 1e-2], "log": True},
        },
    },
    "ensemble": {"size": 2, "epochs": 6, "coverage": 0.9},
}
KEPT = (
    "run.yaml",
    "study.journal",
    "segments.jsonl",
    "ensemble/ensemble.json",
    "ensemble/manifest.json",
    "ensemble/applicability.json",
    "ensemble/members/*/config.json",
    "ensemble/members/*/checkpoint.pt",
)
CHECKED = (
    "ensemble.json",
    "manifest.json",
    "applicability.json",
    "config.json",
    "checkpoint.pt",
)
EXPECTED = "expected.json"


def structures() -> list[Atoms]:
    """What the ensemble predicts: a lattice, and a disordered alloy under strain."""
    alloy = bulk("Cu", cubic=True, a=3.7) * (2, 1, 1)
    alloy.symbols[[1, 4, 5]] = "Ni"
    alloy.rattle(0.1, seed=1)
    return [bulk("Ni", cubic=True), alloy]


def predictions(run: Path) -> dict[str, Any]:
    """The numbers of both tables, by column."""
    predicted = Ensemble.load(run).predict(structures(), members=True)
    tables = {"graphs": predicted.graphs, "nodes": predicted.nodes}
    return {name: table.to_dict("list") for name, table in tables.items() if table is not None}


def seal(ensemble: Path) -> None:
    """Write the checksums of files that have become other ones."""
    files = (file for file in ensemble.rglob("*") if file.name in CHECKED)
    write_checksums(ensemble, [str(file.relative_to(ensemble)) for file in files])


def main(folder: Path) -> None:
    """Run the campaign and keep its files in a new folder."""
    folder.mkdir()
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        run_campaign(RunConfig.model_validate(CONFIG), load_site("local"), run)
        for pattern in KEPT:
            for file in run.glob(pattern):
                kept = folder / file.relative_to(run)
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, kept)
                if file.suffix != ".pt":  # names of machines are nobody's business
                    text = re.sub(rf"\b{re.escape(platform.node())}\b", "node", kept.read_text())
                    kept.write_text(text)
        seal(folder / "ensemble")
        numbers = json.dumps(predictions(run), indent=1)
    (folder / EXPECTED).write_text(numbers + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
