"""Batches of suggestions that a user of Optuna may take for TPE's."""

import pickle
import threading

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler, TPESampler
from optuna.samplers._tpe.parzen_estimator import _ParzenEstimator
from optuna.trial import TrialState

from hydragnn_flow.search.samplers import batched_tpe
from hydragnn_flow.search.samplers.batched_tpe import BatchedTPESampler


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


@pytest.mark.filterwarnings("ignore:Argument ``group``")
@pytest.mark.parametrize(
    ("case", "in_flight"),
    [("all ends", 1), ("all ends", 12), ("conditional", 1)],
)
def test_a_batch_of_one_is_stock_tpe(case, in_flight, monkeypatch):
    monkeypatch.setattr(batched_tpe, "NARROWEST", 100.0)  # as Optuna's

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


SPACE = {
    "wide": IntDistribution(1, 3000, log=True),
    "kind": CategoricalDistribution(["a", "b", "c"]),
    "layers": IntDistribution(1, 6),
    "rate": FloatDistribution(1e-5, 1e-1, log=True),
    "share": FloatDistribution(0.0, 1.0),
}
PARZEN = TPESampler()._parzen_estimator_parameters


def test_densities_are_those_of_optuna_also_far_from_all_kernels(monkeypatch):
    monkeypatch.setattr(batched_tpe, "NARROWEST", 1e9)  # none but Optuna's own least width
    rng = np.random.default_rng(0)
    seen = {name: rng.integers(0, 3, 40).astype(float) for name in SPACE}
    seen |= {"wide": rng.integers(1, 3001, 40).astype(float), "rate": 10 ** rng.uniform(-5, 1, 40)}
    seen |= {"layers": np.ones(40), "share": rng.normal(size=40)}  # also outside of the range
    stock, ours = (of(seen, SPACE, PARZEN) for of in (_ParzenEstimator, batched_tpe.Density))
    points, mine = (of.sample(np.random.RandomState(0), 500) for of in (stock, ours))
    for name, drawn in points.items():
        np.testing.assert_allclose(mine[name], drawn, rtol=1e-6)
    points["share"][:20], points["rate"][:20] = 1.0, 1e-5
    np.testing.assert_allclose(ours.log_pdf(points), stock.log_pdf(points), rtol=1e-9)


@pytest.mark.parametrize("names", [[*SPACE], ["kind"], ["rate", "share"]])
def test_a_liar_is_half_a_narrow_density_around_a_suggestion(names):
    class Narrow(batched_tpe.Density):
        @staticmethod
        def _widths(kernels):
            width = kernels.adapted_high - kernels.adapted_low
            return np.array([width / batched_tpe.NARROWEST, width])

    space = {name: SPACE[name] for name in names}
    prior = batched_tpe.Density({name: np.empty(0) for name in names}, space, PARZEN)
    points = prior.sample(np.random.RandomState(0), 300)
    liars, before = batched_tpe.Liars(points, prior.kernels), prior.log_pdf(points)
    for place in (3, 40):
        one = {name: x[place : place + 1] for name, x in points.items()}
        found = np.logaddexp(liars.log_density(slice(0, 300), [place]), before) - np.log(2)
        np.testing.assert_allclose(found, Narrow(one, space, PARZEN).log_pdf(points), rtol=1e-9)
    each = [liars.log_density(slice(0, 300), [place]) for place in (3, 40)]
    both = liars.log_density(slice(0, 300), [3, 40])
    np.testing.assert_allclose(np.logaddexp(*each), both, rtol=1e-9)


def test_a_sampler_may_serve_one_study_after_the_other():
    sampler = BatchedTPESampler(n_startup_trials=2, seed=0)
    for _ in range(2):
        study = optuna.create_study(sampler=sampler)
        study.optimize(lambda trial: loss(suggest(trial)), n_trials=8)
        assert len(sampler._trials) == 7


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
    assert len(sampler._queue) == 8  # of nine


