"""Files that survive a crash."""

import errno
import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hydragnn_flow import files
from hydragnn_flow.files import (
    drop_torn_record,
    is_there,
    modified,
    patiently,
    sweep,
    write_json,
    write_text,
)
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search.storage import StudyStorage


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
def test_exactly_the_torn_record_is_dropped(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        assert drop_torn_record(path) == 0 and not is_there(path)
        path.write_bytes(content)
        whole = content[: content.rfind(b"\n") + 1]
        assert drop_torn_record(path) == len(content) - len(whole)
        assert path.read_bytes() == whole
        assert drop_torn_record(path) == 0 and is_there(path)


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "notes.txt"
    for text in ("first\n", "zweiter, länger: Å\n", ""):
        write_text(path, text)
        assert path.read_text(encoding="utf-8") == text
        assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]


def test_a_failed_replacement_leaves_the_old_file(tmp_path):
    path = tmp_path / "notes.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert json.loads(path.read_text()) == {"a": 1}


def test_writers_of_one_file_do_not_get_in_each_others_way(tmp_path):
    """Ranks of a gang that end at the same time all say why."""
    path = tmp_path / "note"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: write_text(path, f"{number}"), range(400)))
    assert path.read_text().isdigit()
    assert [*tmp_path.iterdir()] == [path]


def test_what_killed_writers_left_is_swept_and_nothing_else(tmp_path):
    kept = ["checkpoint.pt", ".checkpoint.pt", ".attempt.123.tmp", "checkpoint.pt.tmp"]
    for name in (*kept, ".checkpoint.pt.4711.tmp", ".checkpoint.pt.0f3c.tmp"):
        (tmp_path / name).touch()
    sweep(tmp_path / "checkpoint.pt")
    assert {entry.name for entry in tmp_path.iterdir()} == set(kept)


@pytest.mark.parametrize(
    "begin", [StudyStorage, drop_torn_record, lambda file: [*RunDirectory(file.parent).results()]]
)
def test_a_file_that_a_disk_does_not_show_is_not_begun_anew(tmp_path, unseen, begin):
    file = tmp_path / "segments.jsonl"
    file.write_text("")
    unseen(file)
    with pytest.raises(OSError, match="Stale"):
        begin(file)


def test_a_disk_that_is_away_is_waited_for_and_no_absence(tmp_path, monkeypatch):
    path, look, away = tmp_path / "file", Path.stat, [2]
    path.touch()

    def stat(self, **options):
        if self == path and away[0]:
            away[0] -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return look(self, **options)

    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setattr(files, "SECONDS_BETWEEN_TRIES", 0.0)
    with pytest.raises(OSError, match="Stale"):
        modified(path)
    assert patiently(lambda: modified(path)) == look(path).st_mtime
    assert away == [0]
    assert modified(tmp_path / "none") == modified(path / "below a file") == 0.0
