"""Code blocks and command lines of the pages, and names of the package on them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "hydragnn_flow"
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
PAGES += [REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "CHANGELOG.md"]

_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", flags=re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# ([\w.]+\.(?:py|yaml))\n")
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


def follow(page: Path, folder: Path, **started: Any) -> list[str]:
    """Do in a folder what a page says, block by block, and return what its programs print.

    A block that begins with the name of a file is saved.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    started |= {"env": {**os.environ, "PATH": path, "COLUMNS": "80"}, "cwd": folder}
    programs = {"python": [sys.executable, "-c"], "sh": ["bash", "-ec"]}
    said = []
    for _, language, text in _blocks(page):
        if named := _FILE.match(text):
            (folder / named[1]).write_text(text)
        elif language in programs:
            command = [*programs[language], text]
            done = subprocess.run(command, capture_output=True, text=True, **started)
            assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
            said.append(done.stdout)
    return said


def is_named(name: str) -> bool:
    """Whether the package defines a class or function, or a method or attribute `Class.name`."""
    owner, _, part = name.partition(".")
    defined = rf"^ *(?:class |def )?{owner}\b *[:(=]"
    own = rf"(?:def |self\.|^ +){part}\b"
    return any(
        re.search(defined, text, re.M) and (not part or re.search(own, text, re.M))
        for text in _sources()
    )


@cache
def _sources() -> list[str]:
    return [file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py")]


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
