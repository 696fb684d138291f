"""Use of a machine by heterogeneous trials, and trust in a plan.

    python benchmarks/placement.py
    python benchmarks/placement.py --only makespan

In `makespan` and `campaign` the search, the placer and the driver's loop are real, and trials of
known cost, a hundredfold apart, take the time of a virtual clock. Estimates are off by 20 %. The
bound is the least time that any schedule takes: all computing, all memory, or the longest trial, on
the fewest GCDs that have its memory where trials are more than GCDs. *A node for each trial*, one
after the other, is how HydraGNN's examples run them. `planned` runs real campaigns on two slots of
this machine, beside the plans that were made before.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from placement_race import planned, synthetic
from results import Cell, Line, Number, Run, Table, line_table, say

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import GraphStore, prepare_store

ROWS = ("makespan", "campaign", "planned")


@dataclass(frozen=True)
class Case:
    """Trials on a machine, and targets."""

    what: str
    trials: int
    gcds: int
    most_gib: float
    """Memory of the largest [GiB]."""
    at_most: float
    """Time over the bound."""
    at_least: float
    """Time of a node each over the time."""


@dataclass(frozen=True)
class Settings:
    """Amount that is measured."""

    cases: tuple[Case, ...] = (
        Case("20,000 trials on 2,048 GCDs, all fit one", 20_000, 2_048, 56.0, 1.25, 2.5),
        Case("20,000 trials on 2,048 GCDs, to 200 GB", 20_000, 2_048, 200.0, 1.25, 2.5),
        Case("20,000 trials on 65,536 GCDs", 20_000, 65_536, 200.0, 1.15, 1.3),
    )
    campaign: tuple[int, int] = (128, 16_000)
    """Nodes, and trials."""
    planned: tuple[int, int] = (3, 40)
    """Campaigns, and trials of each."""


QUICK = Settings(
    (
        Case("200 trials on 32 GCDs", 200, 32, 56.0, 1.25, 2.5),
        Case("200 trials on 640 GCDs", 200, 640, 200.0, 1.15, 1.3),
    ),
    (4, 200),
    (1, 6),
)


def makespan(folder: Path, store: GraphStore, case: Case) -> list[Cell]:
    """A simulated campaign beside its bound and beside a node for each trial."""
    ran = synthetic.campaign(folder, store, case.trials, case.gcds, case.most_gib)
    bounds = synthetic.Bounds.of(ran.models, case.gcds)
    # Where there are more GCDs than trials, the longest may have as many as make it fastest.
    wide = case.gcds > case.trials
    bound = max(bounds.work, bounds.longest_of_any_width if wide else bounds.longest)
    node_each = synthetic.fifo(ran.models, case.gcds)
    ratios = (ran.seconds / bound, node_each / ran.seconds)
    above, below = ratios[0] > case.at_most, ratios[1] < case.at_least
    return [
        *(case.what, Number(ran.seconds, "s")),
        f"{ratios[0]:.2f}, target ≤ {case.at_most}" + " MISSED" * above,
        f"{ratios[1]:.2f}, target ≥ {case.at_least}" + " MISSED" * below,
    ]


def main(
    only: Annotated[list[str] | None, typer.Option(help=f"Rows of {', '.join(ROWS)}.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A little, to see that it runs.")] = False,
    scratch: Annotated[Path, typer.Option(help="Directory for run directories.")] = Path("runs"),
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Measure, and print a table; the exit status is 0 whatever it says."""
    settings = QUICK if quick else Settings()
    run = Run("placement", ["optuna", "torch"], quick=quick)
    lines: list[Line] = []
    makespans: list[list[Cell]] = []
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name).resolve()
        data = DataConfig.model_validate(synthetic.CONFIG["data"])
        store = prepare_store(data, 4.0, None, 0, folder / "store.gs")
        for row in only or ROWS:
            say(row)
            if row == "makespan":
                for number, case in enumerate(settings.cases):
                    makespans.append(makespan(folder / f"run{number}", store, case))
            elif row == "campaign":
                lines.append(synthetic.whole(folder / row, store, *settings.campaign))
            elif row == "planned":
                lines += planned.lines(folder / row, *settings.planned)
            else:
                raise typer.BadParameter(f"no row {row}; there are {', '.join(ROWS)}")
    columns = ["", "ours", "over the bound", "a node for each trial, over ours"]
    run.end(
        [Table(columns, makespans, "makespan"), line_table(lines)], json, settings=asdict(settings)
    )


if __name__ == "__main__":
    typer.run(main)
