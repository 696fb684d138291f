"""One network over many GCDs: each row is measured by a module of `parallel_checks`.

    python benchmarks/parallel.py
    python benchmarks/parallel.py --only strategy

On this machine's processors, with gloo. A row that has been measured by this code, or a part of
one, is in the scratch directory and not measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from parallel_checks import fused, scaling, strategy
from results import Line, Run, Table, table_of
from results.code import folder_of_code

CHECKS = {check.ROW: check for check in (fused, scaling, strategy)}
MEASURES = sorted({"benchmarks/parallel.py"}.union(*(check.MEASURES for check in CHECKS.values())))
ROWS: dict[str, Callable[..., Iterator[Line | Table]]] = {
    name: check.measured for name, check in CHECKS.items()
}


def main(
    only: Annotated[list[str] | None, typer.Option(help=f"Rows, of {', '.join(ROWS)}.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Little, to see that it runs.")] = False,
    scratch: Annotated[Path, typer.Option(help="Directory for what is made on the way.")] = Path(
        "runs/benchmark-parallel"
    ),
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Measure and print tables; the exit status is 0 whatever they say."""
    if unknown := set(only or []) - set(ROWS):
        raise typer.BadParameter(f"no {', '.join(unknown)}; there are {', '.join(ROWS)}")
    run = Run("parallel", MEASURES, ["optuna", "torch", "torch-geometric"], quick=quick)
    lines: list[Line] = []
    tables: list[Table] = []
    for name in only or ROWS:
        folder = folder_of_code(scratch, CHECKS[name].MEASURES, quick=quick)
        for found in ROWS[name](folder, quick=quick):
            (lines if isinstance(found, Line) else tables).append(found)  # type: ignore[arg-type]
    result = run.end([table_of(lines, "parallel"), *tables])
    print(result.markdown())
    if json is not None:
        result.write(json)


if __name__ == "__main__":
    typer.run(main)
