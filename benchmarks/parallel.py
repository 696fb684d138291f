"""One network over many GCDs: each row is measured by a module of `parallel_checks`.

    python benchmarks/parallel.py --hydragnn PATH-OF-A-CHECKOUT
    python benchmarks/parallel.py --only traffic

On this machine's processors, with gloo. What is exchanged is counted and not timed. If it is
interrupted, the same command continues it: rows that this code has measured, and networks that the
row of equality has trained, are in the scratch directory.
"""

from __future__ import annotations

import json as json_file
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from parallel_checks import (
    continued,
    ddp,
    equality,
    fused,
    heads,
    memory,
    scaling,
    strategy,
    too_large,
    traffic,
)
from results import Line, Run, Table, missed, table_of
from results.code import commit_of, folder_of_code

CHECKS = {
    check.ROW: check
    for check in (
        equality,
        memory,
        traffic,
        too_large,
        heads,
        continued,
        ddp,
        strategy,
        scaling,
        fused,
    )
}
Measure = Callable[..., Iterator[Line | Table]]


def main(
    only: Annotated[list[str] | None, typer.Option(help=f"Rows, of {', '.join(CHECKS)}.")] = None,
    hydragnn: Annotated[
        Path | None, typer.Option(help="Checkout of HydraGNN, for the row of memory.", exists=True)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Little, to see that it runs.")] = False,
    scratch: Annotated[Path, typer.Option(help="Directory for what is made on the way.")] = Path(
        "runs/benchmark-parallel"
    ),
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Measure and print tables; the exit status is 0 whatever they say."""
    if unknown := set(only or []) - set(CHECKS):
        raise typer.BadParameter(f"no {', '.join(unknown)}; there are {', '.join(CHECKS)}")
    rows = only or [*CHECKS]
    measures = {"benchmarks/parallel.py"}.union(*(CHECKS[name].MEASURES for name in rows))
    run = Run("parallel", sorted(measures), ["optuna", "torch", "torch-geometric"], quick=quick)
    lines: list[Line] = []
    tables: list[Table] = []
    for name in rows:
        check = CHECKS[name]
        folder = folder_of_code(scratch, check.MEASURES, quick=quick)
        measure: Measure = check.measured
        file = folder / f"{name}.json"
        if check is memory and hydragnn is not None:
            measure, file = partial(measure, hydragnn=hydragnn), folder / f"{name}-peer.json"
        for found in kept(file, partial(measure, folder, quick=quick)):
            (lines if isinstance(found, Line) else tables).append(found)  # type: ignore[arg-type]
    result = run.end(
        [table_of(lines, "parallel"), *tables],
        remarks=[missed(lines)],
        peers={} if hydragnn is None else {"HydraGNN": commit_of(hydragnn) or "of no commit"},
        details=[asdict(line) for line in lines],
    )
    print(result.markdown())
    if json is not None:
        result.write(json)


def kept(file: Path, measure: Callable[[], Iterator[Line | Table]]) -> list[Line | Table]:
    """What a row has found, from its file if it has been measured before."""
    if not file.exists():
        found = [*measure()]
        content = [
            {"line": asdict(one)} if isinstance(one, Line) else {"table": one.to_json()}
            for one in found
        ]
        whole = file.with_suffix(".new")
        whole.write_text(json_file.dumps(content), encoding="utf-8")
        whole.replace(file)
    return [
        Line(**one["line"]) if "line" in one else Table.from_json(one["table"])
        for one in json_file.loads(file.read_text(encoding="utf-8"))
    ]


if __name__ == "__main__":
    typer.run(main)
