"""Training steps on an accelerator: how fast, out of what, as expected or not, and side by side.

    python benchmarks/gpu.py --hydragnn PATH-OF-A-CHECKOUT
    python benchmarks/gpu.py --device cpu --quick

*steps* has every network of `benchmarks/models.py` in turns with HydraGNN's, its batches on the
device: seconds by the wall, on a CPU those of the CPU. torch's profiler counts the kernels of a
step there. *estimates* are those that placement makes of the network alone for the device of this
machine's site, and *constants* what the measured steps say of it. *processes* are networks that
train beside each other, as trainers do. *pieces* are the hand-written derivatives beside torch's
own operations, forward and backward. *fused* has small networks whose steps are taken together
beside the same ones that take them in turn.

A device is lent for a time: after SIGTERM nothing else is begun, no network and no row, and what
was measured until then is printed and written.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from threading import Event
from typing import Annotated, Any, TypeVar

import torch
import typer
from gpu_race import fused, pieces, processes
from gpu_race.report import (
    constants,
    estimate_table,
    fused_table,
    piece_table,
    process_table,
    step_table,
)
from gpu_race.steps import Course, Settings
from model_race.networks import MODES, TARGETS, Case, Mode, cases
from results import Run, Table
from results.code import commit_of
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from hydragnn_flow.execution.site import guessed_gcd
from hydragnn_flow.execution.sites.this_node import this_node
from hydragnn_flow.placement import Gcd
from hydragnn_flow.training.device import this_device
from hydragnn_flow.training.memory import out_of_memory

T = TypeVar("T")
_NO_TIME = "there was no time left"
ROWS = ("steps", "processes", "pieces", "fused")
MEASURES = [
    "benchmarks/gpu.py",
    "benchmarks/gpu_race",
    "benchmarks/model_race",
    "benchmarks/parallel_checks/fused.py",
    "hydragnn_flow/models",
    "hydragnn_flow/placement/cost_model.py",
    "hydragnn_flow/training/fused",
    "hydragnn_flow/training/trainer.py",
]
# Networks that train side by side: one small enough to leave a device idle, and a larger one.
SIDE_BY_SIDE = (Case("SchNet", "potential"), Case("MACE", "potential"))


def main(
    device: Annotated[
        str | None, typer.Option(help="cuda, xpu or cpu; by default an accelerator, if any.")
    ] = None,
    hydragnn: Annotated[
        Path | None, typer.Option(help="Checkout of HydraGNN to compare with.", exists=True)
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help=f"What to measure, of {', '.join(ROWS)}.")
    ] = None,
    types: Annotated[
        list[str] | None, typer.Option("--type", help=f"Networks, of {', '.join(TARGETS)}.")
    ] = None,
    mode: Annotated[
        Mode | None, typer.Option(help="A graph and a node head, or a potential's forces; or both.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Turns of each side.", min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="Length of a turn.", min=0.01)] = 0.5,
    quick: Annotated[
        bool, typer.Option("--quick", help="A step or two of each, to see that it runs.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Measure this machine's device and print tables; the exit status is 0 whatever they say."""
    for given, known in ((only, ROWS), (types, TARGETS)):
        if unknown := set(given or []) - set(known):
            raise typer.BadParameter(f"no {', '.join(unknown)}; there are {', '.join(known)}")
    place = _device(device)
    torch.set_num_threads(1)
    settings = Settings(1, 0.01, profiled=1, batches=1) if quick else Settings(rounds, seconds)
    run = Run("gpu", MEASURES, ["numpy", "torch", "torch-geometric"], quick=quick)
    left_out: list[str] = []
    tables: list[Table] = []
    details: dict[str, Any] = {}
    columns = TextColumn("{task.description}"), TimeElapsedColumn()
    with (
        tempfile.TemporaryDirectory() as folder,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        bar = progress.add_task("")

        def say(text: str) -> None:
            progress.update(bar, description=text)

        course = Course(Path(folder), place, _gcd(place), settings, hydragnn, say)
        ends = Event()
        signal.signal(signal.SIGTERM, lambda *_: ends.set())
        work = _Work(course, place, Path(folder), settings, quick, say, ends)
        chosen = cases(types or list(TARGETS), [mode] if mode else list(MODES))
        for row in only or ROWS:
            if ends.is_set():
                left_out.append(f"{row}: {_NO_TIME}")
                continue
            found, details[row] = getattr(work, row)(chosen)
            tables += found
        left_out += work.left_out
    if hydragnn is None:
        left_out.append("ratios to HydraGNN, whose checkout --hydragnn would name")
    result = run.end(
        tables,
        remarks=[f"not measured: {what}" for what in left_out],
        peers=_about(place)
        | ({} if hydragnn is None else {"HydraGNN": commit_of(hydragnn) or "of no commit"}),
        settings=asdict(settings),
        details=details,
    )
    print(result.markdown())
    if json is not None:
        result.write(json)


class _Work:
    """The rows, each of which makes tables and details."""

    def __init__(
        self,
        course: Course,
        device: torch.device,
        folder: Path,
        settings: Settings,
        quick: bool,
        say: Callable[[str], None],
        ends: Event,
    ) -> None:
        self._course, self._device, self._folder, self._ends = course, device, folder, ends
        self._settings, self._quick, self._say = settings, quick, say
        self._left_out: list[str] = []

    @property
    def left_out(self) -> list[str]:
        return [*self._course.left_out, *self._left_out]

    def steps(self, chosen: list[Case]) -> tuple[list[Table], Any]:
        rows = []
        for case in chosen:
            name = f"{case.mpnn_type}, {case.mode}"
            if self._ends.is_set():
                self._left_out.append(f"{name}: {_NO_TIME}")
                continue
            self._say(name)
            if (row := self._course.run(case)) is not None:
                rows.append(row)
        tables = [step_table(rows), estimate_table(rows), constants(rows, _gcd(self._device))]
        return tables, [asdict(row) for row in rows]

    def processes(self, chosen: list[Case]) -> tuple[list[Table], Any]:
        numbers = (1, 2) if self._quick else (1, 2, 4, 8)
        seconds = 0.1 if self._quick else 8 * self._settings.seconds
        found = []
        for case in SIDE_BY_SIDE[: 1 if self._quick else None]:
            if self._ends.is_set():
                self._left_out.append(f"processes, {case.mpnn_type}: {_NO_TIME}")
                continue
            store = self._course.store(case.columns)
            try:
                found += processes.measure(case, store, self._device, numbers, seconds, self._say)
            except RuntimeError as error:
                self._left_out.append(f"processes, {case.mpnn_type}: {error}")
        return [process_table(found)], [asdict(one) for one in found]

    def pieces(self, chosen: list[Case]) -> tuple[list[Table], Any]:
        atoms = 108 if self._quick or self._device.type == "cpu" else 2048
        rounds, seconds = self._settings.rounds, self._settings.seconds / 4
        course = pieces.measure(self._device, atoms, rounds, seconds, self._say)
        found = list(self._in_time("pieces", course))
        return [piece_table(found)], [asdict(one) for one in found]

    def fused(self, chosen: list[Case]) -> tuple[list[Table], Any]:
        rounds = self._settings.rounds
        course = fused.measure(self._device, self._folder, rounds, self._quick, self._say)
        found = list(self._in_time("fused", course))
        return [fused_table(found)], [asdict(one) for one in found]

    def _in_time(self, row: str, course: Iterator[T]) -> Iterator[T]:
        """What is measured, until there is no time or no memory left."""
        while not self._ends.is_set():
            try:
                yield next(course)
            except StopIteration:
                return
            except RuntimeError as error:
                reason = out_of_memory(error)
                if reason is None:
                    raise
                self._left_out.append(f"the rest of {row}: {reason}")
                return
        self._left_out.append(f"the rest of {row}: {_NO_TIME}")


def _device(asked: str | None) -> torch.device:
    found = this_device().type
    if asked not in (None, "cpu", found):
        raise typer.BadParameter(f"torch {torch.__version__} sees no {asked}")
    return torch.device(asked or found)


def _gcd(device: torch.device) -> Gcd:
    """Assumptions of placement about the device."""
    if device.type == "cpu":
        return guessed_gcd("cpu", memory_gib=4.0)
    return this_node().gcd


def _about(device: torch.device) -> dict[str, str]:
    """The device's name and memory, for the last line."""
    if device.type == "cpu":
        return {}
    properties = torch.get_device_module(device).get_device_properties(0)
    return {properties.name: f"{properties.total_memory / 2**30:.0f} GiB"}


if __name__ == "__main__":
    typer.run(main)
