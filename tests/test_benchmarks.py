"""Benchmarks can be started, and the page shows their results; how fast is not for tests to say."""

import runpy

import pytest
from page import MARK, PAGE, render
from results import FOLDER, REPOSITORY, Result

PROGRAMS = sorted((REPOSITORY / "benchmarks").glob("*.py"))
RESULTS = sorted(FOLDER.glob("*.json"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_a_program_can_be_imported(program):
    runpy.run_path(str(program), run_name="imported")


def test_the_page_shows_every_result():
    text = PAGE.read_text(encoding="utf-8")
    assert sorted(name for _, name, _ in MARK.findall(text)) == [path.stem for path in RESULTS]
    assert text == render(text), "run `make docs`"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_is_of_a_whole_run(path):
    result = Result.read(FOLDER / str(path))
    assert result.tables and not result.quick
