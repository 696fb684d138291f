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
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from threading import Event
from typing import Annotated, Any, TypeVar

import torch
import typer
from gpu_race import fused, pieces, processes
from gpu_race.steps import OURS, THEIRS, Course, Row
from model_race.alloys import write_alloys
from model_race.networks import BATCH, MODES, TARGETS, Case, Mode, cases
from results import Cell, Number, Run, Table, peer_commit, say_on

from hydragnn_flow.execution.site import guessed_gcd
from hydragnn_flow.execution.sites.this_node import this_node
from hydragnn_flow.placement import Gcd
from hydragnn_flow.training.device import this_device
from hydragnn_flow.training.memory import out_of_memory

T = TypeVar("T")
ROWS = ("steps", "processes", "pieces", "fused")
# Networks that train side by side: one small enough to leave a device idle, and a larger one.
SIDE_BY_SIDE = (Case("SchNet", "potential"), Case("MACE", "potential"))
# Share of a step in kernels, below which the device waits for the host to say what is next.
_BUSY = 0.7


def main(
    device: Annotated[
        str | None, typer.Option(help="cuda, xpu or cpu; by default an accelerator, if any.")
    ] = None,
    hydragnn: Annotated[
        Path | None, typer.Option(help="Checkout of HydraGNN to compare with.", exists=True)
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help=f"Rows of {', '.join(ROWS)}.")] = None,
    types: Annotated[
        list[str] | None, typer.Option("--type", help=f"Networks, of {', '.join(TARGETS)}.")
    ] = None,
    mode: Annotated[Mode | None, typer.Option(help="Heads, forces, attention; or all.")] = None,
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
    ends, left_out = (
        Event(),
        [] if hydragnn else ["ratios to HydraGNN, whose checkout --hydragnn would name"],
    )
    signal.signal(signal.SIGTERM, lambda *_: ends.set())
    tables: list[Table] = []
    details: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        course = Course(
            *(Path(folder), place, gcd, rounds, seconds, 1 if quick else 4),
            *(hydragnn, say_on(), left_out),
        )
        chosen = cases(types or list(TARGETS), [mode] if mode else list(MODES))
        for row in only or ROWS:
            found: list[Any] = []
            for one in _in_time(row, _course(row, course, chosen, quick), ends, left_out):
                found += one
            tables += _tables(row, found, gcd)
            details[row] = [asdict(one) for one in found]
    run.end(
        tables,
        json,
        shown=["modes", "processes"],
        remarks=[f"not measured: {what}" for what in left_out],
        peers=_about(place) | peer_commit(hydragnn),
        settings={"rounds": rounds, "seconds": seconds},
        details=details,
    )


def _course(row: str, course: Course, chosen: list[Case], quick: bool) -> Iterator[list[Any]]:
    """Measures a row, part by part."""
    device, say = course.device, course.say
    if row == "steps":
        for case in chosen:
            found = course.run(case)
            yield [] if found is None else [found]
    elif row == "processes":
        numbers, seconds = ((1, 2), 0.1) if quick else ((1, 2, 4, 8), 8 * course.seconds)
        for case in SIDE_BY_SIDE[: 1 if quick else None]:
            store = write_alloys(course.folder, course.batches * BATCH, case)
            yield [*processes.measure(case, store, device, numbers, seconds, say)]
    elif row == "pieces":
        atoms = 108 if quick or device.type == "cpu" else 2048
        for piece in pieces.measure(device, atoms, course.rounds, course.seconds / 4, say):
            yield [piece]
    else:
        for shape in fused.measure(device, course.folder, course.rounds, quick, say):
            yield [shape]


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


