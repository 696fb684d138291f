"""What segments take, foreseen and true, and how well heterogeneous trials fill a machine.

    python benchmarks/placement.py
    python benchmarks/placement.py --only cost

`cost` trains real steps of networks of all types on this machine: how far the cost model is off.
`planned` runs real campaigns on two slots of it, beside the plans that were made before.

In `makespan`, `walltime`, `members` and `campaign` the search, the placer and the driver's loop are
real, and trials of known cost, a hundredfold apart, take the time of a virtual clock. Estimates are
off by 20 %. The bound of a row is the least time that any schedule takes; beside it stands the time
of a trial after the other on a node each, as HydraGNN's examples run them. `decision` times the
placer alone.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from placement_race import planned, synthetic
from placement_race.campaigns import Held, members, walltime, whole
from placement_race.cost import cost
from placement_race.networks import Settings as CostSettings
from results import Line, Run, missed, table_of
from rich.console import Console

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import GraphStore, prepare_store
from hydragnn_flow.placement import Estimate, Fleet, Gcd, Host, Placeable, place

ROWS = ("cost", "makespan", "walltime", "members", "campaign", "decision", "planned")
WALLTIME, CAMPAIGN = Held(64, 4_000, 4), Held(128, 16_000)
MEASURES = [
    "benchmarks/placement.py",
    "benchmarks/placement_race",
    "hydragnn_flow/campaign",
    "hydragnn_flow/placement",
    "hydragnn_flow/search",
    "hydragnn_flow/simulation",
]


@dataclass(frozen=True)
class Case:
    """Trials on a machine, and what is asked for."""

    what: str
    trials: int
    gcds: int
    most_gib: float
    """Memory of the largest [GiB]."""
    widths: str
    """GCDs that the bound may give a trial: the fewest that have its memory, or any number."""
    at_most: float
    """Time over the bound."""
    at_least: float
    """Time of a node each over the time."""


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    cases: tuple[Case, ...] = (
        Case("20,000 trials on 2,048 GCDs, all fit one", 20_000, 2_048, 56.0, "fewest", 1.25, 2.5),
        Case("20,000 trials on 2,048 GCDs, to 200 GB", 20_000, 2_048, 200.0, "fewest", 1.25, 2.5),
        Case("20,000 trials on 65,536 GCDs", 20_000, 65_536, 200.0, "any", 1.15, 1.3),
    )
    walltime: Held = WALLTIME
    members: tuple[int, ...] = (4, 16, 64, 2_560)
    """Nodes."""
    campaign: Held = CAMPAIGN
    decision: tuple[int, int] = (65_536, 20_000)
    """GCDs, and segments that are ready."""
    planned: tuple[int, int] = (3, 40)
    """Campaigns, and trials of each."""


QUICK = Settings(
    (
        Case("200 trials on 32 GCDs", 200, 32, 56.0, "fewest", 1.25, 2.5),
        Case("200 trials on 640 GCDs", 200, 640, 200.0, "any", 1.15, 1.3),
    ),
    Held(4, 100, 2),
    (4,),
    Held(4, 200),
    (512, 200),
    (1, 6),
)


def makespans(
    folder: Path, store: GraphStore, cases: tuple[Case, ...], say: Callable[[str], None]
) -> list[Line]:
    """Simulated campaigns beside their bounds and beside a node for each trial."""
    lines = []
    for number, case in enumerate(cases):
        say(case.what)
        ran = synthetic.campaign(
            folder / f"run{number}", store, case.trials, case.gcds, case.most_gib
        )
        bounds = synthetic.Bounds.of(ran.models, case.gcds)
        longest = bounds.longest_of_any_width if case.widths == "any" else bounds.longest
        bound = max(bounds.work, longest)
        node_each = synthetic.fifo(ran.models, case.gcds)
        whole = "bound: work, memory, longest trial at its best width"
        if case.widths == "fewest":
            whole = "bound: work, memory, longest trial on the fewest GCDs"
            lines.append(
                Line(
                    "makespan",
                    case.what,
                    ran.seconds,
                    "s",
                    "bound: work and memory alone",
                    bounds.work,
                    ran.seconds / bounds.work,
                    at_most=case.at_most,
                )
            )
        lines += [
            Line(
                "makespan",
                case.what,
                ran.seconds,
                "s",
                whole,
                bound,
                ran.seconds / bound,
                at_most=case.at_most,
            ),
            Line(
                "makespan",
                f"{case.what}: a node for each, first come first served",
                node_each,
                "s",
                "ours",
                ran.seconds,
                node_each / ran.seconds,
                at_least=case.at_least,
            ),
            Line("makespan", f"{case.what}: computing share of all GCDs", 100 * ran.busy, "%"),
            Line(
                "makespan",
                f"{case.what}: CPU time of the simulation",
                ran.cpu_seconds,
                "s",
                at_most=60.0 if case.gcds > 60_000 else None,
            ),
        ]
    return lines


def decisions(gcds: int, ready: int) -> list[Line]:
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
        Line("decision", f"{what}: {ready:,} segments begin", 1e3 * first, "ms", at_most=500.0),
        Line("decision", f"{what}: one segment begins", 1e3 * one, "ms", at_most=50.0),
    ]


def main(
    only: Annotated[
        list[str] | None, typer.Option(help=f"Rows to measure, of {', '.join(ROWS)}.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A little, to see that it runs.")] = False,
    scratch: Annotated[Path, typer.Option(help="Directory for run directories.")] = Path("runs"),
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Measure, and print a table; the exit status is 0 whatever it says."""
    if unknown := set(only or []) - set(ROWS):
        raise typer.BadParameter(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    settings = QUICK if quick else Settings()
    run = Run("placement", MEASURES, ["optuna", "torch"], quick=quick)
    say = Console(stderr=True).print
    lines: list[Line] = []
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name).resolve()
        if "cost" in (only or ROWS):
            lines += cost(folder, CostSettings(seed=2), say)
        data = DataConfig.model_validate(synthetic.CONFIG["data"])
        store = prepare_store(data, 4.0, None, 0, folder / "store.gs")
        if "makespan" in (only or ROWS):
            lines += makespans(folder, store, settings.cases, say)
        if "walltime" in (only or ROWS):
            lines += walltime(folder / "walltime", store, settings.walltime)
        for nodes in settings.members if "members" in (only or ROWS) else ():
            for per_gcd in (True, False):
                run_directory = folder / f"members{nodes}{per_gcd}"
                lines += members(run_directory, store, nodes, per_gcd=per_gcd)
        if "campaign" in (only or ROWS):
            lines += whole(folder / "campaign", store, settings.campaign)
        if "decision" in (only or ROWS):
            lines += decisions(*settings.decision)
        if "planned" in (only or ROWS):
            lines += planned.lines(folder / "planned", say, *settings.planned)
    result = run.end(
        [table_of(lines)],
        remarks=[missed(lines)],
        settings=asdict(settings),
        details={"lines": [asdict(line) for line in lines]},
    )
    print(result.markdown())
    if json is not None:
        result.write(json)


if __name__ == "__main__":
    typer.run(main)
