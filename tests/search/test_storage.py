"""The study's storage: Optuna's, on disk in groups, whole after any accident."""

from __future__ import annotations

import errno
import json
import os
import pickle
import resource
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import FileIO
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.testing.pytest_storages import StorageTestCase
from optuna.trial import FrozenTrial, TrialState, create_trial

from hydragnn_flow.errors import InputError
from hydragnn_flow.search.storage import GroupCommitBackend, StudyStorage, read_journal

DOMAINS: dict[str, list[BaseDistribution]] = {
    "type": [CategoricalDistribution(("SchNet", "EGNN", None, True))],
    "one": [CategoricalDistribution((1, 2)), CategoricalDistribution((1.0, 2.0))],
    "width": [IntDistribution(16, 64, log=True), IntDistribution(8, 96, log=True)],
    "depth": [IntDistribution(1, 9, step=2)],
    "rate": [FloatDistribution(1e-4, 1e-2, log=True)],
    "dropout": [FloatDistribution(0, 0.5, step=0.1), FloatDistribution(0.1, 0.3)],
}


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "study.journal"


class TestAsOptunaAsksOfAStorage(StorageTestCase):
    """Optuna's own tests of a storage."""

    @pytest.fixture
    def storage(self, path: Path) -> Iterator[StudyStorage]:
        with StudyStorage(path) as storage:
            yield storage

    def test_pickle_storage(self, storage: BaseStorage) -> None:
        """Only the driver has it."""
        with pytest.raises(TypeError):
            pickle.dumps(storage)


def optunas(path: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(path)))


def content(storage: BaseStorage, times: bool = True) -> list[Any]:
    """Studies and trials, in a form that tells True from 1 and takes NaN for NaN."""
    found = []
    for study in storage.get_all_studies():
        study_id = study._study_id
        trials = storage.get_all_trials(study_id, deepcopy=False)
        fields = [dict(sorted(trial.__dict__.items())) for trial in trials]
        for field in fields if not times else ():
            field["_datetime_start"] = field["_datetime_start"] is None
            field["datetime_complete"] = field["datetime_complete"] is None
        attributes = (study.user_attrs, study.system_attrs)
        found.append(repr((study_id, study.study_name, study.directions, attributes, fields)))
    return found


def every_state(storage: BaseStorage) -> None:
    """Trials of all states and changes of all kinds; commits in between where there are any."""
    commit = getattr(storage, "commit", lambda: None)
    study = optuna.create_study(
        storage=storage, study_name="search", sampler=optuna.samplers.RandomSampler(seed=1)
    )
    study.set_user_attr("note", "größer")
    commit()
    study.enqueue_trial({"x": 0.5})
    study.enqueue_trial({"x": 0.25})
    trials = [study.ask() for _ in range(6)]
    for trial in trials[:4]:
        trial.suggest_float("x", 0, 1)
    commit()
    for trial in trials[:5]:
        trial.suggest_categorical("c", ["a", "b"])
        trial.report(1 / (1 + trial.number), 2)
    study.tell(trials[0], 0.1)
    commit()
    study.tell(trials[1], state=TrialState.PRUNED)
    trials[2].set_user_attr("reason", "diverged: loss is NaN")
    study.tell(trials[2], state=TrialState.FAIL)
    trials[3].set_constraint("memory", -1.0)
    commit()
    study.enqueue_trial({"x": 0.75})
    commit()
    popped = study.ask()
    commit()
    popped.suggest_float("x", 0, 1)
    study.add_trial(create_trial(value=3.0))
    study.enqueue_trial({"x": 0.125})
    commit()


