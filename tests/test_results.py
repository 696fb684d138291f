"""Pages show what the benchmarks' results say, and results what was measured."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import page
import pytest
from hypothesis import given
from hypothesis import strategies as st
from results import Line, Number, Result, Run, Table, behind, missed, table_of
from results.code import changed, fingerprint, fingerprints
from results.machine import command
from results.result import FOLDER

RESULTS = sorted(FOLDER.glob("*.json"))
SOURCE = '''"""A module."""


def twice(x):
    """Double it."""
    return 2 * x  # fast
'''


@pytest.fixture
def result() -> Result:
    tables = [
        Table(("path", "ratio"), [["a", 2.5], ["b", Number(31.2, "kB", 30.0, 32.0)]], name="speed"),
        Table(("side", "error"), [["ours", Number(14.94, "meV", error=0.31)]]),
    ]
    return Run("fast", ["benchmarks/results"], ["numpy"]).end(tables, remarks=["not measured: c"])


# --- pages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", page.PAGES, ids=lambda path: path.name)
def test_a_page_is_what_the_results_say(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text == page.render(text), "run `make docs`"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_says_enough_and_nothing_of_the_place(path: Path) -> None:
    found = Result.read(path)
    assert found.name == path.stem
    assert not found.quick
    assert found.code and found.versions["Python"] and found.machine["processor"]
    # Paths of a machine begin with a slash; "graphs/CPU-s" and "1/2" do not.
    assert not re.search(r"(?<![\w./])/\w+/", path.read_text(encoding="utf-8"))


def test_a_result_is_shown_between_its_marks(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "FOLDER", tmp_path)
    result.write(tmp_path / "fast.json")
    marks = "<!-- result: fast -->\nold\n<!-- end -->\n<!-- result: fast speed -->\n<!-- end -->"
    shown = page.render(f"before\n{marks}")
    whole, alone = shown.split("<!-- end -->")[:2]
    assert whole.startswith(f"before\n<!-- result: fast -->\n```\n{result.command}\n```\n")
    assert result.markdown() in whole and "old" not in whole
    assert alone == f"\n<!-- result: fast speed -->\n{result.tables[0].markdown()}\n"
    assert page.render(shown) == shown
    assert "Not measured yet" in page.render("<!-- result: unknown -->\n<!-- end -->")


def test_a_page_says_that_the_code_has_changed(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "FOLDER", tmp_path)
    mark = "<!-- result: fast -->\n<!-- end -->"
    result.write(tmp_path / "fast.json")
    assert "has changed" not in page.render(mark)
    other = {**result.code, "benchmarks/results/table.py": "0"}
    replace(result, code=other).write(tmp_path / "fast.json")
    assert "has changed" in page.render(mark)
    assert Result.read(tmp_path / "fast.json").changed() == ["benchmarks/results/table.py"]


# --- files ------------------------------------------------------------------------------------

_CELLS = (
    st.none()
    | st.text()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.builds(Number, *[st.floats(-1e9, 1e9)], st.sampled_from(["", "meV"]))
    | st.builds(Number, *[st.floats(-1e9, 1e9)], error=st.floats(0, 1e9))
)


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(_CELLS, min_size=n, max_size=n))))
def test_a_table_survives_its_file(rows: list[list[str | float | Number | None]]) -> None:
    columns = [f"column {number}" for number in range(len(rows[0]) if rows else 2)]
    table = Table(columns, rows, "name", "title")
    again = Table.from_json(json.loads(json.dumps(table.to_json())))
    assert [*map(list, again.rows)] == rows
    assert again.markdown() == table.markdown()


def test_a_result_survives_its_file(result: Result, tmp_path: Path) -> None:
    result.write(tmp_path / "result.json")
    again = Result.read(tmp_path / "result.json")
    assert again.markdown() == result.markdown()
    assert replace(again, tables=[]) == replace(result, tables=[])


def test_a_result_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text('{"machine": {}}')
    with pytest.raises(ValueError, match="run its command again"):
        Result.read(tmp_path / "old.json")


def test_nan_is_written_as_a_word(tmp_path: Path, result: Result) -> None:
    table = Table(("a", "b"), [[float("nan"), Number(float("inf"), "meV")]])
    replace(result, tables=[table], details=[float("nan")]).write(tmp_path / "r.json")
    (again,) = Result.read(tmp_path / "r.json").tables
    assert again.rows == [["nan", "inf meV"]]


# --- tables -----------------------------------------------------------------------------------


def test_numbers_are_shown_as_precisely_as_they_are_known() -> None:
    rows: list[list[str | int | float | Number | None]] = [
        ["a|b", 123456.7, None],
        ["c", 1_000_000, Number(14.94, "meV", error=0.31)],
        ["d", 0.012345, Number(32.61, "", 31.24, 33.96)],
    ]
    assert Table(("what", "much", ""), rows).markdown().splitlines() == [
        "| what |      much |                  |",
        "| ---- | --------: | ---------------: |",
        "| a\\|b |   123,000 |                  |",
        "| c    | 1,000,000 | 14.94 ± 0.31 meV |",
        "| d    |    0.0123 | 32.6 (31.2–34.0) |",
    ]


def test_lines_judge_the_ratio_before_the_value() -> None:
    lines = [
        Line("r", "speed", 100.0, "1/s", "peer", 50.0, 2.0, at_least=3.0, spread=(1.9, 2.1)),
        Line("r", "memory", 10.0, "MB", at_most=20.0),
        Line("r", "time", 1.0, "s"),
    ]
    assert [line.met for line in lines] == [False, True, None]
    assert missed(lines) == "targets missed: speed, peer"
    assert behind(lines) == "slower: nothing"
    slow = Line("r", "speed", 1.0, "1/s", "peer", 2.0, 0.5)
    assert behind([slow]) == "slower: speed, than peer (0.50)"
    assert behind([slow], ["peer"]) == "slower: nothing"
    rows = [line.split("|") for line in table_of(lines).markdown().splitlines()[2:]]
    assert [cell.strip() for cell in rows[0][5:8]] == ["2.00 (1.90–2.10)", "≥ 3", "MISSED"]
    assert rows[1][2].strip() == "10.0 MB" and rows[1][5].strip() == ""


# --- code and command -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# fast", "# slow"),
        ("Double it.", "Twice.\n\n    More."),
        ("A module", "B"),
        ("\n\n", "\n"),
    ],
)
def test_words_do_not_change_a_fingerprint(old: str, new: str) -> None:
    assert fingerprint(SOURCE.replace(old, new)) == fingerprint(SOURCE)


@pytest.mark.parametrize(("old", "new"), [("2 * x", "3 * x"), ("return", "x = 1;  return")])
def test_code_changes_a_fingerprint(old: str, new: str) -> None:
    assert fingerprint(SOURCE.replace(old, new)) != fingerprint(SOURCE)


def test_a_string_that_is_used_changes_a_fingerprint() -> None:
    assert fingerprint('x = """a # b"""\n') != fingerprint('x = """a # c"""\n')


