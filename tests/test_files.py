"""Files that survive a crash."""

from __future__ import annotations

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hydragnn_flow.files import drop_torn_record, write_json, write_text


@settings(deadline=None)
@given(
    content=st.binary(max_size=64) | st.lists(st.sampled_from([b"{}\n", b"{", b"\n"])).map(b"".join)
)
@example(content=b"")
@example(content=b"x" * 10_000)
@example(content=b"{}\n" + b"x" * 4095)
@example(content=b"{}\n" + b"x" * 4096)
@example(content=b"{}\n" + b"x" * 9000)
@example(content=b"x" * 8191 + b"\n")
def test_exactly_the_torn_record_is_dropped(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        path.write_bytes(content)
        whole = content[: content.rfind(b"\n") + 1]
        assert drop_torn_record(path) == len(content) - len(whole)
        assert path.read_bytes() == whole
        assert drop_torn_record(path) == 0


def test_a_file_that_is_not_there_has_no_torn_record(tmp_path: Path) -> None:
    assert drop_torn_record(tmp_path / "none") == 0
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    for text in ("first\n", "zweiter, länger: Å\n", ""):
        write_text(path, text)
        assert path.read_text(encoding="utf-8") == text
        assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]


def test_a_failed_replacement_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert json.loads(path.read_text()) == {"a": 1}


@settings(deadline=None)
@given(
    values=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
)
def test_json_reads_back_the_same(values: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values.json"
        write_json(path, values)
        assert json.loads(path.read_text(encoding="utf-8")) == values


def test_writers_of_one_file_do_not_get_in_each_others_way(tmp_path: Path) -> None:
    """Ranks of a gang that end at the same time all say why."""
    path = tmp_path / "note"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: write_text(path, f"{number}"), range(400)))
    assert path.read_text().isdigit()
    assert [*tmp_path.iterdir()] == [path]
