"""Scaling study of a private Slurm: do the parts of a step add up to it?

Four nodes of two CPU slots each, real daemons in namespaces of this machine, as root. The study is
the user's command, given on the login node. All slots share this machine's cores, so the
throughput says nothing of a cluster. What is shown is that gangs over nodes are measured; that
reading, computing, exchanging and waiting, timed where they happen on each rank, add up to the same
steps timed as a whole; and that timing them changes a step little, by processor time, beside steps
in turns with them in which nothing is timed.

The picture is `scaling.png` in the scratch directory.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from results import Cell, Line, Number, Table

from hydragnn_flow.config import RunConfig
from hydragnn_flow.data import prepare_store
from hydragnn_flow.report.profile import WORDS, shares
from hydragnn_flow.report.scaling import KINDS, Study
from hydragnn_flow.run_directory import RunDirectory

ROW = "scaling"
MEASURES = [
    "hydragnn_flow/campaign/profiling.py",
    "hydragnn_flow/campaign/scaling.py",
    "hydragnn_flow/training/profile.py",
    "hydragnn_flow/training/step_parts.py",
]
NODES, GCDS_OF_A_NODE, WIDTHS = 4, 2, (1, 2, 4, 8)
# Steps of tens of milliseconds, so that there are enough of them to tell a few per cent.
_SECONDS, _QUICK_SECONDS = 12.0, 0.3
_CUTOFF, _BATCH, _STRUCTURES = 4.0, 16, 320
_WITHIN = 5.0
_MOST_SECONDS = 3600.0
_CLUSTER = Path(__file__).resolve().parents[2] / "tests" / "slurm"
_NETWORK = {
    "Architecture": {
        "mpnn_type": "SchNet",
        "hidden_dim": 16,
        "num_conv_layers": 2,
        "radius": _CUTOFF,
        "num_gaussians": 16,
        "activation_function": "silu",
        "enable_interatomic_potential": True,
        "energy_peratom_weight": 1.0,
        "force_weight": 1.0,
        "output_heads": {"node": {"num_headlayers": 1, "dim_headlayers": [16]}},
    },
    "Variables_of_interest": {"output_names": ["energy"], "type": ["node"]},
    "Training": {
        "num_epoch": 4,
        "batch_size": _BATCH,
        "Optimizer": {"type": "AdamW", "learning_rate": 1e-3},
    },
}


def measured(folder: Path, *, quick: bool = False) -> Iterator[Line | Table]:
    """A line for each width, and the study's table."""
    study = _study(folder, _QUICK_SECONDS if quick else _SECONDS)
    yield from lines_of(study)
    yield table_of(study)


def lines_of(study: Study) -> Iterator[Line]:
    """How far the parts of a step are from the step, at each width."""
    for kind in KINDS:
        for point in study.of(kind):
            if point.profile is not None and (kind == "weak" or point.gcds > 1):
                for what, value in (
                    ("the parts' sum beside the step", point.profile.closure),
                    ("what timing them adds, CPU", point.profile.disturbance),
                ):
                    width = f"{kind} scaling, {point.gcds} GCDs"
                    yield Line(ROW, f"{width}: {what}", 100 * abs(value), "%", at_most=_WITHIN)


def table_of(study: Study) -> Table:
    """The study."""
    rows: list[list[Cell]] = []
    for kind in KINDS:
        for point in study.of(kind):
            if point.profile is not None:
                parts = shares(point.profile.parts).values()
                rows.append(
                    [
                        kind,
                        point.gcds,
                        point.nodes,
                        Number(1e3 * point.profile.seconds, "ms"),
                        point.throughput,
                        *(Number(100 * share, "%") for share in parts),
                        Number(100 * (1 + point.profile.closure), "%"),
                    ]
                )
    columns = ["", "GCDs", "nodes", "a step", "graphs/s", *WORDS, "sum"]
    return Table(columns, rows, "scaling", "Scaling of a small SchNet on a private Slurm")


def _study(folder: Path, seconds: float) -> Study:
    """The study, as the command leaves it in a run directory; continued if it was interrupted."""
    if str(_CLUSTER) not in sys.path:
        sys.path.append(str(_CLUSTER))
    cluster: Any = import_module("cluster")
    if lacking := cluster.missing():
        raise SystemExit(f"the row {ROW}: {lacking}")
    run = RunDirectory(folder / "scaling")
    config = RunConfig.model_validate(_configuration())
    if not run.store.exists():
        run.record_start(config)
        prepare_store(config.data, _CUTOFF, None, 0, run.store).close()
    site = folder / "site.yaml"
    site.write_text(yaml.safe_dump(_site(cluster)), encoding="utf-8")
    words = ["scaling", run.path, "--site", site, "--seconds", f"{seconds:g}"]
    widths = ["--gcds", ",".join(map(str, WIDTHS))]
    with cluster.Cluster(nodes=NODES) as slurm:
        command = [sys.executable, "-m", "hydragnn_flow", *words, *widths]
        print(slurm.ask(*command, seconds=_MOST_SECONDS), file=sys.stderr)
    file = run.path / "scaling" / "slurm.json"
    shutil.copyfile(file.with_suffix(".png"), folder / "scaling.png")
    return Study.read(file)


def _configuration() -> dict[str, Any]:
    return {
        "name": "scaling",
        "data": {
            "source": {"format": "emt_alloys", "structures": _STRUCTURES, "atoms": [16, 48]},
            "split": {"val": 0.15, "test": 0.15},
        },
        "network": _NETWORK,
        "search": {
            "trials": 2,
            "rungs": "none",
            "space": {"Training.Optimizer.learning_rate": {"float": [1e-4, 1e-2], "log": True}},
        },
        "ensemble": {"size": 2, "epochs": 4},
    }


def _site(cluster: Any) -> dict[str, Any]:
    node = {"gcds": GCDS_OF_A_NODE, "device": "cpu", "memory_gib": 4, "gpus": GCDS_OF_A_NODE}
    return {
        "site": "slurm",
        "nodes": NODES,
        "blocks": 1,
        "walltime": "02:00:00",
        "partition": cluster.PARTITION,
        "interface": cluster.INTERFACE,
        "node": node,
    }
