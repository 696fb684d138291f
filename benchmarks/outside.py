"""Error bars of energies outside the training data, beside other measures of doubt.

    python benchmarks/outside.py --data DIRECTORY-OF-THE-DATA-SETS
    python benchmarks/outside.py --data DIRECTORY --only EMT --seeds 1

Ensembles of potentials learn alloys labelled by EMT, silicon labelled by Tersoff's potential (both
by ASE), and the mlearn sets without their strained cells or without their surfaces, which are then
predicted. Crystals of the first two are scaled, rattled, cut into surfaces, lose atoms, and get
other compositions or phases. *Spread* is the weighted standard deviation between members, as it is;
*committee* that with equal weights, as MACE's committees and DeepHyper's ensembles have it; *LLPR*
the last-layer prediction rigidity of all members. Campaigns that an earlier run finished in the
scratch directory are calibrated again, and not trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from ensemble_quality.campaigns import campaign
from ensemble_quality.doubt import Doubt, doubt, rank_correlation, rejected_area, worst_tenth
from ensemble_quality.labelled import GROUPS, Outside, alloys, left_out, silicon
from results import Cell, Number, Run, Table, say

SETS = ("EMT", "Tersoff", *(f"{element}: {group}" for element in ("Si", "Ge") for group in GROUPS))


def main(
    data: Annotated[Path, typer.Option(help="Directory of mlearn.", exists=True)],
    only: Annotated[list[str] | None, typer.Option(help=f"Sets, of {', '.join(SETS)}.")] = None,
    seeds: Annotated[int, typer.Option(help="Campaigns of each set.", min=1)] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="A few epochs.")] = False,
    scratch: Annotated[Path, typer.Option(help="Directory for run directories.")] = Path("runs"),
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Train the ensembles and print the table; the exit status is 0 whatever it says."""
    run = Run("outside", ["ase", "torch", "torch-geometric"], quick=quick)
    rows, details = [], []
    folder = (scratch / ("outside-quick" if quick else "outside")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name in only or SETS:
        found = []
        for seed in range(seeds):
            say(f"{name}, campaign {seed + 1} of {seeds}")
            path = folder / f"{name.replace(': ', '-')}-{seed}"
            (path / "ensemble" / "ensemble.json").unlink(missing_ok=True)  # calibrate again
            structures, kinds, energies = train(name, seed, data, path, quick)
            found.append(doubt(str(path), structures, kinds, energies))
        rows.append(row(name, found))
        details += [{"set": name, "seed": n, **listed(asdict(one))} for n, one in enumerate(found)]
    run.end([Table(COLUMNS, rows)], json, details=details)


def train(name: str, seed: int, data: Path, path: Path, quick: bool) -> Outside:
    """Train an ensemble on a set; return structures outside, their kinds and energies [eV]."""
    changes: dict[str, Any] = {"seed": seed}
    if name == "EMT":
        campaign("quickstart", path, changes, quick=quick)
        return alloys(path)
    folder = path.with_name(f"{path.name}-data")
    folder.mkdir(exist_ok=True)
    if name == "Tersoff":
        changes["data"], outside = silicon(folder, seed)
    else:
        element, group = name.split(": ")
        changes["data"], outside = left_out(element, group, data / "mlearn", folder)
    campaign("mlearn_si", path, changes, epochs=30, folder=folder, quick=quick)
    return outside


MEASURES: dict[str, Callable[[Doubt], float]] = {
    "held [%]": lambda one: 100 * float(one.held.mean()),
    "flagged [%]": lambda one: 100 * float(one.flagged.mean()),
    "disagreement above 1 [%]": lambda one: 100 * float((one.disagreement > 1).mean()),
    "rank correlation": lambda one: rank_correlation(one.error, one.std),
    "std over error, worst tenth": lambda one: worst_tenth(one.error, one.std),
    "area": lambda one: rejected_area(one.error, one.std),
    "spread": lambda one: rejected_area(one.error, one.others["spread"]),
    "committee": lambda one: rejected_area(one.error, one.others["committee"]),
    "LLPR": lambda one: rejected_area(one.error, one.others["LLPR"]),
}
COLUMNS = ["", "structures", "MAE [meV/atom]", *MEASURES]


def row(name: str, found: list[Doubt]) -> list[Cell]:
    """Medians over campaigns, with the smallest and largest."""
    errors = [1000 * float(one.error.mean()) for one in found]
    cells: list[Cell] = [name, len(found[0].error), Number(float(np.median(errors)))]
    for measure in MEASURES.values():
        values = [measure(one) for one in found]
        cells.append(Number(float(np.median(values)), "", min(values), max(values)))
    return cells


def listed(values: Any) -> Any:
    """Lists in place of arrays, with a hundredth of a millielectronvolt."""
    if isinstance(values, dict):
        return {name: listed(of) for name, of in values.items()}
    return (np.round(values, 5) if values.dtype.kind == "f" else values).tolist()


if __name__ == "__main__":
    typer.run(main)
