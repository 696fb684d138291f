"""Worth of an ensemble beside the best single network and its members, and its error bars.

    python benchmarks/ensemble.py --data DIRECTORY-OF-THE-DATA-SETS
    python benchmarks/ensemble.py --data DIRECTORY --only quickstart --seeds 3

A campaign per set and seed, ``hydragnn-flow run CONFIG``, with the shipped configurations, whose
members have 30 epochs on public data here. A seed draws the split of the data (where the authors
give a test set, validation alone) and the whole search. Tables are of the test splits. The single
network is the trial with the best validation criterion, retrained as members are. *Outside* are
structures of the test split that are compressed, expanded, cut into slabs and clusters, lose atoms,
gain an element or get atoms too close. Campaigns that an earlier run finished in the scratch
directory are not run again.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from ensemble_quality.campaigns import campaign
from ensemble_quality.outcome import LEVEL, Outcome, outcomes
from ensemble_quality.outside import Flags, flags
from model_accuracy.sets import SETS
from results import Cell, Line, Number, Run, Table, line_table, say

CONFIGS = {"quickstart": "quickstart", "Si": "mlearn_si", "Ge": "mlearn_si"}
CONFIGS |= {"acac": "acac", "perov_5": "perov_5"}
"""Set → name of its configuration."""


def main(
    data: Annotated[Path, typer.Option(help="Directory of acac, mlearn and perov_5.", exists=True)],
    only: Annotated[list[str] | None, typer.Option(help=f"Sets, of {', '.join(CONFIGS)}.")] = None,
    seeds: Annotated[int, typer.Option(help="Campaigns of each set.", min=1)] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="A few epochs.")] = False,
    scratch: Annotated[Path, typer.Option(help="Directory for run directories.")] = Path("runs"),
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Run the campaigns and print tables; the exit status is 0 whatever they say."""
    run = Run("ensemble", ["optuna", "parsl", "torch", "torch-geometric"], quick=quick)
    found: list[Outcome] = []
    flagged: list[Flags] = []
    folder = (scratch / ("ensemble-quick" if quick else "ensemble")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name in only or CONFIGS:
        for seed in range(seeds):
            say(f"{name}, campaign {seed + 1} of {seeds}")
            path = folder / f"{name}-{seed}"
            run_set(name, seed, data, path, quick)
            found += outcomes(name, seed, path)
            if seed == 0:
                flagged.append(flags(name, path, 1 if quick else 4))
    details = {"outcomes": [*map(asdict, found)], "flags": [*map(asdict, flagged)]}
    run.end([line_table(judged(found)), outside(flagged)], json, details=details)


def run_set(name: str, seed: int, data: Path, path: Path, quick: bool) -> None:
    """Run the campaign of a set with a seed."""
    changes: dict[str, Any] = {"seed": seed}
    if name not in SETS:
        campaign(CONFIGS[name], path, changes, quick=quick)
        return
    changes["data"] = SETS[name].data
    folder = data / SETS[name].folder
    campaign(CONFIGS[name], path, changes, epochs=30, folder=folder, quick=quick)


def judged(found: Sequence[Outcome]) -> list[Line]:
    """The targets over all sets and campaigns."""
    gains = [100 * one.gain for one in found]
    sound = statistics.mean(one.area <= one.area_limit for one in found)
    gain, rank = (statistics.median(values) for values in (gains, [one.spearman for one in found]))
    lines = [
        Line("ensemble's MAE below the best single network's, median", gain, "%", at_least=5),
        Line("the same, worst campaign", min(gains), "%", at_least=-1),
        Line(
            *("no member is better", 100 * statistics.mean(one.beats_all for one in found), "%"),
            at_least=90,
        ),
        Line("rank correlation of error and error bar, median", rank, at_least=0.4),
        Line("miscalibration areas that chance explains", 100 * sound, "%", at_least=95),
    ]
    forces = [one for one in found if one.target == "forces"]
    lines += _within("90 % intervals of structures hold", [o for o in found if o not in forces], 2)
    lines += _within("90 % intervals of force components hold", forces, 2)
    return lines


def _within(what: str, found: Sequence[Outcome], points: float) -> list[Line]:
    """A line whose target is the nearer end of a range around the level."""
    if not found:
        return []
    held, values = (sum(getattr(one, key) for one in found) for key in ("held", "values"))
    share, level = 100 * held / values, 100 * LEVEL
    if share < level:
        return [Line(what, share, "%", at_least=level - points)]
    return [Line(what, share, "%", at_most=level + points)]


def outside(flagged: Sequence[Flags]) -> Table:
    """Structures that are flagged as unlike the training data."""
    shares: list[list[Cell]] = [
        ["of the test split", *(Number(100 * o.test_flagged / o.test, "%") for o in flagged)],
        ["of structures outside", *(Number(100 * o.flagged / o.outside, "%") for o in flagged)],
    ]
    return Table(["flagged", *(one.set for one in flagged)], shares, "outside")


if __name__ == "__main__":
    typer.run(main)
