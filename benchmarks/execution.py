"""Cost of bringing segments to their first step, and of the driver, for each trial.

    python benchmarks/execution.py --deephyper PYTHON-THAT-HAS-DEEPHYPER
    python benchmarks/execution.py --only driver

`warm` brings segments to their first step on a real Parsl worker that has trained before, beside a
new process for each trial and beside DeepHyper's queued evaluator, which starts one too; ratios are
of the CPU time of all processes. `driver` runs a campaign's own loop on workers whose segments end
at once. Whole machines are in ``scale.py``.
"""

from __future__ import annotations

import json as json_file
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from execution_race.on_node import end_at_once, to_first_step
from execution_race.workplace import (
    begun,
    config,
    connect,
    cpu_seconds,
    family,
    segments,
    workers_of_this_machine,
)
from results import REPOSITORY, Line, Run, line_table
from rich.console import Console
from search_race.engines import deephyper_version
from turns import Spoken, take_turns

from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.dispatch import Dispatch
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.execution import Rank, Site
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.segment import SegmentResult, SegmentSpec

ROWS = ("warm", "driver")
_OURS, _FRESH, _EVALUATOR = "a warm worker", "a new process each", "DeepHyper's queued evaluator"
# In each turn, so that the CPU time is much more than a tick of the system's clock.
_SEGMENTS = 5


def warm(folder: Path, turns: int, deephyper: Path | None) -> list[Line]:
    """CPU time from submitting a segment to where its first step begins."""
    site, specs, walls = workers_of_this_machine(1), segments(folder), list[float]()
    with Pool(site, folder / "parsl") as pool, ExitStack() as stack:
        connect(pool, 1)
        agent = pool.submit(os.getpid).result()
        _bring(pool, site, specs, walls)  # from here on there is a trainer process
        processes = [*family(os.getpid()), *family(agent)]

        def ours() -> float:
            before = cpu_seconds(processes)
            for _ in range(_SEGMENTS):
                _bring(pool, site, specs, walls)
            return (cpu_seconds(processes) - before) / _SEGMENTS

        sides: dict[str, Callable[[], float]] = {_OURS: ours, _FRESH: partial(_fresh, specs)}
        if deephyper is not None:
            module = "execution_race.deephyper_evaluator"
            evaluator = Spoken(deephyper.absolute(), "-m", module, sys.executable)
            stack.callback(evaluator.process.communicate)
            sides[_EVALUATOR] = partial(_evaluated, evaluator, specs)
        found = take_turns(sides, turns)
    what, wall = "to a first step", [1e3 * seconds for seconds in walls[1:]]
    lines = [Line(f"{what}, wall time", median(wall), "ms", at_most=100.0)]
    for peer in list(sides)[1:]:
        target = 30.0 if peer == _FRESH else None
        lines.append(found.line(f"{what}, CPU time", _OURS, peer, "1/CPU-s", at_least=target))
    return lines


def _bring(pool: Pool, site: Site, specs: Iterator[SegmentSpec], walls: list[float]) -> None:
    submitted = time.time()
    reached: float = pool.submit(to_first_step, site.node, next(specs)).result()
    walls.append(reached - submitted)


def _fresh(specs: Iterator[SegmentSpec]) -> float:
    """CPU time of a Python process for a segment [s]."""

    def ended() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before, spec = ended(), json_file.dumps(next(specs).to_dict())
    command = [sys.executable, "-m", "execution_race.fresh"]
    subprocess.run(command, input=spec, stdout=subprocess.PIPE, encoding="utf-8", check=True)
    return ended() - before


def _evaluated(evaluator: Spoken, specs: Iterator[SegmentSpec]) -> float:
    """CPU time of DeepHyper's evaluator and of the process that it starts [s]."""
    evaluator.tell(json_file.dumps(next(specs).to_dict()))
    return float(json_file.loads(evaluator.answer())["cpu"])


class _WithoutTraining(Pool):
    """Pool whose workers end every segment at once."""

    def run(self, ranks: Sequence[Rank], node: str) -> Future[list[SegmentResult]]:
        return self.submit(end_at_once, self._site.node, ranks, manager=node)


def driver(folder: Path, workers: int, trials: int, rounds: int) -> list[Line]:
    """Searches with one segment for each trial, which ends at once."""
    site, cpu = workers_of_this_machine(workers), list[float]()
    with _WithoutTraining(site, folder / "parsl") as pool:
        connect(pool, workers)
        this = family(os.getpid())[:1]

        def campaign() -> float:
            run = tempfile.mkdtemp(dir=folder)
            search = config(trials, "random")
            directory, store = begun(Path(run), search)
            view = CampaignView(Console(quiet=True))
            context = Context(search, site, directory, store, "token", view)
            begin, before = time.monotonic(), cpu_seconds(this)
            records = TrialPhase(context).run(Dispatch(context, pool))
            assert {record.state for record in records} == {"complete"}
            cpu.append(1e3 * (cpu_seconds(this) - before) / trials)
            return (time.monotonic() - begin) / trials

        found = take_turns({"driver": campaign}, rounds)
    what, measured = f"{workers} GCDs, {trials:,} segments that end at once", cpu[1:]
    spread = min(measured), max(measured)
    return [
        Line(what, found.rate("driver"), "1/s", at_least=300.0),
        Line("CPU time of the driver for a trial", median(measured), "ms", spread=spread),
    ]


def main(
    only: Annotated[list[str] | None, typer.Option(help=f"Rows of {', '.join(ROWS)}.")] = None,
    deephyper: Annotated[
        Path | None, typer.Option(help="Python interpreter that has DeepHyper.", exists=True)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Little, to see that it runs.")] = False,
    scratch: Annotated[Path, typer.Option(help="Directory for run directories.")] = Path("runs"),
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Measure, and print a table; the exit status is 0 whatever it says."""
    # Workers and new processes import what they run.
    here = str(REPOSITORY / "benchmarks")
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    run = Run("execution", ["parsl", "torch", "torch-geometric"], quick=quick)
    lines: list[Line] = []
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name).resolve()
        if "warm" in (only or ROWS):
            lines += warm(folder / "warm", 1 if quick else 10, deephyper)
        if "driver" in (only or ROWS):
            lines += driver(folder / "driver", *((2, 12, 1) if quick else (64, 2_000, 3)))
    remarks = [] if deephyper else ["not measured: DeepHyper, whose Python --deephyper would name"]
    run.end([line_table(lines)], json, remarks=remarks, peers=deephyper_version(deephyper))


if __name__ == "__main__":
    typer.run(main)
