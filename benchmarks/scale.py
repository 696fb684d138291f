"""A whole machine beside one driver: what 9,408 nodes and 75,264 GCDs ask of it.

    python benchmarks/scale.py

The driver, the search, its ledger, Parsl's interchange, its encryption and its channels are real,
and time passes as it does. The nodes only speak Parsl's protocol, on the cores of this machine:
they answer segments, of ten minutes in the median; then a batch job is lost, and then the driver.
Nothing is trained, and nothing of Frontier's network or file system is in these figures.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from execution_race.whole_machine import Plan, lines
from results import Run, line_table

from hydragnn_flow.execution.sites.batch import seconds_between_heartbeats

FRONTIER = Plan(9_408, 8, 600.0, 480.0, seconds_between_heartbeats(9_408))
QUICK = Plan(16, 4, 4.0, 8.0, 10)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="A few nodes.")] = False,
    scratch: Annotated[Path, typer.Option(help="Directory for run directories.")] = Path("runs"),
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Measure, and print a table; the exit status is 0 whatever it says."""
    run = Run("scale", ["optuna", "parsl", "torch"], quick=quick)
    plan = QUICK if quick else FRONTIER
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        found = lines(Path(name).resolve(), plan)
    run.end([line_table(found)], json, settings=asdict(plan))


if __name__ == "__main__":
    typer.run(main)
