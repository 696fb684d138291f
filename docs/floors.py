"""Draw the rooms of the package, floor by floor, with what they import: ``make docs``.

A room is a package or module right under `hydragnn_flow`. It imports from lower floors only;
`tests/test_floors.py` holds the code to that, and the picture to the code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from textwrap import wrap

PACKAGE = Path(__file__).parents[1] / "hydragnn_flow"
PICTURE = Path(__file__).with_name("images") / "floors.svg"

FLOORS: tuple[tuple[str, ...], ...] = (
    ("__main__",),
    ("cli", "testing"),
    ("commands",),
    ("apps", "simulation"),
    ("campaign",),
    ("report",),
    ("run_directory",),
    ("execution", "ensemble"),
    ("training", "engines"),
    ("models",),
    ("data", "search", "segment"),
    ("config", "placement"),
    ("locks", "plain_files", "processes"),
    ("energy_counters", "errors", "files", "garbage", "lazy", "lean", "log", "versions"),
)
"""Rooms from the top floor to the ground."""

LIBRARIES = {
    "torch": "torch",
    "torch_geometric": "PyG",
    "parsl": "Parsl",
    "optuna": "Optuna",
    "adios2": "ADIOS2",
    "ase": "ASE",
    "pydantic": "pydantic",
    "matplotlib": "matplotlib",
    "rich": "rich",
    "typer": "typer",
}
"""Libraries that the picture shows, by the name of their package."""

_WIDTH, _MARGIN, _GAP, _LINE = 960, 12, 10, 16
_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .name { font: bold 15px ui-monospace, monospace }
  .uses { font-style: italic; fill: #57606a }
  rect { fill: #ddf4ff; stroke: #54aeff; rx: 6px }
  .page { fill: #ffffff; stroke: none }
"""


@dataclass(frozen=True)
class Room:
    """A package or module right under `hydragnn_flow`."""

    name: str

    @cached_property
    def files(self) -> list[Path]:
        """Its modules."""
        folder = PACKAGE / self.name
        return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]

    @property
    def purpose(self) -> str:
        """First sentence of its docstring."""
        main = self.files[0]  # of a package `__init__.py`, which sorts before letters
        docstring = ast.get_docstring(ast.parse(main.read_text(encoding="utf-8"))) or ""
        return re.split(r"\.(?:\s|$)", " ".join(docstring.split("\n\n")[0].split()))[0]

    @cached_property
    def imports(self) -> set[str]:
        """Dotted names of the modules that it imports, anywhere in its code."""
        return {name for file in self.files for name in _imported(file)}

    @property
    def rooms(self) -> set[str]:
        """Other rooms that it imports from."""
        inside = {name.split(".")[1] for name in self.imports if name.startswith("hydragnn_flow.")}
        return inside - {self.name}

    @property
    def libraries(self) -> list[str]:
        """Libraries that it imports, of those that the picture shows."""
        packages = {name.partition(".")[0] for name in self.imports}
        return [title for package, title in LIBRARIES.items() if package in packages]


def rooms() -> set[str]:
    """Names of all rooms."""
    found = {path.stem for path in PACKAGE.glob("*.py")}
    found |= {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    return found - {"__init__"}


def _imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "hydragnn_flow":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""


def render() -> str:
    """The picture, as SVG."""
    shapes: list[str] = []
    top = _MARGIN
    there = rooms()
    for floor in ([name for name in names if name in there] for names in FLOORS):
        width = (_WIDTH - 2 * _MARGIN - (len(floor) - 1) * _GAP) / len(floor)
        boxes = [_lines(Room(name), width) for name in floor]
        height = _LINE * max(len(lines) for lines in boxes) + 14
        for position, lines in enumerate(boxes):
            left = _MARGIN + position * (width + _GAP)
            shapes.append(f'<rect x="{left:g}" y="{top}" width="{width:g}" height="{height}"/>')
            for row, (kind, text) in enumerate(lines, start=1):
                place = f'x="{left + 10:g}" y="{top + 5 + _LINE * row}"'
                shapes.append(f'<text class="{kind}" {place}>{escape(text)}</text>')
        top += height + _GAP
    size = f'viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" height="{top}"'
    page = '<rect class="page" width="100%" height="100%"/>'
    content = "\n".join([f"<style>{_STYLE}</style>", page, *shapes])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{content}\n</svg>\n'


def _lines(room: Room, width: float) -> list[tuple[str, str]]:
    """Lines of a box: style and text."""
    letters = int((width - 20) / 6.9)
    lines = [("name", room.name)]
    lines += [("text", line) for line in wrap(room.purpose, letters)]
    lines += [("uses", line) for line in wrap(", ".join(room.libraries), letters)]
    return lines


if __name__ == "__main__":
    PICTURE.write_text(render(), encoding="utf-8")
