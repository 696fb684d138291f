"""The size of the repository stays below `ceilings.yaml`; CONTRIBUTING says when one is raised."""

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[1]
CEILINGS: dict[str, int] = yaml.safe_load(Path(__file__).with_name("ceilings.yaml").read_text())
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_NUMBER = (ast.Constant, ast.Tuple, ast.BinOp, ast.UnaryOp)


def modules(folder):
    return sorted((REPOSITORY / folder).rglob("*.py"))


def code_lines(source):
    """Number of lines without docstrings, comments and blank lines."""
    strings = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {
        line
        for token in tokens
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(code.difference(*strings))


def constants(source):
    """Names of the numbers that a module sets for good."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign) or isinstance(node.value, ast.Name):
            continue
        names = [
            name.id
            for target in node.targets
            for name in (target.elts if isinstance(target, ast.Tuple) else [target])
            if isinstance(name, ast.Name)
        ]
        parts = [part for part in ast.walk(node.value) if isinstance(part, ast.expr)]
        values = [part.value for part in parts if isinstance(part, ast.Constant)]
        if (
            all(name.lstrip("_").isupper() for name in names)
            and all(isinstance(part, _NUMBER) for part in parts)
            and any(type(value) in (int, float) for value in values)
        ):
            yield from names


@pytest.fixture(scope="module")
def sizes():
    package = {path: path.read_text(encoding="utf-8") for path in modules("hydragnn_flow")}
    pages = [*(REPOSITORY / "docs").rglob("*.md"), REPOSITORY / "README.md"]
    pages.append(REPOSITORY / "CONTRIBUTING.md")
    return {
        "code lines of hydragnn_flow": sum(map(code_lines, package.values())),
        "modules of hydragnn_flow": len(package),
        "modules in one folder": max(Counter(path.parent for path in package).values()),
        "constants of hydragnn_flow": sum(len([*constants(text)]) for text in package.values()),
        "lines of tests": sum(len(path.read_text().splitlines()) for path in modules("tests")),
        "code lines of benchmarks": sum(code_lines(p.read_text()) for p in modules("benchmarks")),
        "words of docs": sum(len(page.read_text(encoding="utf-8").split()) for page in pages),
    }


@pytest.mark.parametrize("what", CEILINGS)
def test_the_house_does_not_grow(what, sizes):
    assert sizes[what] <= CEILINGS[what], "take something away, or see CONTRIBUTING, Size"


def test_every_size_has_a_ceiling(sizes):
    assert sizes.keys() == CEILINGS.keys()