def test_other_files_count_in_full(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: 1\n")
    before = fingerprints(["a.yaml"], tmp_path)
    (tmp_path / "a.yaml").write_text("a: 1  # why\n")
    assert changed(["a.yaml"], before, tmp_path) == ["a.yaml"]


def test_new_and_deleted_modules_are_changes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.py").write_text(SOURCE)
    (tmp_path / "a" / "two.py").write_text(SOURCE)
    before = fingerprints(["a"], tmp_path)
    assert list(before) == ["a/one.py", "a/two.py"]
    assert list(fingerprints(["a/t*.py"], tmp_path)) == ["a/two.py"]
    (tmp_path / "a" / "two.py").rename(tmp_path / "a" / "three.py")
    assert changed(["a"], before, tmp_path) == ["a/three.py", "a/two.py"]
    with pytest.raises(FileNotFoundError, match=r"b\.py is not in the repository"):
        fingerprints(["a", "b.py"], tmp_path)


def test_a_command_names_no_path(tmp_path: Path) -> None:
    checkout, file = str(tmp_path), str(tmp_path / "x.json")
    words = ["/here/store.py", "--hydragnn", checkout, "--only", "memory", "--quick"]
    shown = command([*words, "--json", file, f"--scratch={checkout}", f"--data={checkout}"])
    assert shown == (
        "python benchmarks/store.py --hydragnn HYDRAGNN --only memory --quick --data=DATA"
    )
    inner = Path(page.__file__).parent / "campaign_checks" / "published.py"
    assert command([str(inner)]) == "python benchmarks/campaign_checks/published.py"
