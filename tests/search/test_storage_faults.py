"""The study's journal after accidents: cut, damaged, a disk that is full or fails."""

import errno
import json
import os
import resource
from contextlib import contextmanager, nullcontext
from io import FileIO

import optuna
import pytest
from optuna.trial import TrialState, create_trial
from storage_cases import content, every_state, optunas

from hydragnn_flow.errors import InputError
from hydragnn_flow.search import storage as storage_module
from hydragnn_flow.search.storage import GroupCommitBackend, StudyStorage, read_journal


def test_a_journal_cut_at_any_byte_opens_with_all_complete_records(path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)  # hundreds of openings
    with StudyStorage(path) as storage:
        every_state(storage)
    lines = path.read_bytes().splitlines(keepends=True)
    assert {json.loads(line)["op_code"] for line in lines} == {0, 2, 4, 5, 6, 7, 8, 9}
    for n_lines in range(len(lines)):
        kept = b"".join(lines[:n_lines])
        path.write_bytes(kept)
        expected = content(optunas(path))
        n_trials = sum(json.loads(line)["op_code"] == 4 for line in lines[:n_lines])
        length = len(lines[n_lines])
        # Every byte of one record, and the ends and the middle of all.
        ends = {0, 1, length // 2, length - 2, length - 1}
        for cut in range(length) if n_lines == 1 else sorted(ends):
            path.unlink()  # some file systems flush a file that is written over
            path.write_bytes(kept + lines[n_lines][:cut])
            storage = StudyStorage(path)
            assert path.read_bytes() == kept
            assert content(storage) == expected
            if n_lines > 0 and cut in (0, 1, length - 1):
                trial_id = storage.create_new_trial(0)
                assert storage.get_trial(trial_id).number == trial_id == n_trials
                storage.commit()
                storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [0.5])
                storage.commit()
                assert content(optunas(path)) == content(storage)
                assert path.read_bytes().count(b"\n") == n_lines + 2
            storage.commit()


def test_any_damaged_record_is_refused_by_its_line(path):
    with StudyStorage(path) as storage:
        every_state(storage)
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        other = json.dumps({**json.loads(line), "op_code": 77}).encode() + b"\n"
        for damage in (b"\0" * (len(line) - 1) + b"\n", line[3:], b"[]\n", b"{}\n", other):
            path.write_bytes(b"".join([*lines[: number - 1], damage, *lines[number:]]))
            before = path.read_bytes()
            for opening in (StudyStorage, read_journal):
                with pytest.raises(InputError) as caught:
                    opening(path)
                assert str(caught.value).startswith(f"{path}: line {number} is damaged (")
                assert "\n" not in str(caught.value)
            assert path.read_bytes() == before


@contextmanager
def file_size_limit(n_bytes):
    """No file of this process grows beyond a size: writes are cut short, then fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 1, 700])
def test_a_full_disk_leaves_the_journal_whole_and_nothing_is_lost(path, room):
    storage = StudyStorage(path)
    every_state(storage)
    study = optuna.load_study(study_name="search", storage=storage)
    optunas(path).set_study_user_attr(0, "note", "of optuna-dashboard")
    before = path.read_bytes()
    trials = [study.ask() for _ in range(3)]
    study.tell(study.ask(), 0.5)
    with file_size_limit(len(before) + room):
        with pytest.raises(OSError) as caught:
            storage.commit()
        assert caught.value.errno == errno.EFBIG
        assert path.read_bytes() == before
        study.tell(trials[0], 1.5)
        with pytest.raises(OSError):
            storage.commit()
    assert path.read_bytes() == before
    storage.commit()
    storage.set_study_user_attr(0, "note", "of optuna-dashboard")
    assert content(optunas(path)) == content(read_journal(path)) == content(storage)


class Kept(FileIO):
    """A file from which nothing can be removed."""

    def truncate(self, size=None, /):
        raise OSError(errno.EIO, "input/output error")


@pytest.mark.parametrize("truncates", [True, False])
def test_a_disk_that_fails_at_fsync_is_asked_again(path, monkeypatch, truncates):
    """And a record that could not be removed is removed by the next commit."""

    def failing(file):
        raise OSError(errno.EIO, "input/output error")

    with StudyStorage(path) as storage:
        study = optuna.create_study(storage=storage)
        storage.commit()
        before = path.read_bytes()
        study.ask()
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", failing)
            if not truncates:
                broken.setattr(storage._journal._file, "_open", lambda: Kept(path, "ab"))
            for _ in range(2):
                with pytest.raises(OSError):
                    storage.commit()
        assert path.read_bytes().startswith(before)
        assert (path.read_bytes() == before) == truncates
        storage.commit()
        assert path.read_bytes().startswith(before)
        assert content(read_journal(path)) == content(storage)


def test_a_reader_takes_no_second_half_of_a_line_for_a_line(path, monkeypatch):
    """The last line is completed between two reads."""
    path.touch()
    growing = nullcontext(iter([b'{"a":1}\n', b'{"b"', b":2}\n"]))
    backend = GroupCommitBackend(path)
    monkeypatch.setattr(storage_module, "open_regular", lambda file: growing)
    assert list(backend.read_logs(0)) == [{"a": 1}]


def test_what_is_no_json_is_refused_before_it_can_spoil_a_commit(path):
    with StudyStorage(path) as storage:
        study = optuna.create_study(storage=storage)
        before = content(storage)
        with pytest.raises(TypeError):
            study.set_user_attr("a", object())
        with pytest.raises(TypeError):
            study.add_trial(create_trial(value=1.0, user_attrs={"a": object()}))
        assert content(storage) == before
        for commit_between in (False, True):
            trial = study.ask()
            if commit_between:
                storage.commit()
            with pytest.raises(TypeError):
                trial.set_user_attr("a", object())
    assert content(StudyStorage(path)) == content(storage)
    assert all(trial.user_attrs == {} for trial in study.trials)
