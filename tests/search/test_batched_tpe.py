"""Batches of suggestions that a user of Optuna may take for TPE's."""

import pickle
import threading
from collections import Counter

import numpy as np
import optuna
import pytest
from optuna.samplers import PartialFixedSampler, RandomSampler, TPESampler
from optuna.samplers._tpe.sampler import _split_trials, default_gamma, default_gamma_multiobjective
from optuna.search_space.group_decomposed import _SearchSpaceGroup
from optuna.storages import InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from hydragnn_flow.search.records import PASSED, PROMOTES
from hydragnn_flow.search.samplers import batched_tpe, kernels
from hydragnn_flow.search.samplers.batched_tpe import BatchedTPESampler
from hydragnn_flow.search.samplers.history import Groups, History

NAMES = ["kind", "learning_rate", "width", "layers", "dropout"]


@pytest.fixture(autouse=True)
def quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def suggest(trial):
    return {
        "kind": trial.suggest_categorical("kind", ["a", "b", "c"]),
        "learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-1, log=True),
        "width": trial.suggest_int("width", 8, 800, log=True),
        "layers": trial.suggest_int("layers", 1, 6),
        "dropout": trial.suggest_float("dropout", 0.0, 0.5, step=0.1),
    }


def loss(parameters):
    return (
        np.log10(parameters["learning_rate"] / 1e-3) ** 2
        + np.log(parameters["width"] / 90) ** 2
        + 0.1 * abs(parameters["layers"] - 3)
        + parameters["dropout"]
        + {"a": 1.0, "b": 0.0, "c": 0.5}[parameters["kind"]]
    )


def conditional(trial):
    kind = trial.suggest_categorical("kind", ["a", "b"])
    trial.suggest_float("rate", 1e-5, 1e-1, log=True)
    if kind == "a":
        trial.suggest_float("a.radius", 2.0, 10.0)
    else:
        trial.suggest_int("b.towers", 1, 8)
    return branch_loss(trial.params)


def branch_loss(parameters):
    own = (
        abs(parameters["a.radius"] - 5)
        if parameters["kind"] == "a"
        else abs(parameters["b.towers"] - 3) + 0.5
    )
    return np.log10(parameters["rate"] / 1e-3) ** 2 + own


def having(history, *names):
    """Numbers of the trials that have the parameters, with the sampler's look at the study."""
    return history.having(np.sort(np.concatenate(history.split())), names).tolist()


def end_well(study, trial):
    study.tell(trial, branch_loss(trial.params) if "rate" in trial.params else loss(trial.params))


def asynchronous(study, trials, in_flight, ask=suggest, end=end_well):
    """Ask with so many in flight; the oldest ends first."""
    running = []
    for _ in range(trials):
        trial = study.ask()
        ask(trial)
        running.append(trial)
        if len(running) == in_flight:
            end(study, running.pop(0))
    return [trial.params for trial in study.get_trials(deepcopy=False)]


def end_in_all_ways(study, trial):
    """Complete, pruned at some step or at none, infeasible, or failed."""
    value = -loss(trial.params)
    if trial.number % 3 == 1:
        trial.set_constraint("memory", value / 3 + 1.0)
    if trial.number % 5 == 2:
        for step in range(trial.number % 4):
            trial.report(np.nan if trial.number % 7 == 0 else value - step, step)
        study.tell(trial, state=TrialState.PRUNED)
    elif trial.number % 11 == 3:
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, value)


def random_study(directions, trials=300):
    study = optuna.create_study(directions=directions, sampler=RandomSampler(seed=1))
    rng = np.random.RandomState(1)
    for number in range(trials):
        trial = study.ask()
        trial.suggest_float("x", 0.0, 1.0)
        if number % 4 == 1:
            trial.set_constraint("memory", rng.normal())
        if number % 5 == 2 and len(directions) == 1:
            value = round(rng.normal(), 1)
            for step in range(number % 4):
                trial.report(value, step)
            study.tell(trial, state=TrialState.PRUNED)
        elif number % 9:  # every ninth still runs; values are rounded for ties
            study.tell(trial, [round(rng.normal(), 1) for _ in directions])
    return study


