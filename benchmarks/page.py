"""Write the results of docs/results into docs/benchmarks.md: ``make docs``.

The text between ``<!-- result: NAME -->`` and ``<!-- end -->`` is generated from
``docs/results/NAME.json``: the command, its tables that decide, remarks, machine and commit.
"""

from __future__ import annotations

import re

from results import FOLDER, REPOSITORY, Result

PAGE = REPOSITORY / "docs" / "benchmarks.md"
MARK = re.compile(r"(<!-- result: (\w+) -->)\n.*?(<!-- end -->)", re.DOTALL)


def render(page: str) -> str:
    """The page with its results made anew."""

    def shown(found: re.Match[str]) -> str:
        result = Result.read(FOLDER / f"{found[2]}.json")
        commands = ", ".join(f"`{command}`" for command in result.command.splitlines())
        return f"{found[1]}\n{commands}\n\n{result.markdown()}\n{found[3]}"

    return MARK.sub(shown, page)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
