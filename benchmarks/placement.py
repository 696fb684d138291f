"""How well heterogeneous trials fill a machine, and how far a plan can be trusted.

    python benchmarks/placement.py
    python benchmarks/placement.py --only makespan

In `makespan`, `walltime`, `members` and `campaign` the search, the placer and the driver's loop are
real, and trials of known cost, a hundredfold apart, take the time of a virtual clock. Estimates are
off by 20 %. The bound is the least time that any schedule takes: all computing, all memory, or the
longest trial, on the fewest GCDs that have its memory where trials are more than GCDs. *A node for
each trial*, one after the other, is how HydraGNN's examples run them. `decision` times the
placer alone. `planned` runs real campaigns on two slots of this machine, beside the plans that were
made before.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from placement_race import planned, synthetic
from placement_race.campaigns import Held, members, walltime, whole
from results import Cell, Line, Number, Run, Table, line_tables, missed, say_on

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import GraphStore, prepare_store
from hydragnn_flow.placement import Estimate, Fleet, Gcd, Host, Placeable, place

ROWS = ("makespan", "walltime", "members", "campaign", "decision", "planned")


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


_WALLTIME, _CAMPAIGN = Held(64, 4_000, 4), Held(128, 16_000)


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    cases: tuple[Case, ...] = (
        Case("20,000 trials on 2,048 GCDs, all fit one", 20_000, 2_048, 56.0, 1.25, 2.5),
        Case("20,000 trials on 2,048 GCDs, to 200 GB", 20_000, 2_048, 200.0, 1.25, 2.5),
        Case("20,000 trials on 65,536 GCDs", 20_000, 65_536, 200.0, 1.15, 1.3),
    )
    walltime: Held = _WALLTIME
    members: tuple[int, ...] = (64, 2_560)
    """Nodes."""
    campaign: Held = _CAMPAIGN
    decision: tuple[int, int] = (65_536, 20_000)
    """GCDs, and segments that are ready."""
    planned: tuple[int, int] = (3, 40)
    """Campaigns, and trials of each."""


QUICK = Settings(
    (
        Case("200 trials on 32 GCDs", 200, 32, 56.0, 1.25, 2.5),
        Case("200 trials on 640 GCDs", 200, 640, 200.0, 1.15, 1.3),
    ),
    Held(4, 100, 2),
    (4,),
    Held(4, 200),
    (512, 200),
    (1, 6),
)


def makespan(folder: Path, store: GraphStore, case: Case) -> tuple[list[Cell], list[Line]]:
    """A simulated campaign beside its bound and beside a node for each trial."""
    ran = synthetic.campaign(folder, store, case.trials, case.gcds, case.most_gib)
    bounds = synthetic.Bounds.of(ran.models, case.gcds)
    # Where there are more GCDs than trials, the longest may have as many as make it fastest.
    wide = case.gcds > case.trials
    bound = max(bounds.work, bounds.longest_of_any_width if wide else bounds.longest)
    node_each = synthetic.fifo(ran.models, case.gcds)
    ratios = (ran.seconds / bound, node_each / ran.seconds)
    above, below = ratios[0] > case.at_most, ratios[1] < case.at_least
    cells: list[Cell] = [
        *(case.what, Number(ran.seconds, "s")),
        f"{ratios[0]:.2f}, target ≤ {case.at_most}" + " MISSED" * above,
        f"{ratios[1]:.2f}, target ≥ {case.at_least}" + " MISSED" * below,
    ]
    return cells, [
        Line(f"{case.what}: computing share of GCDs", 100 * ran.busy, "%", is_detail=True),
        Line(f"{case.what}: CPU time of the simulation", ran.cpu_seconds, "s", is_detail=True),
    ]


def decision(gcds: int, ready: int) -> list[Line]:
    """CPU time of the placer where many are ready: with all GCDs free, and with one."""
    fleet = Fleet(Gcd(58.0, 1e13, 1e12, 1e-5, 0.6, 4), 8)
    fleet.update([Host(f"n{n}", "block") for n in range(gcds // 8)])
    segments = [
        Placeable(estimate=Estimate(100.0 + n, 40.0, uncorrected_seconds=100.0, busy=0.9))
        for n in range(ready)
    ]
    begin = time.process_time()
    placed, _ = place(segments, fleet, 0.0)
    first = time.process_time() - begin
    for placement in placed[1:]:
        fleet.end(placement.resident, placement.resident.spots, 1.0)
    begin = time.process_time()
    place(segments[:1], fleet, 1.0)
    one = time.process_time() - begin
    what = f"placer, {gcds:,} GCDs"
    return [
        Line(f"{what}: {ready:,} segments begin", 1e3 * first, "ms", at_most=500.0, is_detail=True),
        Line(f"{what}: one begins", 1e3 * one, "ms", at_most=50.0, is_detail=True),
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
            say_on()(row)
            if row == "makespan":
                for number, case in enumerate(settings.cases):
                    cells, more = makespan(folder / f"run{number}", store, case)
                    makespans.append(cells)
                    lines += more
            elif row == "walltime":
                lines.append(walltime(folder / row, store, settings.walltime))
            elif row == "members":
                for nodes in settings.members:
                    lines += members(folder / f"members{nodes}", store, nodes)
            elif row == "campaign":
                lines += whole(folder / row, store, settings.campaign)
            elif row == "decision":
                lines += decision(*settings.decision)
            elif row == "planned":
                lines += planned.lines(folder / row, say_on(), *settings.planned)
            else:
                raise typer.BadParameter(f"no row {row}; there are {', '.join(ROWS)}")
    columns = ["", "ours", "over the bound", "a node for each trial, over ours"]
    run.end(
        [Table(columns, makespans, "makespan"), *line_tables(lines)],
        json,
        shown=["makespan", "lines"],
        remarks=missed(lines),
        settings=asdict(settings),
    )


if __name__ == "__main__":
    typer.run(main)
