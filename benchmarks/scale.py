"""A whole machine beside one driver: what 9,408 nodes and 75,264 GCDs ask of it.

    python benchmarks/scale.py
    python benchmarks/scale.py --only campaign

The driver, the search, Parsl's interchange, its encryption and its channels are real, and time
passes as it does. The nodes only speak Parsl's protocol: `interchange` has them live, take tasks
and fall silent, beside Parsl's own interchange; `campaign` has them answer segments, of ten minutes
in the median, loses a batch job and the driver, and then asks for all that the driver can do.
Nothing is trained there. Nodes and driver share this machine's cores. `files` counts calls to the
file system with strace, of small campaigns that train; `days` opens a study of a million lines and
its ledger.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from execution_race import many_lines, many_nodes, shared_directory, whole_machine
from results import Line, Run, missed, table_of
from rich.console import Console

from hydragnn_flow.execution.sites.batch import seconds_between_heartbeats

ROWS = ("interchange", "campaign", "files", "days")
MEASURES = [
    "benchmarks/execution_race",
    "benchmarks/scale.py",
    "hydragnn_flow/campaign",
    "hydragnn_flow/config",
    "hydragnn_flow/execution",
    "hydragnn_flow/placement",
    "hydragnn_flow/files.py",
    "hydragnn_flow/run_directory.py",
    "hydragnn_flow/search",
    "hydragnn_flow/segment.py",
    "hydragnn_flow/training/checkpoint.py",
    "hydragnn_flow/training/monitor.py",
    "hydragnn_flow/training/runner.py",
    "hydragnn_flow/training/sendings.py",
    "hydragnn_flow/training/trainer.py",
    "tests/execution/interchange_cases.py",
]


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    nodes: int = 9_408
    """Of Frontier."""
    blocks: int = 8
    heartbeats: float = 120.0
    """Time for which worker pools say that they live [s]."""
    median: float = 600.0
    """Time of a segment [s]."""
    steady: float = 480.0
    """Time for which a full machine is watched [s]."""
    short: float = 60.0
    """Time of segments that end faster than others can begin [s]."""
    heartbeat: int = seconds_between_heartbeats(9_408)
    """Time between two signs of life of a node [s]."""
    trials: int = 350_000
    """On record; a study has three lines of each."""
    traced: tuple[int, int] = (8, 32)
    """Trials of two campaigns, whose difference is counted."""


QUICK = Settings(16, 4, 10.0, 4.0, 8.0, 1.0, 2, 2_000, (2, 4))


def main(
    only: Annotated[
        list[str] | None, typer.Option(help=f"Rows to measure, of {', '.join(ROWS)}.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few nodes, to see that it runs.")
    ] = False,
    scratch: Annotated[Path, typer.Option(help="Directory for run directories.")] = Path("runs"),
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Measure, and print a table; the exit status is 0 whatever it says."""
    if unknown := set(only or []) - set(ROWS):
        raise typer.BadParameter(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    settings = QUICK if quick else Settings()
    run = Run("scale", MEASURES, ["optuna", "parsl", "torch"], quick=quick)
    say = Console(stderr=True).print
    lines: list[Line] = []
    if "interchange" in (only or ROWS):
        lines += many_nodes.lines(settings.nodes, settings.heartbeats, settings.heartbeat, say)
    plan = whole_machine.Plan(
        *(settings.nodes, settings.blocks),
        *(settings.median, settings.steady, settings.short),
        settings.heartbeat,
    )
    remarks = []
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name).resolve()
        if "campaign" in (only or ROWS):
            lines += whole_machine.lines(folder, plan, say)
        if "files" in (only or ROWS) and shared_directory.STRACE:
            of_driver = next((x.value for x in lines if x.what.endswith(whole_machine.CALLS)), None)
            rates = plan.segments, plan.saves, of_driver
            lines += shared_directory.lines(folder, settings.traced, *rates, say)
        elif "files" in (only or ROWS):
            remarks = ["not measured: calls to the file system, for want of strace"]
        if "days" in (only or ROWS):
            lines += many_lines.lines(folder, settings.trials, say)
    result = run.end(
        [table_of(lines)],
        remarks=[missed(lines), *remarks],
        settings=asdict(settings),
        details={"lines": [asdict(line) for line in lines]},
    )
    print(result.markdown())
    if json is not None:
        result.write(json)


if __name__ == "__main__":
    typer.run(main)
