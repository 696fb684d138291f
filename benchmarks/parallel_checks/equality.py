"""Equality: does every strategy train as one process does?

Networks of every type, with and without forces, take 20 steps on 2, 4 and 8 ranks by every
strategy, and in one process. Steps are of 6 graphs, so that some of 8 ranks have none. What is
compared is the loss of each step in fp32. Types whose steps multiply what is rounded beyond the
limit take them once more in fp64, which tells rounding from another step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from results import Cell, Line, Table

from hydragnn_flow.data import GraphStore
from hydragnn_flow.training.distributed import World
from parallel_checks.networks import (
    GROUP,
    STRATEGIES,
    Kind,
    alloys,
    cases,
    losses,
    network,
    sharding,
    trainer,
)
from parallel_checks.ranks import on_ranks

ROW = "equality"
MEASURES = [
    "benchmarks/parallel_checks/equality.py",
    "benchmarks/parallel_checks/networks.py",
    "benchmarks/parallel_checks/ranks.py",
    "hydragnn_flow/models",
    "hydragnn_flow/training",
]
WIDTHS = (2, 4, 8)
_STEPS = 20
_EQUAL = 1e-5

Case = tuple[str, Kind]
Losses = dict[str, list[float]]


def measured(folder: Path, *, quick: bool = False) -> Iterator[Line | Table]:
    """A line for each strategy and kind, and the table of the types.

    What has been trained by this code is in the folder, and not trained again.
    """
    small: list[Case] = [("SchNet", "property"), ("SchNet", "potential")]
    chosen = small if quick else cases()
    widths, steps = (WIDTHS[:1], 3) if quick else (WIDTHS, _STEPS)
    with alloys(folder) as store:
        path = str(store.path)
    off = _compared(folder, path, chosen, widths, steps)
    yield from _lines(off, widths)
    missed = dict.fromkeys(case for (case, _, _), value in off.items() if value > _EQUAL)
    if missed:
        exact = _compared(folder, path, [*missed], widths, steps, precision="fp64")
        for case in missed:
            value = max(value for key, value in exact.items() if key[0] == case)
            what = f"{', '.join(case)}, every strategy, in fp64: losses, largest difference"
            yield Line(ROW, what, value, "of them", at_most=_EQUAL)
    yield _table(off, chosen)


def _compared(
    folder: Path, store: str, chosen: Sequence[Case], widths: Sequence[int], steps: int, **keys: Any
) -> dict[tuple[Case, str, int], float]:
    """Largest difference of a loss, by network, strategy and number of ranks."""
    of_one = {_name(*case, **keys): network(*case, **keys) for case in chosen}
    alone = _trained(folder, store, 1, of_one, steps)
    off = {}
    for width in widths:
        found = _trained(folder, store, width, _sections(chosen, width, **keys), steps)
        for case in chosen:
            for strategy in STRATEGIES:
                if (name := _name(*case, strategy, **keys)) in found:
                    off[case, strategy, width] = _off(found[name], alone[_name(*case, **keys)])
    return off


def _lines(off: Mapping[tuple[Case, str, int], float], widths: Sequence[int]) -> Iterator[Line]:
    for strategy in STRATEGIES:
        for kind in ("property", "potential"):
            mine = {
                key: value for key, value in off.items() if key[0][1] == kind and key[1] == strategy
            }
            if mine:
                types = len({case for case, _, _ in mine})
                on = ", ".join(
                    str(width) for width in widths if any(key[2] == width for key in mine)
                )
                what = f"{strategy}, {types} types, {kind}, {on} ranks: losses, largest difference"
                yield Line(ROW, what, max(mine.values()), "of them", at_most=_EQUAL)


def _table(off: Mapping[tuple[Case, str, int], float], chosen: Sequence[Case]) -> Table:
    rows: list[list[Cell]] = []
    for case in chosen:
        of_case = [
            max((value for key, value in off.items() if key[:2] == (case, strategy)), default=None)
            for strategy in STRATEGIES
        ]
        rows.append([*case, *(None if one is None else f"{one:.0e}" for one in of_case)])
    title = "Largest difference of a loss from that of one process, relative to it"
    return Table(["type", "", *STRATEGIES], rows, "equality", title)


def _off(ours: Sequence[float], alone: Sequence[float]) -> float:
    return max(abs(one - other) / abs(other) for one, other in zip(ours, alone, strict=True))


def _sections(chosen: Sequence[Case], width: int, **keys: Any) -> dict[str, dict[str, Any]]:
    """Networks by name; of two ranks, HYBRID_SHARD would be FULL_SHARD."""
    strategies = [one for one in STRATEGIES if width > GROUP or one != "HYBRID_SHARD"]
    return {
        _name(*case, strategy, **keys): network(*case, sharding=sharding(strategy), **keys)
        for case in chosen
        for strategy in strategies
    }


def _name(mpnn_type: str, kind: str, strategy: str = "alone", precision: str = "") -> str:
    return ", ".join(filter(None, [mpnn_type, kind, strategy, precision]))


def _trained(
    folder: Path, store: str, width: int, sections: Mapping[str, dict[str, Any]], steps: int
) -> Losses:
    """Losses by network, as far as they are not in the file already."""
    file = folder / f"{ROW}-{width}.jsonl"
    found = _read(file)
    if found:
        whole = [json.dumps(one) + "\n" for one in found.items()]
        # Or the next line would be written behind half of one.
        file.write_text("".join(whole), encoding="utf-8")
    left = {name: section for name, section in sections.items() if name not in found}
    if left:
        on_ranks(width, _train, store, left, steps, str(file))
    return _read(file)


def _train(
    world: World, store: str, sections: Mapping[str, dict[str, Any]], steps: int, file: str
) -> None:
    data = GraphStore.open(store)
    for name, section in sections.items():
        found = [*losses(trainer(section, f"{file}-none", data, world), steps)]
        if world.is_first:
            with Path(file).open("a", encoding="utf-8") as lines:
                lines.write(json.dumps([name, found]) + "\n")


def _read(file: Path) -> Losses:
    """What is in the file; a last line without an end is one that was being written."""
    if not file.exists():
        return {}
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    return dict(json.loads(line) for line in lines if line.endswith("\n"))
