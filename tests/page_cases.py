"""Code blocks and command lines of the pages, and names that the package defines."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "hydragnn_flow"
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
PAGES += [REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "CHANGELOG.md"]

_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", flags=re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`([^`]+)`")
_LINE = re.compile(r"^ *(?:\$ )?((?:hydragnn-flow|python|make) .*)$", flags=re.MULTILINE)


class Block(NamedTuple):
    """A fenced block of a page."""

    place: str
    """Page and line."""
    language: str
    text: str


class Line(NamedTuple):
    """A command line of a page, in a block or within a sentence."""

    place: str
    words: tuple[str, ...]
    whole: bool
    """Whether it stands in a block and can be typed as it is; a sentence may leave words out."""


def blocks(*languages: str) -> list[Block]:
    """The blocks of all pages that are in one of these languages."""
    return [block for page in PAGES for block in _blocks(page) if block.language in languages]


def lines(program: str) -> list[Line]:
    """The command lines of all pages that start a program."""
    return [line for page in PAGES for line in _lines(page) if line.words[0] == program]


def is_defined(dotted: str) -> bool:
    """Whether a module of the package, or a name in one, has this dotted name."""
    parts = dotted.split(".")
    for at in range(len(parts), 0, -1):
        module = REPOSITORY.joinpath(*parts[:at])
        file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
        if file.is_file():
            name = ".".join(parts[at:])
            return not name or name in _defined(file) or name in _imported(file)
    return False


@cache
def names() -> frozenset[str]:
    """Classes of the package, their methods and attributes as `Class.name`, and functions."""
    return frozenset(name for file in PACKAGE.rglob("*.py") for name in _defined(file))


@cache
def _defined(file: Path) -> frozenset[str]:
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        found |= _named(node)
        if isinstance(node, ast.ClassDef):
            inside = (name for part in ast.walk(node) for name in _named(part))
            found |= {f"{node.name}.{name.removeprefix('self.')}" for name in inside}
    return frozenset(found)


def _named(node: ast.AST) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {ast.unparse(target) for target in targets if isinstance(target, ast.expr)}


def _imported(file: Path) -> set[str]:
    """Names that a module imports or, as the face of a package, hands on."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in _FENCED.finditer(text):
        yield Block(_place(page, text, found.start()), found[2], dedent(found[3]))


def _lines(page: Path) -> Iterator[Line]:
    text = page.read_text(encoding="utf-8")
    for block in _FENCED.finditer(text):
        if block[2] in ("", "sh"):
            for found in _LINE.finditer(block[3]):
                place = _place(page, text, block.start(3) + found.start(1))
                yield Line(place, _words(found[1]), True)
    prose = _FENCED.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)
    for found in _INLINE.finditer(prose):
        if re.match(r"(hydragnn-flow|python|make) [^\n]", found[1]):
            yield Line(_place(page, text, found.start()), _words(found[1]), False)


def _words(line: str) -> tuple[str, ...]:
    return tuple(shlex.split(line.replace("\n", " "), comments=True))


def _place(page: Path, text: str, at: int) -> str:
    return f"{page.relative_to(REPOSITORY)}:{text.count(chr(10), 0, at) + 1}"