def _tables(row: str, found: list[Any], gcd: Gcd) -> Iterable[Table]:
    if row == "steps":
        columns = ["networks", "HydraGNN's step over ours", "busy [%]", "expected step over ours"]
        yield Table(columns, _modes(found), "modes", "Training steps; median of the networks")
        columns = ["network", "steps/s", "HydraGNN", "ratio", "launches"]
        columns += ["launch [µs]", "in kernels [ms]", "a step [ms]", "busy"]
        yield Table(columns, [*map(_step, found)], "steps", "Training steps")
        columns = ["network", "expected [ms]", "measured [ms]", "ratio", "launches expected"]
        columns += ["measured", "memory expected [GiB]", "peak [GiB]"]
        yield Table(columns, [*map(_estimate, found)], "estimates", "Estimates of one step")
        yield _constants(found, gcd)
    elif row == "processes":
        alone = {one.case: one.steps_per_second for one in found if one.processes == 1}
        numbers = sorted({one.processes for one in found} - {1})
        rows: list[list[Cell]] = [
            [
                case.name,
                speed,
                *(o.steps_per_second / speed for o in found if o.case == case and o.processes > 1),
            ]
            for case, speed in alone.items()
        ]
        columns = ["network", "steps/s of one", *(f"{n} processes" for n in numbers)]
        yield Table(columns, rows, row, "Processes that share the device, over one")
    elif row == "pieces":
        rows = [[one.piece, one.mode, *_both(one, pieces.OURS, pieces.PLAIN)] for one in found]
        columns = ["piece", "of", "ours [ms]", "torch's own [ms]", "times as fast"]
        yield Table(columns, rows, row, "Hand-written derivatives")
    else:
        rows = [
            [
                f"{one.mpnn_type}, {'potential' if one.is_potential else 'property'}",
                *_both(one, fused.FUSED, fused.SEPARATE),
            ]
            for one in found
        ]
        title = f"{fused.MEMBERS} members of width {fused.WIDTH}: a step of all of them"
        columns = ["members", "fused [ms]", "separately [ms]", "times as fast"]
        yield Table(columns, rows, row, title)


def _modes(rows: list[Row]) -> list[list[Cell]]:
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
    return cells


def _range(values: list[float]) -> Number | None:
    return Number(median(values), "", min(values), max(values)) if values else None


def _both(one: Any, ours: str, other: str) -> list[Cell]:
    turns = one.turns
    return [1e3 * turns.of(ours), 1e3 * turns.of(other), turns.ratio(ours, other)]


def _step(row: Row) -> list[Cell]:
    seconds, kernels, theirs = row.turns.of(OURS), row.kernels, THEIRS in row.turns.seconds
    return [
        row.case.name,
        1 / seconds,
        row.turns.rate(THEIRS) if theirs else None,
        row.turns.ratio(OURS, THEIRS) if theirs else None,
        round(kernels.launches),
        1e6 * seconds / max(kernels.launches, 1),
        1e3 * kernels.seconds,
        1e3 * seconds,
        f"{min(1.0, kernels.seconds / seconds):.0%}",
    ]


def _estimate(row: Row) -> list[Cell]:
    seconds = row.turns.of(OURS)
    return [
        row.case.name,
        1e3 * row.expected_seconds,
        1e3 * seconds,
        seconds / row.expected_seconds,
        row.cost.launches,
        round(row.kernels.launches),
        row.expected_gib,
        row.peak_gib,
    ]


def _constants(rows: list[Row], gcd: Gcd) -> Table:
    """Constants of the device that the steps imply, beside those that placement assumes."""
    waiting = [row for row in rows if row.kernels.seconds < _BUSY * row.turns.of(OURS)]
    lines: list[tuple[str, float, float, list[float]]] = [
        (
            *("seconds of a launch, where the host is late [µs]", 1e6, gcd.launch_seconds),
            [row.turns.of(OURS) / row.cost.launches for row in waiting],
        ),
        (
            *("bytes counted per second in kernels [GB/s]", 1e-9, gcd.bandwidth),
            [row.cost.bytes / row.kernels.seconds for row in rows],
        ),
        (
            *("operations counted per second in kernels [TFLOP/s]", 1e-12, gcd.flops),
            [row.cost.flops / row.kernels.seconds for row in rows],
        ),
    ]
    cells: list[list[Cell]] = [
        [what, unit * assumed, _range([unit * value for value in found])]
        for what, unit, assumed, found in lines
    ]
    columns = ["constant", "of the site", "measured: median, smallest and largest"]
    return Table(columns, cells, "constants", "Constants of placement")


def _about(device: torch.device) -> dict[str, str]:
    """The device's name and memory, for the last line."""
    if device.type == "cpu":
        return {}
    properties = torch.get_device_module(device).get_device_properties(0)
    return {properties.name: f"{properties.total_memory / 2**30:.0f} GiB"}


if __name__ == "__main__":
    typer.run(main)
