"""What an ensemble is worth beside the best single network and its members, and its error bars.

    python benchmarks/ensemble.py --data DIRECTORY-OF-THE-DATA-SETS
    python benchmarks/ensemble.py --data DIRECTORY --only quickstart --seeds 3

A campaign per set and seed, ``hydragnn-flow run CONFIG``, with the shipped configurations, made
shorter where `SHORTER` says so. A seed draws the split of the data (where the authors give a test
set, validation alone) and the whole search. Tables are of the test splits. The single network is
the trial with the best validation criterion, retrained as members are. If it is interrupted, the
same command continues it, unless the code has changed.
"""

from __future__ import annotations

import json as json_file
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from ensemble_quality.outcome import LEVEL, Outcome, outcomes
from model_accuracy.sets import SETS
from results import Cell, Line, Number, Run, Table, missed, table_of
from results.code import REPOSITORY, folder_of_code
from rich.console import Console
from rich.progress import track

CONFIGS = {
    "quickstart": "quickstart",
    "Si": "mlearn_si",
    "Ge": "mlearn_si",
    "acac": "acac",
    "perov_5": "perov_5",
}
"""Set → name of its configuration."""
SHORTER: dict[str, dict[str, Any]] = {
    name: {"ensemble": {"epochs": 30}} for name in ("Si", "Ge", "acac", "perov_5")
}
"""Set → keys of its configuration that differ here."""
MEASURES = [
    "benchmarks/ensemble.py",
    "benchmarks/ensemble_quality",
    *(f"configs/{name}.yaml" for name in sorted(set(CONFIGS.values()))),
    "configs/potential.json",
    "configs/property.json",
    "hydragnn_flow/ensemble",
    "hydragnn_flow/models",
    "hydragnn_flow/training",
]
_QUICK: dict[str, dict[str, Any]] = {
    "search": {"trials": 2, "min_epochs": 1, "rungs": "none"},
    "ensemble": {"size": 2, "epochs": 2},
}


