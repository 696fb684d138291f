"""Results of a device, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from parallel_checks.fused import MEMBERS, WIDTH
from results import Cell, Number, Table

from gpu_race import fused, pieces
from gpu_race.processes import Shared
from gpu_race.steps import OURS, THEIRS, Row
from hydragnn_flow.placement import Gcd

# Of a step; below it the device waits for the host to tell it what is next.
_BUSY = 0.7


def step_table(rows: Sequence[Row]) -> Table:
    """Steps per second beside HydraGNN's, and the kernels of a step."""
    columns = ["type", "mode", "steps/s", "HydraGNN", "ratio"]
    columns += ["launches", "launch [µs]", "in kernels [ms]", "a step [ms]", "busy", "costliest"]
    return Table(columns, [_step(row) for row in rows], "steps", "Training steps")


def _step(row: Row) -> list[Cell]:
    theirs: list[Cell] = [None, None]
    if THEIRS in row.turns.seconds:
        theirs = [1 / row.turns.of(THEIRS), Number(*_spread(row.turns.ratio(OURS, THEIRS)))]
    seconds = row.turns.of(OURS)
    return [
        row.case.mpnn_type,
        row.case.mode,
        1 / seconds,
        *theirs,
        round(row.kernels.launches),
        1e6 * seconds / max(row.kernels.launches, 1),
        1e3 * row.kernels.seconds,
        1e3 * seconds,
        f"{min(1.0, row.kernels.seconds / seconds):.0%}",
        next(iter(row.kernels.costliest), "")[:40],
    ]


def estimate_table(rows: Sequence[Row]) -> Table:
    """Times that placement expects of steps, beside the measured ones."""
    columns = ["type", "mode", "expected [ms]", "measured [ms]", "ratio"]
    columns += ["launches expected", "measured", "memory expected [GiB]", "peak [GiB]", "ratio"]
    return Table(columns, [_estimate(row) for row in rows], "estimates", "Estimates of one step")


def _estimate(row: Row) -> list[Cell]:
    seconds = row.turns.of(OURS)
    return [
        row.case.mpnn_type,
        row.case.mode,
        1e3 * row.expected_seconds,
        1e3 * seconds,
        seconds / row.expected_seconds,
        row.cost.launches,
        round(row.kernels.launches),
        row.expected_gib,
        row.peak_gib,
        row.peak_gib / row.expected_gib,
    ]


def constants(rows: Sequence[Row], gcd: Gcd) -> Table:
    """Constants of the device that the steps imply, beside those that placement assumes."""
    waiting = [row for row in rows if row.kernels.seconds < _BUSY * row.turns.of(OURS)]
    by_launch = [row.turns.of(OURS) / row.cost.launches for row in waiting]
    by_byte = [row.cost.bytes / row.kernels.seconds for row in rows]
    by_flop = [row.cost.flops / row.kernels.seconds for row in rows]
    lines: list[list[Cell]] = [
        ["seconds of a launch, where the host is late [µs]", 1e6 * gcd.launch_seconds],
        ["bytes counted per second in kernels [GB/s]", 1e-9 * gcd.bandwidth],
        ["operations counted per second in kernels [TFLOP/s]", 1e-12 * gcd.flops],
    ]
    found = [(1e6, by_launch), (1e-9, by_byte), (1e-12, by_flop)]
    for line, (unit, values) in zip(lines, found, strict=True):
        line.append(
            Number(unit * median(values), "", unit * min(values), unit * max(values))
            if values
            else None
        )
    columns = ["constant", "of the site", "measured: median, smallest and largest"]
    return Table(columns, lines, "constants", "Constants of placement")


def process_table(found: Sequence[Shared]) -> Table:
    """How much more several processes do than one."""
    alone = {one.case: one.steps_per_second for one in found if one.processes == 1}
    rows: list[list[Cell]] = [
        [
            f"{one.case.mpnn_type}, {one.case.mode}",
            one.processes,
            one.steps_per_second,
            one.steps_per_second / alone[one.case],
        ]
        for one in found
    ]
    columns = ["network", "processes", "steps/s of all", "over one"]
    return Table(columns, rows, "processes", "Processes that share the device")


def piece_table(found: Sequence[pieces.Timed]) -> Table:
    """The hand-written derivatives beside torch's own."""
    rows: list[list[Cell]] = [
        [
            one.piece,
            one.mode,
            1e3 * one.turns.of(pieces.OURS),
            1e3 * one.turns.of(pieces.PLAIN),
            Number(*_spread(one.turns.ratio(pieces.OURS, pieces.PLAIN))),
            f"{one.worst:.0e}",
        ]
        for one in found
    ]
    columns = ["piece", "of", "ours [ms]", "torch's own [ms]", "times as fast", "differ by"]
    return Table(columns, rows, "pieces", "Hand-written derivatives")


def fused_table(found: Sequence[fused.Together]) -> Table:
    """Fused members beside the same ones that train one after the other."""
    rows: list[list[Cell]] = [
        [
            str(one.shape),
            1e3 * one.turns.of(fused.SEPARATE),
            1e3 * one.turns.of(fused.FUSED),
            Number(*_spread(one.turns.ratio(fused.FUSED, fused.SEPARATE))),
            f"{one.loss:.0e}",
            f"{one.weight:.0e}",
        ]
        for one in found
    ]
    columns = ["members", "separately [ms]", "fused [ms]", "times as fast"]
    columns += ["losses differ by", "weights by"]
    title = f"{MEMBERS} fused members of width {WIDTH}: a step of all of them"
    return Table(columns, rows, "fused", title)


def _spread(ratio: tuple[float, float, float]) -> tuple[float, str, float, float]:
    middle, low, high = ratio
    return middle, "", low, high
