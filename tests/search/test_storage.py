"""The study's storage: Optuna's, on disk in groups."""

import os
import pickle
import tempfile
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
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.testing.pytest_storages import StorageTestCase
from optuna.trial import TrialState, create_trial
from storage_cases import content, every_state, optunas

from hydragnn_flow.search.storage import StudyStorage, read_journal

DOMAINS: dict[str, list[BaseDistribution]] = {
    "type": [CategoricalDistribution(("SchNet", "EGNN", None, True))],
    "one": [CategoricalDistribution((1, 2)), CategoricalDistribution((1.0, 2.0))],
    "width": [IntDistribution(16, 64, log=True), IntDistribution(8, 96, log=True)],
    "depth": [IntDistribution(1, 9, step=2)],
    "rate": [FloatDistribution(1e-4, 1e-2, log=True)],
    "dropout": [FloatDistribution(0, 0.5, step=0.1), FloatDistribution(0.1, 0.3)],
}
CHOSEN = [
    (name, getattr(domain, "low", index), domain)
    for name, several in DOMAINS.items()
    for domain in several
    for index in (0, 1)
]
"""Parameters with values of theirs, in Optuna's terms."""


class TestAsOptunaAsksOfAStorage(StorageTestCase):
    """Optuna's own tests of a storage."""

    @pytest.fixture
    def storage(self, path):
        with StudyStorage(path) as storage:
            yield storage

    def test_pickle_storage(self, storage):
        """Only the driver has it."""
        with pytest.raises(TypeError):
            pickle.dumps(storage)


# A step of a sequence: the name of a method, for which trial, and what it is given.
steps: st.SearchStrategy[tuple[Any, ...]] = st.one_of(
    st.just(("ask",)),
    st.tuples(st.just("add"), st.sampled_from(TrialState), st.integers(0, 50)),
    st.builds(
        lambda trial, chosen: ("set_trial_param", trial, *chosen),
        st.integers(0, 5),
        st.sampled_from(CHOSEN),
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


def take(storage, step, study_id):
    """One step; what it returned, or the kind of error it raised."""
    try:
        match step:
            case ("ask",):
                return storage.create_new_trial(study_id)
            case ("add", state, seed):
                return storage.create_new_trial(study_id, template(state, seed))
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


def template(state, seed):
    return create_trial(
        state=state,
        value=float(seed) if state == TrialState.COMPLETE else None,
        params={"width": 16 + seed % 48, "type": None},
        distributions={"width": DOMAINS["width"][0], "type": DOMAINS["type"][0]},
        user_attrs={"seed": seed},
        system_attrs={"fixed_params": {"width": 20}},
        intermediate_values={2: 0.5, 4: 0.25} if seed % 2 else {},
    )


@settings(max_examples=60, deadline=None)
@given(sequence=st.lists(steps, max_size=40))
def test_any_sequence_of_changes_is_what_optuna_makes_of_it(sequence):
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


def test_a_reader_sees_the_complete_records_and_writes_nothing(path):
    with StudyStorage(path) as storage:
        every_state(storage)
    whole = path.read_bytes()
    assert content(read_journal(path)) == content(storage)
    end = whole.rfind(b"\n", 0, -1) + 1
    for cut in (end + 9, end):
        path.write_bytes(whole[:cut])
        seen = read_journal(path)
        optuna.load_study(study_name="search", storage=seen).set_user_attr("note", "of a reader")
        assert len(seen.get_all_trials(0)) == len(storage.get_all_trials(0)) - 1
        assert path.read_bytes() == whole[:cut]
        assert list(path.parent.iterdir()) == [path]


def test_two_records_a_trial_and_one_fsync_a_commit(path, monkeypatch):
    calls: list[int] = []
    fsync = os.fsync
    storage = StudyStorage(path)
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append(file), fsync(file)))

    def committed():
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
        study.tell(trial, 1.0)
    assert committed() == (32, 1)
    study.tell(study.ask(), 1.0)
    assert committed() == (2, 1)


def test_a_stock_journal_of_several_workers_opens_and_goes_on(path):
    workers = [optunas(path) for _ in range(3)]
    every_state(workers[0])
    studies = [optuna.load_study(study_name="search", storage=worker) for worker in workers]
    for study in studies:
        study.enqueue_trial({"x": 0.5})
    trials = [study.ask() for study in studies for _ in range(2)]
    for trial in trials:
        trial.suggest_float("x", 0, 1)
    # What another worker has ended is passed over by Optuna's readers.
    studies[0].tell(trials[0], 1.0)
    late = {"worker_id": "late", "trial_id": trials[0]._trial_id}
    JournalFileBackend(str(path)).append_logs(
        [
            {"op_code": 6, **late, "state": 4, "values": None},
            {"op_code": 7, **late, "trial_id": 99, "step": 9, "intermediate_value": 1},
            {"op_code": 4, "worker_id": "late", "study_id": 9, "datetime_start": None},
        ]
    )
    assert content(read_journal(path)) == content(optunas(path))
    with StudyStorage(path) as storage:
        study = optuna.load_study(study_name="search", storage=storage)
        study.tell(trials[1].number, 2.0)
        study.tell(study.ask(), 3.0)
    assert content(optunas(path)) == content(storage)