# A step of a sequence: the name of a method, for which trial, and what it is given.
steps: st.SearchStrategy[tuple[Any, ...]] = st.one_of(
    st.just(("ask",)),
    st.tuples(st.just("add"), st.sampled_from(TrialState), st.integers(0, 50)),
    st.tuples(
        st.just("set_trial_param"),
        st.integers(0, 5),
        st.sampled_from(sorted(DOMAINS)),
        st.integers(0, 1),
        st.integers(0, 1),
    ),
    st.tuples(
        st.just("set_trial_intermediate_value"), st.integers(0, 5), st.integers(0, 9), st.floats()
    ),
    st.tuples(
        st.sampled_from(["set_trial_user_attr", "set_trial_system_attr"]),
        st.integers(0, 5),
        st.sampled_from(["a", "b"]),
        st.none() | st.booleans() | st.text(max_size=5) | st.lists(st.floats(), max_size=2),
    ),
    st.tuples(
        st.just("set_trial_state_values"),
        st.integers(0, 5),
        st.sampled_from(TrialState),
        st.floats(allow_nan=False),
    ),
    st.tuples(
        st.sampled_from(["set_study_user_attr", "set_study_system_attr"]),
        st.sampled_from(["a", "b"]),
        st.integers() | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    ),
    st.sampled_from([("new study",), ("delete study",), ("commit",), ("reopen",)]),
)


def take(storage: BaseStorage, step: tuple[Any, ...], study_id: int) -> Any:
    """One step; what it returned, or the kind of error it raised."""
    try:
        match step:
            case ("ask",):
                return storage.create_new_trial(study_id)
            case ("add", state, seed):
                return storage.create_new_trial(study_id, template(state, seed))
            case ("set_trial_param", trial, name, which, value):
                domain = DOMAINS[name][which % len(DOMAINS[name])]
                low = getattr(domain, "low", value)
                return storage.set_trial_param(trial, name, low, domain)
            case ("set_trial_state_values", trial, state, value):
                values = [value] if state == TrialState.COMPLETE else None
                return storage.set_trial_state_values(trial, state, values)
            case ("new study",):
                name = f"study {len(storage.get_all_studies())}"
                return storage.create_new_study([StudyDirection.MINIMIZE], name)
            case ("delete study",):
                return storage.delete_study(study_id)
            case ("set_study_user_attr" | "set_study_system_attr" as method, key, value):
                return getattr(storage, method)(study_id, key, value)
            case (method, *arguments):
                return getattr(storage, method)(*arguments)
    except (
        KeyError,
        ValueError,
        RuntimeError,
        AssertionError,  # Optuna's, of a trial that is not there
        optuna.exceptions.OptunaError,
    ) as error:
        return type(error)


def template(state: TrialState, seed: int) -> FrozenTrial:
    return create_trial(
        state=state,
        value=float(seed) if state == TrialState.COMPLETE else None,
        params={"width": 16 + seed % 48, "type": None},
        distributions={"width": DOMAINS["width"][0], "type": DOMAINS["type"][0]},
        user_attrs={"seed": seed},
        system_attrs={"fixed_params": {"width": 20}},
        intermediate_values={2: 0.5, 4: 0.25} if seed % 2 else {},
    )


@settings(max_examples=150, deadline=None)
@given(sequence=st.lists(steps, max_size=40))
def test_any_sequence_of_changes_is_what_optuna_makes_of_it(
    sequence: list[tuple[Any, ...]],
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)  # hundreds of commits
        path = Path(folder) / "study.journal"
        ours, plain = StudyStorage(path), optunas(Path(folder) / "optuna.journal")
        take(ours, ("new study",), 0)
        take(plain, ("new study",), 0)
        for step in sequence:
            if step == ("commit",):
                ours.commit()
            elif step == ("reopen",):
                ours.commit()
                ours = StudyStorage(path)
            else:
                study_id = max((s._study_id for s in plain.get_all_studies()), default=0)
                assert take(ours, step, study_id) == take(plain, step, study_id)
        assert content(ours, times=False) == content(plain, times=False)
        ours.commit()
        assert content(StudyStorage(path)) == content(ours)
        assert content(optunas(path)) == content(ours)
        for study in plain.get_all_studies():
            waiting = [
                storage.get_all_trials(study._study_id, states=(TrialState.WAITING,))
                for storage in (ours, ours, StudyStorage(path), plain)
            ]
            numbers = [[trial.number for trial in trials] for trials in waiting]
            assert numbers == [numbers[-1]] * 4


