"""Fingerprints of the code that a result was measured on, blind to comments and docstrings."""

from __future__ import annotations

import ast
import hashlib
import io
import subprocess
import tokenize
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
_BODIES = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def fingerprints(paths: Sequence[str], root: Path = REPOSITORY) -> dict[str, str]:
    """A fingerprint for each file.

    Parameters
    ----------
    paths
        Files, folders of which every module counts, and patterns of these, relative to ``root``.
    root
        Of the repository.

    Raises
    ------
    FileNotFoundError
        Naming a path that is not there.
    """
    files: set[Path] = set()
    for path in paths:
        found = list(root.glob(path))
        if not found:
            raise FileNotFoundError(f"{path} is not in the repository: it cannot be measured")
        for one in found:
            files.update(one.rglob("*.py") if one.is_dir() else [one])
    return {file.relative_to(root).as_posix(): _of_file(file) for file in sorted(files)}


def folder_of_code(scratch: Path, paths: Sequence[str], *, quick: bool) -> Path:
    """A folder for run directories of this code: those of other code must not be continued."""
    code = hashlib.sha256(repr((fingerprints(paths), quick)).encode()).hexdigest()[:12]
    folder = scratch.resolve() / code
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def changed(paths: Sequence[str], before: dict[str, str], root: Path = REPOSITORY) -> list[str]:
    """Files that have changed, including new ones and deleted ones."""
    there = [path for path in paths if any(root.glob(path))]
    now = fingerprints(there, root)
    return sorted(file for file in before.keys() | now.keys() if before.get(file) != now.get(file))


@cache  # results of one page have been measured on much the same files
def fingerprint(source: str) -> str:
    """The same for modules that differ in comments, docstrings and blank lines alone."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _BODIES):
            for text in _strings(node.body):
                lines[text.lineno - 1] = lines[text.lineno - 1][: text.col_offset]
                for row in range(text.lineno + 1, (text.end_lineno or text.lineno) + 1):
                    lines[row - 1] = ""
    return _digest("\n".join(line.rstrip() for line in lines if line.strip()))


def commit_of(checkout: Path, *, digits: int = 8) -> str:
    """The commit of a git checkout; empty if there is none."""
    return _git(checkout, "rev-parse", f"--short={digits}", "HEAD")


def is_clean(checkout: Path) -> bool:
    """Whether the files that git knows are as committed."""
    dirty = _git(checkout, "status", "--porcelain", "--untracked-files=no")
    return commit_of(checkout) != "" and not dirty


def _of_file(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return fingerprint(text) if path.suffix == ".py" else _digest(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _strings(body: Iterable[ast.stmt]) -> list[ast.Expr]:
    """Docstrings: of the whole, and of fields."""
    return [
        statement
        for statement in body
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    ]


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8")
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