@pytest.mark.filterwarnings("ignore:Argument ``group``")
@pytest.mark.parametrize(
    ("case", "in_flight"),
    # Of running trials on other branches, stock TPE also counts what they never took up.
    [("plain", 1), ("plain", 12), ("all ends", 1), ("all ends", 12), ("conditional", 1)],
)
def test_a_batch_of_one_is_stock_tpe(case, in_flight, monkeypatch):
    monkeypatch.setattr(kernels, "NARROWEST", 100.0)  # as Optuna's

    def run(sampler):
        study = optuna.create_study(
            direction="maximize" if case == "all ends" else "minimize", sampler=sampler
        )
        return asynchronous(
            study,
            60,
            in_flight,
            ask=conditional if case == "conditional" else suggest,
            end=end_in_all_ways if case == "all ends" else end_well,
        )

    stock = run(TPESampler(multivariate=True, group=True, constant_liar=True, seed=3))
    ours = run(BatchedTPESampler(batch_size=1, seed=3))
    for number, (mine, theirs) in enumerate(zip(ours, stock, strict=True)):
        assert mine.pop("kind") == theirs.pop("kind"), number
        assert mine == pytest.approx(theirs, rel=1e-6), number


@pytest.mark.parametrize(
    "directions", [["minimize"], ["maximize"], ["minimize", "maximize"], ["minimize"] * 3]
)
@pytest.mark.parametrize("trials", [3, 40, 300])
def test_trials_are_split_as_by_optuna(directions, trials):
    study = random_study(directions, trials)
    history = History(study)
    history.synchronise()
    below, above = history.split()
    known = [trial for trial in study.trials if trial.state != TrialState.FAIL]
    finished = sum(trial.state != TrialState.RUNNING for trial in known)
    gamma = default_gamma if len(directions) == 1 else default_gamma_multiobjective
    their_below, their_above = _split_trials(study, known, gamma(finished))
    assert below.tolist() == [trial.number for trial in their_below]
    assert above.tolist() == [trial.number for trial in their_above]


def test_groups_are_those_of_optuna():
    x = optuna.distributions.FloatDistribution(0.0, 1.0)
    rng = np.random.RandomState(0)
    for _ in range(50):
        ours, theirs = Groups(), _SearchSpaceGroup()
        for _ in range(6):
            names = [name for name in "abcdefg" if rng.rand() < 0.5]
            ours.add(dict.fromkeys(names, x))
            theirs.add_distributions(dict.fromkeys(names, x))
        assert Counter(frozenset(space) for space in ours.spaces) == Counter(
            frozenset(space) for space in theirs.search_spaces
        )


@pytest.mark.parametrize("kind", ["memory", "journal", "database"])
def test_history_follows_what_others_write(kind, tmp_path):
    storage = {
        "memory": InMemoryStorage,
        "journal": lambda: JournalStorage(JournalFileBackend(str(tmp_path / "log"))),
        "database": lambda: RDBStorage(
            "sqlite://", engine_kwargs={"connect_args": {"check_same_thread": False}}
        ),
    }[kind]()
    study = optuna.create_study(storage=storage, sampler=RandomSampler(seed=0))
    other = optuna.load_study(
        study_name=study.study_name, storage=storage, sampler=RandomSampler(seed=1)
    )
    history = History(study)
    running = []
    for number in range(24):
        trial = (study, other)[number % 2].ask()
        running.append(trial)
        if number % 3:
            suggest(trial)
        if number % 5 == 4:
            history.synchronise()
        if number % 4 == 3:
            trial = running.pop(0)
            parameters = suggest(trial)
            (other if number % 8 == 3 else study).tell(trial.number, loss(parameters))
    history.synchronise()
    trials = study.trials
    finished = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert history.finished == len(finished) == 6
    assert history.in_flight == 18
    rows = having(history, *NAMES)
    assert rows == [trial.number for trial in trials if len(trial.params) == 5]
    expected = [
        [trials[row].distributions[n].to_internal_repr(trials[row].params[n]) for n in NAMES]
        for row in rows
    ]
    np.testing.assert_array_equal(history.observations(np.array(rows), NAMES), expected)


def test_history_is_that_of_the_study_it_is_asked_for():
    sampler = BatchedTPESampler(n_startup_trials=2, seed=0)
    for _ in range(2):
        study = optuna.create_study(sampler=sampler)
        study.optimize(lambda trial: loss(suggest(trial)), n_trials=8)
        assert sampler._refreshed(study, -1).finished == 8


def test_a_running_trial_counts_with_its_suggestions_on_the_branch_it_takes():
    study = optuna.create_study(sampler=BatchedTPESampler(n_startup_trials=4, seed=0))
    study.optimize(conditional, n_trials=12)
    trial = study.ask()
    suggested = trial.relative_params  # suggested, and nothing stored
    history = study.sampler._refreshed(study, -1)
    history.synchronise()
    assert {"a.radius", "b.towers"} <= suggested.keys()
    assert all(trial.number in having(history, name) for name in suggested)
    conditional(trial)
    history.synchronise()
    taken = {"a": "a.radius", "b": "b.towers"}[trial.params["kind"]]
    assert trial.number in having(history, "kind", "rate", taken)
    assert sum(trial.number in having(history, name) for name in ("a.radius", "b.towers")) == 1
    study.tell(trial, state=TrialState.FAIL)
    history.synchronise()
    assert trial.number not in having(history)