def test_a_journal_cut_at_any_byte_opens_with_all_complete_records(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)  # thousands of openings
    with StudyStorage(path) as storage:
        every_state(storage)
    lines = path.read_bytes().splitlines(keepends=True)
    assert {json.loads(line)["op_code"] for line in lines} == {0, 2, 4, 5, 6, 7, 8, 9}
    for n_lines in range(len(lines)):
        kept = b"".join(lines[:n_lines])
        path.write_bytes(kept)
        expected = content(optunas(path))
        n_trials = sum(json.loads(line)["op_code"] == 4 for line in lines[:n_lines])
        for cut in range(len(lines[n_lines])):
            path.unlink()  # some file systems flush a file that is written over
            path.write_bytes(kept + lines[n_lines][:cut])
            storage = StudyStorage(path)
            assert path.read_bytes() == kept
            assert content(storage) == expected
            if n_lines > 0 and cut in (0, 1, len(lines[n_lines]) - 1):
                trial_id = storage.create_new_trial(0)
                assert storage.get_trial(trial_id).number == trial_id == n_trials
                storage.commit()
                storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [0.5])
                storage.commit()
                assert content(optunas(path)) == content(storage)
                assert path.read_bytes().count(b"\n") == n_lines + 2
            storage.commit()


def test_a_reader_sees_the_complete_records_and_writes_nothing(path: Path) -> None:
    with StudyStorage(path) as storage:
        every_state(storage)
    whole = path.read_bytes()
    assert content(read_journal(path)) == content(storage)
    end = whole.rfind(b"\n", 0, -1) + 1
    path.write_bytes(whole[: end + 9])
    seen = read_journal(path)
    optuna.load_study(study_name="search", storage=seen).set_user_attr("note", "of a reader")
    assert len(seen.get_all_trials(0)) == len(storage.get_all_trials(0)) - 1
    assert path.read_bytes() == whole[: end + 9]
    assert list(path.parent.iterdir()) == [path]


def test_a_reader_takes_no_second_half_of_a_line_for_a_line() -> None:
    class Growing:
        """A journal whose last line is completed between two reads."""

        def exists(self) -> bool:
            return True

        def stat(self) -> None: ...

        def open(self, mode: str) -> AbstractContextManager[Iterator[bytes]]:
            return nullcontext(iter([b'{"a":1}\n', b'{"b"', b":2}\n"]))

    backend = GroupCommitBackend(Path("unused"))
    backend.path = Growing()  # type: ignore[assignment]
    assert list(backend.read_logs(0)) == [{"a": 1}]


def test_any_damaged_record_is_refused_by_its_line(path: Path) -> None:
    with StudyStorage(path) as storage:
        every_state(storage)
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        other = json.dumps({**json.loads(line), "op_code": 77}).encode() + b"\n"
        for damage in (b"\0" * (len(line) - 1) + b"\n", line[3:], b"[]\n", b"{}\n", other):
            path.write_bytes(b"".join([*lines[: number - 1], damage, *lines[number:]]))
            for opening in (StudyStorage, read_journal):
                with pytest.raises(InputError) as caught:
                    opening(path)
                assert str(caught.value).startswith(f"{path}: line {number} is damaged (")
                assert "\n" not in str(caught.value)


def test_two_records_a_trial_and_one_fsync_a_commit(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    fsync = os.fsync

    def counted(file: int) -> None:
        calls.append(file)
        fsync(file)

    storage = StudyStorage(path)
    monkeypatch.setattr(os, "fsync", counted)

    def committed() -> tuple[int, int]:
        """New records and fsyncs of a commit."""
        before = path.read_bytes().count(b"\n") if path.exists() else 0
        calls.clear()
        storage.commit()
        return path.read_bytes().count(b"\n") - before, len(calls)

    study = optuna.create_study(storage=storage, sampler=optuna.samplers.RandomSampler())
    assert committed() == (1, 2), "the new file's name is to be on disk too"
    assert committed() == (0, 0)
    trials = [study.ask() for _ in range(32)]
    for trial in trials:
        trial.suggest_int("width", 1, 9)
        trial.suggest_float("rate", 0, 1)
    assert committed() == (32, 1)
    for trial in trials:
        trial.report(1.0, 2)
    assert committed() == (32, 1)
    for trial in trials:
        study.tell(trial, 1.0)
    assert committed() == (32, 1)
    study.tell(study.ask(), 1.0)
    assert committed() == (2, 1)
    calls.clear()
    storage.commit()
    assert calls == []


def test_what_is_no_json_is_refused_before_it_can_spoil_a_commit(path: Path) -> None:
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


@contextmanager
def file_size_limit(n_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond a size: writes are cut short, then fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 1, 200, 700])
def test_a_full_disk_leaves_the_journal_whole_and_nothing_is_lost(path: Path, room: int) -> None:
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


