"""Training steps on an accelerator: how fast, out of what, as expected or not, and side by side.

    python benchmarks/gpu.py --hydragnn PATH-OF-A-CHECKOUT
    python benchmarks/gpu.py --device cpu --quick

*steps* has every network of `benchmarks/models.py` in turns with HydraGNN's, its batches on the
device: seconds by the wall, on a CPU those of the CPU. torch's profiler counts the kernels of a
step there, and the time is compared with what placement expects of the network alone on the device
of this machine's site. *processes* are networks that train beside each other, as trainers do.

A device is lent for a time: after SIGTERM nothing else is begun, no network and no row, and what
was measured until then is printed and written.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from threading import Event
from typing import Annotated, Any, TypeVar

import torch
import typer
from gpu_race import processes
from gpu_race.steps import OURS, THEIRS, Course, Row
from model_race.alloys import write_alloys
from model_race.networks import BATCH, MODES, TARGETS, Case, Mode, cases
from results import Cell, Checkout, Number, Run, Table, peer_commit

from hydragnn_flow.execution.site import guessed_gcd
from hydragnn_flow.execution.sites.this_node import this_node
from hydragnn_flow.training.distributed import this_device
from hydragnn_flow.training.memory import out_of_memory

T = TypeVar("T")
ROWS = ("steps", "processes")
# Networks that train side by side: one small enough to leave a device idle, and a larger one.
SIDE_BY_SIDE = (Case("SchNet", "potential"), Case("MACE", "potential"))


def main(
    device: Annotated[
        str | None, typer.Option(help="cuda, xpu or cpu; by default an accelerator, if any.")
    ] = None,
    hydragnn: Checkout = None,
    only: Annotated[list[str] | None, typer.Option(help=f"Rows of {', '.join(ROWS)}.")] = None,
    types: Annotated[
        list[str] | None, typer.Option("--type", help=f"Networks, of {', '.join(TARGETS)}.")
    ] = None,
    mode: Annotated[Mode | None, typer.Option(help="Heads, forces, or both.")] = None,
    rounds: Annotated[int, typer.Option(help="Turns of each side.", min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="Length of a turn.", min=0.01)] = 0.5,
    quick: Annotated[bool, typer.Option("--quick", help="A step or two of each.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Measure this machine's device and print tables; the exit status is 0 whatever they say."""
    if device not in (None, "cpu", this_device().type):
        raise typer.BadParameter(f"torch {torch.__version__} sees no {device}")
    place = torch.device(device or this_device().type)
    gcd = guessed_gcd("cpu", memory_gib=4.0) if place.type == "cpu" else this_node().gcd
    torch.set_num_threads(1)
    if quick:
        rounds, seconds = 1, 0.01
    run = Run("gpu", ["numpy", "torch", "torch-geometric"], quick=quick)
    left_out = [] if hydragnn else ["ratios to HydraGNN, whose checkout --hydragnn would name"]
    ends = Event()
    signal.signal(signal.SIGTERM, lambda *_: ends.set())
    tables: list[Table] = []
    details: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        course = Course(
            *(Path(folder), place, gcd, rounds, seconds, 1 if quick else 4), *(hydragnn, left_out)
        )
        chosen = cases(types or list(TARGETS), [mode] if mode else list(MODES))
        for row in only or ROWS:
            found: list[Any] = []
            for one in _in_time(row, _course(row, course, chosen, quick), ends, left_out):
                found += one
            tables.append(_modes(found) if row == "steps" else _side_by_side(found))
            details[row] = [asdict(one) for one in found]
    run.end(
        tables,
        json,
        remarks=[f"not measured: {what}" for what in left_out],
        peers=_about(place) | peer_commit(hydragnn),
        settings={"rounds": rounds, "seconds": seconds},
        details=details,
    )


def _course(row: str, course: Course, chosen: list[Case], quick: bool) -> Iterator[list[Any]]:
    """Measures a row, part by part."""
    device = course.device
    if row == "steps":
        for case in chosen:
            found = course.run(case)
            yield [] if found is None else [found]
    else:
        numbers, seconds = ((1, 2), 0.1) if quick else ((1, 2, 4, 8), 8 * course.seconds)
        for case in SIDE_BY_SIDE[: 1 if quick else None]:
            store = write_alloys(course.folder, course.batches * BATCH, case)
            yield [*processes.measure(case, store, device, numbers, seconds)]


def _in_time(what: str, course: Iterator[T], ends: Event, left_out: list[str]) -> Iterator[T]:
    """Parts that are measured, until there is no time or no memory left."""
    while not ends.is_set():
        try:
            yield next(course)
        except StopIteration:
            return
        except RuntimeError as error:
            left_out.append(f"the rest of {what}: {out_of_memory(error) or error}")
            return
    left_out.append(f"the rest of {what}: there was no time left")


def _side_by_side(found: list[processes.Shared]) -> Table:
    """Speed of several processes over that of one."""
    alone = {one.case: one.steps_per_second for one in found if one.processes == 1}
    rows: list[list[Cell]] = []
    for case, speed in alone.items():
        several = [o.steps_per_second / speed for o in found if o.case == case and o.processes > 1]
        rows.append([case.name, speed, *several])
    numbers = sorted({one.processes for one in found} - {1})
    columns = ["network", "steps/s of one", *(f"{n} processes" for n in numbers)]
    return Table(columns, rows, "processes", "Processes that share the device, over one")


def _modes(rows: list[Row]) -> Table:
    """Medians over the networks of each mode, and their ranges."""
    cells: list[list[Cell]] = []
    for mode in MODES:
        mine = [row for row in rows if row.case.mode == mode]
        theirs = [row.turns for row in mine if THEIRS in row.turns.seconds]
        busy = [100 * row.kernels.seconds / row.turns.of(OURS) for row in mine]
        expected = [row.expected_seconds / row.turns.of(OURS) for row in mine]
        ratios = [turns.ratio(OURS, THEIRS).value for turns in theirs]
        if mine:
            cells.append([f"{mode}, {len(mine)}", *map(_range, (ratios, busy, expected))])
    columns = ["networks", "HydraGNN's step over ours", "busy [%]", "expected step over ours"]
    return Table(columns, cells, "modes", "Training steps; median of the networks")


def _range(values: list[float]) -> Number | None:
    return Number(median(values), "", min(values), max(values)) if values else None


def _about(device: torch.device) -> dict[str, str]:
    """The device's name and memory, for the last line."""
    if device.type == "cpu":
        return {}
    properties = torch.get_device_module(device).get_device_properties(0)
    return {properties.name: f"{properties.total_memory / 2**30:.0f} GiB"}


if __name__ == "__main__":
    typer.run(main)