def test_a_trial_that_waits_counts_as_pruned_where_it_waits():
    study, twin = (optuna.create_study(sampler=RandomSampler(seed=0)) for _ in range(2))
    study.set_user_attr(PROMOTES, True)
    history, expected = History(study), History(twin)
    for number in range(40):
        trial, other = study.ask(), twin.ask()
        history.synchronise()  # it runs first
        value = loss(suggest(trial))
        suggest(other)
        if number % 4:
            for one in (trial, other):
                one.report(value, 2)
                one.set_constraint("memory", value - 2)
            twin.tell(other, state=TrialState.PRUNED)
        else:
            study.tell(trial, value)
            twin.tell(other, value)
        history.synchronise()
        expected.synchronise()
        assert history.finished == expected.finished == number + 1
        for mine, others in zip(history.split(), expected.split(), strict=True):
            np.testing.assert_array_equal(mine, others)
    assert history.in_flight == 0
    first = having(history, *NAMES)
    trial = optuna.Trial(study, 1)
    for rung, step in enumerate((6, 18)):
        trial.set_user_attr(PASSED, rung)
        history.synchronise()
        assert (history.finished, history.in_flight) == (39, 1)
        assert 1 in history.split()[1]
        assert having(history, *NAMES) == first
        trial.report(-1.0, step)
        history.synchronise()
        assert (history.finished, history.in_flight) == (40, 0)
    trial.set_user_attr(PASSED, 2)  # on to the next rung between two looks
    trial.report(-2.0, 54)
    history.synchronise()
    assert history._last[1].tolist() == [-54.0, -2.0]
    trial.set_user_attr(PASSED, 3)
    study.tell(1, state=TrialState.FAIL)
    history.synchronise()
    assert 1 not in having(history)
    assert history.finished == 39


def test_one_fit_serves_a_batch_unless_too_much_has_happened_since():
    sampler = BatchedTPESampler(batch_size=8, seed=0)
    study = optuna.create_study(sampler=sampler)
    asynchronous(study, 60, 20)
    sampler._queue.clear()
    for left in (7, 6, 5):
        suggest(study.ask())
        assert len(sampler._queue) == left
    for number in range(41, 50):
        study.tell(number, loss(study.trials[number].params))
    suggest(study.ask())
    assert len(sampler._queue) == 7


def test_the_batch_grows_with_what_is_in_flight():
    sampler = BatchedTPESampler(seed=0)
    study = optuna.create_study(sampler=sampler)
    asynchronous(study, 330, 320)
    sampler._queue.clear()
    suggest(study.ask())
    assert len(sampler._queue) == 9  # of ten


def test_suggestions_of_a_batch_keep_apart():
    def spread(batch):
        study = optuna.create_study(sampler=BatchedTPESampler(batch_size=batch, seed=0))
        rng = np.random.RandomState(0)
        for _ in range(100):
            trial = study.ask({"x": optuna.distributions.FloatDistribution(0.0, 1.0)})
            study.tell(trial, (trial.params["x"] - 0.5) ** 2 + 1e-3 * rng.rand())
        study.sampler._queue.clear()
        asked = [study.ask() for _ in range(32)]
        points = np.sort([trial.suggest_float("x", 0.0, 1.0) for trial in asked])
        return np.diff(points).min(), np.ptp(points)

    # Liar kernels do within a batch what running trials do without one.
    alone, together = spread(1), spread(32)
    assert together[1] > 0.5 * alone[1]
    assert together[0] > 0.1 * alone[0]


def test_the_seed_decides():
    def run(seed):
        return asynchronous(
            optuna.create_study(sampler=BatchedTPESampler(batch_size=4, seed=seed)), 50, 10
        )

    assert run(7) == run(7)
    assert run(7) != run(8)


def test_it_finds_better_points_than_chance():
    def best(sampler):
        study = optuna.create_study(sampler=sampler)
        asynchronous(study, 120, 8)
        return study.best_value

    seeds = range(4)
    ours = np.mean([best(BatchedTPESampler(batch_size=2, seed=seed)) for seed in seeds])
    chance = np.mean([best(RandomSampler(seed=seed)) for seed in seeds])
    assert ours < 0.7 * chance