def test_a_disk_that_fails_at_fsync_is_asked_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(file: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    with StudyStorage(path) as storage:
        study = optuna.create_study(storage=storage)
        storage.commit()
        before = path.read_bytes()
        study.ask()
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", failing)
            with pytest.raises(OSError):
                storage.commit()
        assert path.read_bytes() == before
        storage.commit()
        assert path.read_bytes().startswith(before)
        assert content(read_journal(path)) == content(storage)


class HalfBroken(FileIO):
    """Takes half of what is written, then nothing more, not even a truncation; later it works."""

    failures = 2

    def write(self, content: Any, /) -> int:
        if self.failures == 2:
            self.failures = 1
            return super().write(content[: len(content) // 2])
        self._fail()
        return super().write(content)

    def truncate(self, size: int | None = None, /) -> int:
        self._fail()
        return super().truncate(size)

    def _fail(self) -> None:
        if self.failures > -1:
            self.failures -= 1
            raise OSError(errno.EIO, "input/output error")


def test_half_a_record_that_could_not_be_removed_is_removed_by_the_next_commit(path: Path) -> None:
    with StudyStorage(path) as storage:
        study = optuna.create_study(storage=storage)
        storage.commit()
        before = path.read_bytes()
        broken = HalfBroken(path, "ab")
        file = storage._journal._file
        file._open = lambda: broken if broken.failures > -1 else FileIO(path, "ab")  # type: ignore[method-assign]
        study.ask()
        with pytest.raises(OSError):
            storage.commit()
        assert path.read_bytes().startswith(before)
        assert len(path.read_bytes()) > len(before)
    assert content(read_journal(path)) == content(storage)


def test_a_stock_journal_of_several_workers_opens_and_goes_on(path: Path) -> None:
    workers = [optunas(path) for _ in range(3)]
    every_state(workers[0])
    studies = [
        optuna.load_study(
            study_name="search", storage=worker, sampler=optuna.samplers.RandomSampler(seed=i)
        )
        for i, worker in enumerate(workers)
    ]
    for study in studies:
        study.enqueue_trial({"x": 0.5})
    trials = [study.ask() for study in studies for _ in range(2)]
    for trial in trials:
        trial.suggest_float("x", 0, 1)
    # What another worker has ended, or given another domain, is passed over by Optuna's readers.
    backend = JournalFileBackend(str(path))
    late = {"worker_id": "late", "trial_id": trials[0]._trial_id}
    domain = optuna.distributions.distribution_to_json(IntDistribution(0, 1))
    param = {"param_name": "x", "param_value_internal": 1, "distribution": domain}
    backend.append_logs([{"op_code": 5, **late, "trial_id": trials[1]._trial_id, **param}])
    studies[0].tell(trials[0], 1.0)
    backend.append_logs([{"op_code": 6, **late, "state": 4, "values": None}])
    backend.append_logs([{"op_code": 7, **late, "step": 9, "intermediate_value": 9.0}])
    backend.append_logs(
        [{"op_code": 7, **late, "trial_id": 99, "step": 9, "intermediate_value": 1}]
    )
    backend.append_logs(
        [{"op_code": 4, "worker_id": "late", "study_id": 9, "datetime_start": None}]
    )
    assert content(read_journal(path)) == content(optunas(path))
    with StudyStorage(path) as storage:
        study = optuna.load_study(study_name="search", storage=storage)
        study.tell(trials[1].number, 2.0)
        study.tell(study.ask(), 3.0)
    assert content(optunas(path)) == content(storage)