def main(
    data: Annotated[Path, typer.Option(help="Directory of acac, mlearn and perov_5.", exists=True)],
    only: Annotated[list[str] | None, typer.Option(help=f"Sets, of {', '.join(CONFIGS)}.")] = None,
    seeds: Annotated[int, typer.Option(help="Campaigns of each set.", min=1)] = 6,
    quick: Annotated[
        bool, typer.Option("--quick", help="Epochs enough to see that it runs.")
    ] = False,
    scratch: Annotated[
        Path, typer.Option(help="Directory for run directories, which are kept.")
    ] = Path("runs/benchmark-ensemble"),
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Run the campaigns and print tables; the exit status is 0 whatever they say."""
    if unknown := set(only or []) - set(CONFIGS):
        raise typer.BadParameter(f"no {', '.join(unknown)}; there are {', '.join(CONFIGS)}")
    run = Run("ensemble", MEASURES, ["optuna", "parsl", "torch", "torch-geometric"], quick=quick)
    folder = folder_of_code(scratch, MEASURES, quick=quick)
    found: list[Outcome] = []
    wanted = [(name, seed) for seed in range(seeds) for name in only or CONFIGS]
    for name, seed in track(wanted, "campaigns", console=Console(stderr=True)):
        path = folder / f"{name}-{seed}"
        campaign(name, seed, data, path, quick)
        found += outcomes(name, seed, path)
    lines = judged(found)
    tables = [by_target(found), table_of(lines, "targets", "All sets together")]
    result = run.end(
        tables, remarks=[missed(lines)], details=[asdict(one) for one in found], settings=SHORTER
    )
    print(result.markdown())
    if json is not None:
        result.write(json)


def campaign(name: str, seed: int, data: Path, path: Path, quick: bool) -> None:
    """Run the campaign of a set with a seed, or continue it."""
    shipped = REPOSITORY / "configs" / f"{CONFIGS[name]}.yaml"
    content = yaml.safe_load(shipped.read_text(encoding="utf-8")) | {"seed": seed}
    if name in SETS:
        content["data"] = SETS[name].data
    network = json_file.loads((shipped.parent / content["network"]).read_text(encoding="utf-8"))
    if quick:
        network["NeuralNetwork"]["Training"]["num_epoch"] = 1
    for section, values in (_QUICK if quick else SHORTER.get(name, {})).items():
        content[section] |= values
    config = path.with_name(f"{path.name}.yaml")
    content["network"] = f"{path.name}.json"
    config.with_name(content["network"]).write_text(json_file.dumps(network), encoding="utf-8")
    config.write_text(yaml.safe_dump(content), encoding="utf-8")
    words: list[str | Path] = ["run", config, "--run-dir", path]
    if name in SETS:
        words += ["--data", data / SETS[name].folder]
    command = [sys.executable, "-m", "hydragnn_flow", *map(str, words)]
    log = path.with_name(f"{path.name}.log")
    with log.open("a", encoding="utf-8") as output:
        ended = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
    if ended.returncode:
        raise SystemExit(f"{log}: the campaign ended with {ended.returncode}")


def by_target(found: Sequence[Outcome]) -> Table:
    """A row for each target of each set: the medians over its campaigns, and their spread."""
    rows: list[list[Cell]] = []
    for name, target in dict.fromkeys((one.set, one.target) for one in found):
        mine = [one for one in found if (one.set, one.target) == (name, target)]
        held, values = (sum(getattr(one, key) for one in mine) for key in ("held", "values"))
        factor, unit = (1000, f"m{mine[0].unit}") if mine[0].unit.startswith("eV") else (1, "")
        rows.append(
            [
                f"{name}, {target}",
                _spread([factor * one.single for one in mine], unit),
                _spread([factor * one.ensemble for one in mine], unit),
                _spread([100 * one.gain for one in mine], "%"),
                f"{sum(one.beats_all for one in mine)} of {len(mine)}",
                _spread([one.spearman for one in mine]),
                _spread([one.area for one in mine]),
                mine[0].area_limit,
                Number(100 * held / values, "%"),
            ]
        )
    columns = (
        *("set, target", "best single, MAE", "ensemble, MAE", "lower by", "no member better"),
        *("Spearman", "miscalibration area", "of a perfect model", f"{LEVEL:.0%} intervals hold"),
    )
    return Table(columns, rows, "sets", "Test splits; median of the campaigns (lowest–highest)")


def judged(found: Sequence[Outcome]) -> list[Line]:
    """The targets over all sets and campaigns."""
    gains = [100 * one.gain for one in found]
    beats = 100 * statistics.mean(one.beats_all for one in found)
    ranks = [one.spearman for one in found]
    sound = 100 * statistics.mean(one.area <= max(0.05, one.area_limit) for one in found)
    lines = [
        _line("ensemble's MAE below the single's, median", statistics.median(gains), "%", 5),
        _line("the same, worst campaign", min(gains), "%", -1),
        _line("campaigns and targets in which no member is better", beats, "%", 90),
        _line("Spearman's correlation, median", statistics.median(ranks), "", 0.4),
        _line("miscalibration areas that chance explains, or ≤ 0.05", sound, "%", 95),
    ]
    for kind, mine in (
        ("structures", [one for one in found if not one.held_by_size]),
        ("force components", [one for one in found if one.held_by_size]),
    ):
        if mine:
            held, values = (sum(getattr(one, key) for one in mine) for key in ("held", "values"))
            lines.append(_within(f"90 % intervals of {kind} hold", held / values, 2))
    forces = [one for one in found if one.held_by_size]
    for quarter in range(4 if forces else 0):
        held, values = (sum(one.held_by_size[quarter][k] for one in forces) for k in (0, 1))
        lines.append(_within(f"the same, quarter {quarter + 1} of |force|", held / values, 5))
    return lines


def _line(what: str, value: float, unit: str, at_least: float) -> Line:
    return Line(what, what, value, unit, at_least=at_least)


def _within(what: str, held: float, points: float) -> Line:
    """A line whose target is the nearer end of a range around the level."""
    value, low, high = 100 * held, 100 * LEVEL - points, 100 * LEVEL + points
    if held < LEVEL:
        return Line(what, what, value, "%", at_least=low)
    return Line(what, what, value, "%", at_most=high)


def _spread(values: Sequence[float], unit: str = "") -> Number:
    return Number(statistics.median(values), unit, min(values), max(values))


if __name__ == "__main__":
    typer.run(main)