def test_a_branch_gets_suggestions_for_its_own_parameters():
    def off(sampler):
        study = optuna.create_study(sampler=sampler)
        study.optimize(conditional, n_trials=120)
        late = (trial.params.get("b.towers", 3) for trial in study.trials[60:])
        own = (trial.params.get("a.radius", 5.0) for trial in study.trials[60:])
        return np.mean(
            [abs(towers - 3) + abs(radius - 5) for towers, radius in zip(late, own, strict=True)]
        )

    assert off(BatchedTPESampler(batch_size=2, seed=0)) < 0.7 * off(RandomSampler(seed=0))


def test_a_long_history_is_thinned(monkeypatch):
    def late(most):
        monkeypatch.setattr(batched_tpe, "MOST_KERNELS", most)
        found = []
        for seed in range(3):
            study = optuna.create_study(sampler=BatchedTPESampler(batch_size=2, seed=seed))
            study.optimize(lambda trial: loss(suggest(trial)), n_trials=200)
            found += [trial.value for trial in study.trials[100:]]
        return np.mean(found)

    with_all = late(1000)
    assert late(40) < 1.5 * with_all
    study = optuna.create_study(sampler=RandomSampler(seed=0))
    study.optimize(lambda trial: loss(suggest(trial)), n_trials=200)
    assert with_all < 0.5 * np.mean([trial.value for trial in study.trials])


def test_constraints_keep_the_search_feasible():
    study = optuna.create_study(sampler=BatchedTPESampler(batch_size=2, seed=0))
    for _ in range(120):
        trial = study.ask()
        parameters = suggest(trial)
        trial.set_constraint("memory", parameters["width"] / 60 - 1)  # the best has 90
        study.tell(trial, loss(parameters))
    late = [trial.params["width"] <= 60 for trial in study.trials[60:]]
    assert np.mean(late) > 0.6


def test_several_objectives():
    def front(sampler):
        study = optuna.create_study(directions=["minimize", "maximize"], sampler=sampler)
        for _ in range(150):
            trial = study.ask()
            parameters = suggest(trial)
            study.tell(trial, (loss(parameters), -loss({**parameters, "width": 30})))
        return np.mean([trial.values[0] - trial.values[1] for trial in study.best_trials])

    seeds = range(4)
    ours = [front(BatchedTPESampler(batch_size=4, seed=seed)) for seed in seeds]
    assert np.mean(ours) < 0.8 * np.mean([front(RandomSampler(seed=seed)) for seed in seeds])


@pytest.mark.filterwarnings("ignore:PartialFixedSampler")
def test_enqueued_and_fixed_parameters():
    sampler = BatchedTPESampler(batch_size=3, n_startup_trials=5, seed=0)
    study = optuna.create_study(sampler=PartialFixedSampler({"layers": 4}, sampler))
    study.enqueue_trial({"width": 90, "learning_rate": 1e-3})
    study.optimize(lambda trial: loss(suggest(trial)), n_trials=30)
    assert all(trial.params["layers"] == 4 for trial in study.trials)
    assert study.trials[0].params["width"] == 90
    assert study.best_value < 1.0


def test_a_parameter_that_appears_late_is_sampled_alone():
    study = optuna.create_study(sampler=BatchedTPESampler(n_startup_trials=5, seed=0))
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=10)
    study.optimize(
        lambda trial: trial.suggest_float("x", 0, 1) + trial.suggest_float("late", 0, 1),
        n_trials=10,
    )
    assert all(0 <= trial.params["late"] <= 1 for trial in study.trials[10:])


def test_a_range_that_changes_is_kept_to():
    study = optuna.create_study(sampler=BatchedTPESampler(n_startup_trials=5, seed=0))
    study.optimize(lambda trial: trial.suggest_float("x", 0, 10), n_trials=20)
    study.optimize(lambda trial: abs(trial.suggest_float("x", 6, 8) - 7), n_trials=20)
    assert all(6 <= trial.params["x"] <= 8 for trial in study.trials[20:])


def test_threads_may_share_it():
    sampler = BatchedTPESampler(batch_size=4, seed=0)
    study = optuna.create_study(sampler=sampler)
    names = set()

    def objective(trial):
        names.add(threading.current_thread().name)
        return loss(suggest(trial))

    study.optimize(objective, n_trials=80, n_jobs=4)
    assert len(names) > 1
    assert all(trial.state == TrialState.COMPLETE for trial in study.trials)
    assert len(study.trials) == 80


def test_it_can_be_stored_and_taken_up():
    study = optuna.create_study(sampler=BatchedTPESampler(batch_size=1, seed=5))
    asynchronous(study, 30, 3)
    copy = pickle.loads(pickle.dumps(study.sampler))
    expected = suggest(study.ask())
    study.sampler = copy
    study.tell(study.trials[-1].number, state=TrialState.FAIL)
    assert suggest(study.ask()) == expected