def test_suggestions_of_a_batch_keep_apart():
    def spread(batch):
        study = optuna.create_study(sampler=BatchedTPESampler(batch_size=batch, seed=0))
        rng = np.random.RandomState(0)
        for _ in range(100):
            trial = study.ask({"x": optuna.distributions.FloatDistribution(0.0, 1.0)})
            study.tell(trial, (trial.params["x"] - 0.5) ** 2 + 1e-3 * rng.rand())
        study.sampler._queue.clear()
        points = np.sort([study.ask().suggest_float("x", 0.0, 1.0) for _ in range(32)])
        return np.diff(points).min(), np.ptp(points)

    # Liar kernels do within a batch what running trials do without one.
    alone, together = spread(1), spread(32)
    assert together[1] > 0.4 * alone[1]
    assert together[0] > 0.1 * alone[0]


def test_a_suggestion_of_a_large_batch_takes_no_more_work(monkeypatch):
    """Tens of thousands of trials in flight have batches of thousands."""
    work = [0, 0]  # fits of densities, and points at which they were evaluated

    def counted(density, points):
        work[0] += 1
        work[1] += len(points["x"])
        return log_pdf(density, points)

    log_pdf = batched_tpe.Density.log_pdf
    monkeypatch.setattr(batched_tpe.Density, "log_pdf", counted)
    of_one = []
    for batch in (150, 600):
        study = optuna.create_study(sampler=BatchedTPESampler(batch_size=batch, seed=0))
        for _ in range(20):
            trial = study.ask()
            study.tell(trial, trial.suggest_float("x", 0.0, 1.0))
        work[:] = [0, 0]
        study.sampler._queue.clear()
        study.ask().suggest_float("x", 0.0, 1.0)
        of_one.append(np.array(work) / batch)
    assert (of_one[1] < 1.3 * of_one[0]).all()
    assert of_one[1][0] < 1.1, "kernels are normalised for each"


def test_better_points_are_found_than_by_chance_though_a_long_history_is_thinned(monkeypatch):
    monkeypatch.setattr(batched_tpe, "MOST_KERNELS", 40)
    means = []
    for sampler in (BatchedTPESampler(batch_size=2, seed=0), RandomSampler(seed=0)):
        study = optuna.create_study(sampler=sampler)
        study.optimize(lambda trial: loss(suggest(trial)), n_trials=150)
        means.append(np.mean([trial.value for trial in study.trials[100:]]))
    assert means[0] < 0.5 * means[1]


def test_several_objectives_of_trials_that_rungs_stop(monkeypatch):
    """Trials that stopped were measured for less long and count as not good."""
    asked, draw = [], BatchedTPESampler._draw

    def noted(self, study, space, good, rest):
        asked.append([[trial.state for trial in trials] for trials in (good, rest)])
        return draw(self, study, space, good, rest)

    monkeypatch.setattr(BatchedTPESampler, "_draw", noted)
    sampler = BatchedTPESampler(n_startup_trials=5, seed=0)
    study = optuna.create_study(directions=["minimize"] * 2, sampler=sampler)
    for number in range(40):
        trial = study.ask()
        parameters = suggest(trial)
        if number % 3:
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, [loss(parameters)] * 2)
    good, rest = asked[-1]
    assert set(good) == {TrialState.COMPLETE}
    assert rest.count(TrialState.PRUNED) == 26 and rest.count(TrialState.RUNNING) == 0


def test_threads_may_share_it():
    sampler = BatchedTPESampler(batch_size=4, seed=0)
    study = optuna.create_study(sampler=sampler)
    names = set()

    def objective(trial):
        names.add(threading.current_thread().name)
        return loss(suggest(trial))

    study.optimize(objective, n_trials=80, n_jobs=4)
    assert len(names) > 1
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 80


def test_it_can_be_stored_and_taken_up():
    study = optuna.create_study(sampler=BatchedTPESampler(batch_size=1, seed=5))
    asynchronous(study, 30, 3)
    copy = pickle.loads(pickle.dumps(study.sampler))
    expected = suggest(study.ask())
    study.sampler = copy
    study.tell(study.trials[-1].number, state=TrialState.FAIL)
    assert suggest(study.ask()) == expected
