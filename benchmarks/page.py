"""Write the results of docs/results into the pages that show them: ``make docs``.

    python benchmarks/page.py              # bring the pages up to date
    python benchmarks/page.py --changed    # files whose code is no longer what was measured

The text between ``<!-- result: NAME -->`` and ``<!-- end -->`` is generated from
``docs/results/NAME.json``: the command, its tables, and the machine and versions. With
``<!-- result: NAME TABLE -->`` it is one table and nothing else.
"""

from __future__ import annotations

import re
from typing import Annotated

import typer
from results.code import REPOSITORY
from results.result import FOLDER, Result

PAGES = [REPOSITORY / "docs" / "benchmarks.md", REPOSITORY / "README.md"]
_MARK = re.compile(r"(<!-- result: ([\w-]+)(?: ([\w-]+))? -->)\n.*?(<!-- end -->)", re.DOTALL)


def main(
    changed: Annotated[
        bool, typer.Option("--changed", help="Name the code that has changed; write nothing.")
    ] = False,
) -> None:
    """Bring the pages up to date."""
    if changed:
        for path in sorted(FOLDER.glob("*.json")):
            for file in Result.read(path).changed():
                print(f"{path.stem}: {file}")
        return
    for page in PAGES:
        page.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")


def render(page: str) -> str:
    """A page with its results made anew."""

    def shown(found: re.Match[str]) -> str:
        mark, name, table, end = found.groups()
        return f"{mark}\n{_block(name, table)}\n{end}"

    return _MARK.sub(shown, page)


def _block(name: str, table: str | None) -> str:
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return "Not measured yet."
    result = Result.read(path)
    if table is not None:
        (chosen,) = (one for one in result.tables if one.name == table)
        return chosen.markdown()
    parts = [f"```\n{result.command}\n```", result.markdown()]
    if result.changed():
        # Without names: they would make every change of the code a change of the page.
        parts.append(
            "**The code has changed since** "
            "(`python benchmarks/page.py --changed` names the files)."
        )
    return "\n\n".join(parts)


if __name__ == "__main__":
    typer.run(main)
