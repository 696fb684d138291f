"""Results of whole campaigns, search included, with the settings that we know to be good.

    python benchmarks/campaigns.py --data DIRECTORY-OF-THE-DATA-SETS
    python benchmarks/campaigns.py --hydragnn PATH-OF-A-CHECKOUT

Each is one command, ``hydragnn-flow run CONFIG --data DIRECTORY``, run here as a user runs it.
Shown are the errors on the test split of the ensemble, and of the member that validation says is
best, with the CPU time that a search for it alone would have taken. If it is interrupted, the same
command continues it, unless the code has changed.

With a checkout of HydraGNN it measures what of HydraGNN's own campaigns runs here: budgets of
large splits, its configurations, its networks as an engine.
"""

from __future__ import annotations

import json as json_file
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
import yaml
from campaign_checks.taken_over import MEASURES as TAKEN_OVER
from campaign_checks.taken_over import PARTS, measured
from model_accuracy.sets import SETS, Measure
from results import Cell, Run, Table
from results.code import REPOSITORY, folder_of_code

from hydragnn_flow.run_directory import RunDirectory

CONFIGS = {"acac": "acac_mace", "Si": "mlearn_si_painn"}
"""Set → name of its configuration."""
MEASURES = [
    "benchmarks/campaigns.py",
    "configs/acac_mace.yaml",
    "configs/mace.json",
    "configs/mlearn_si_painn.yaml",
    "configs/painn.json",
    "hydragnn_flow/ensemble",
    "hydragnn_flow/models",
    "hydragnn_flow/training",
]
_QUICK: dict[str, dict[str, Any]] = {
    "search": {"trials": 2, "min_epochs": 1, "rungs": "none"},
    "ensemble": {"size": 2, "epochs": 2},
}


@dataclass(frozen=True)
class Reached:
    """Errors of an ensemble or a member."""

    what: str
    cpu_seconds: float
    """CPU time of the trials and of the members that count."""
    errors: tuple[float, ...]
    """One for each measure of the set."""


def main(
    data: Annotated[
        Path | None, typer.Option(help="Directory of acac, mlearn and perov_5.", exists=True)
    ] = None,
    hydragnn: Annotated[
        Path | None,
        typer.Option(
            help="A checkout of HydraGNN: measure what of its campaigns runs here instead."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Sets, of {', '.join(CONFIGS)}; with --hydragnn parts, of {', '.join(PARTS)}."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Epochs enough to see that it runs.")
    ] = False,
    scratch: Annotated[
        Path, typer.Option(help="Directory for run directories, which are kept.")
    ] = Path("runs/benchmark-campaigns"),
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Run the campaigns and print tables; the exit status is 0 whatever they say."""
    known = CONFIGS if hydragnn is None else PARTS
    if unknown := set(only or []) - set(known):
        raise typer.BadParameter(f"no {', '.join(unknown)}; there are {', '.join(known)}")
    if hydragnn is not None:
        folder = folder_of_code(scratch, TAKEN_OVER, quick=quick)
        result = measured(hydragnn, folder, only=only or (), quick=quick)
        print(result.markdown())
        if json is not None:
            result.write(json)
        return
    if data is None:
        raise typer.BadParameter("name the directory of the data sets, or a checkout of HydraGNN")
    run = Run("campaigns", MEASURES, ["optuna", "parsl", "torch", "torch-geometric"], quick=quick)
    tables, details = [], {}
    folder = folder_of_code(scratch, MEASURES, quick=quick)
    for name in only or CONFIGS:
        seconds, reached = measure(name, data, folder, quick)
        tables.append(table(name, seconds, reached))
        details[name] = [asdict(one) for one in reached]
    result = run.end(tables, details=details)
    print(result.markdown())
    if json is not None:
        result.write(json)


def measure(name: str, data: Path, folder: Path, quick: bool) -> tuple[float, list[Reached]]:
    """Run the campaign of a set; returns its wall time [s] and its results."""
    config = REPOSITORY / "configs" / f"{CONFIGS[name]}.yaml"
    if quick:
        config = _shortened(config, folder)
    path = folder / name
    words = ["run", config, "--run-dir", path, "--data", data / SETS[name].folder]
    command = [sys.executable, "-m", "hydragnn_flow", *map(str, words)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    summary = json_file.loads((path / "ensemble" / "ensemble.json").read_text(encoding="utf-8"))
    results = list(RunDirectory(path).results())
    members = [result for result in results if result.kind == "member"]
    best = summary["best_member"]
    of_others = sum(r.cpu_seconds for r in members if r.number != best)
    total = sum(result.cpu_seconds for result in results)
    reached = [
        Reached("the best member", total - of_others, _errors(name, path, f"member_{best}")),
        Reached(f"ensemble of {len(summary['members'])}", total, _errors(name, path, "mean")),
    ]
    return summary["wall_seconds"], reached


def table(name: str, seconds: float, reached: list[Reached]) -> Table:
    """Of one campaign."""
    measures = SETS[name].measures
    rows: list[list[Cell]] = [
        [one.what, round(one.cpu_seconds), *map(float, one.errors)] for one in reached
    ]
    command = f"hydragnn-flow run configs/{CONFIGS[name]}.yaml --data DIRECTORY"
    title = f"`{command}`, {seconds / 60:.0f} minutes"
    return Table(["", "CPU-s", *map(str, measures)], rows, name, title)


def _errors(name: str, path: Path, what: str) -> tuple[float, ...]:
    """Errors on the test split of a column of the predictions, one for each measure."""
    graphs = pd.read_parquet(path / "predictions" / "test.parquet")
    nodes = pd.read_parquet(path / "predictions" / "test_nodes.parquet")
    atoms = nodes.groupby("graph_id").size().reindex(graphs["graph_id"]).to_numpy()
    return tuple(_error(measure, graphs, nodes, atoms, what) for measure in SETS[name].measures)


def _error(
    measure: Measure, graphs: pd.DataFrame, nodes: pd.DataFrame, atoms: Any, what: str
) -> float:
    if measure.target == "forces":
        names = [f"forces_{axis}" for axis in "xyz"]
        said = nodes[[f"{name}_{what}" for name in names]].to_numpy()
        residuals = said - nodes[names].to_numpy()
    else:
        residuals = (graphs[f"{measure.target}_{what}"] - graphs[measure.target]).to_numpy()
    if measure.per_atom:
        residuals = residuals / atoms
    if measure.how == "rmse":
        return measure.factor * float((residuals**2).mean() ** 0.5)
    return measure.factor * float(abs(residuals).mean())


def _shortened(config: Path, folder: Path) -> Path:
    """The same campaign with hardly any training."""
    content = yaml.safe_load(config.read_text(encoding="utf-8"))
    network = json_file.loads((config.parent / content["network"]).read_text(encoding="utf-8"))
    network["NeuralNetwork"]["Training"]["num_epoch"] = 1
    (folder / content["network"]).write_text(json_file.dumps(network), encoding="utf-8")
    for section, values in _QUICK.items():
        content[section] |= values
    path = folder / config.name
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


if __name__ == "__main__":
    typer.run(main)
