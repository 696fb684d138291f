"""The space as a cube, the Gaussian process on it, and what is proposed."""

import math

import numpy as np
import optuna
import pytest
from scipy.optimize import approx_fprime
from scipy.stats import yeojohnson

from hydragnn_flow.config import Parameter
from hydragnn_flow.search.records import active, suggest
from hydragnn_flow.search.samplers.encoding import KnownTrial, UnitCube
from hydragnn_flow.search.samplers.gaussian_process import GaussianProcess, Rows
from hydragnn_flow.search.samplers.proposer import (
    Proposer,
    _added,
    _front,
    _power,
    _subset,
    log_gain,
)

SPACE = {
    "kind": Parameter(choices=("one", "two", True)),
    "rate": Parameter(float=(1e-5, 1e-1), log=True),
    "width": Parameter(int=(8, 512), log=True),
    "depth": Parameter(int=(1, 9), step=2),
    "share": Parameter(float=(0, 1), step=0.25, when={"kind": ("one", True)}),
    "deep": Parameter(float=(-1, 1), when={"depth": (7, 9)}),
    "inner": Parameter(choices=("a", "b"), when={"share": (0.5, 0.75)}),
}


def random_trials(count, space=SPACE):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    return [suggest(study.ask(), space) for _ in range(count)]


def test_any_point_snaps_to_a_trial_that_can_be():
    cube = UnitCube(SPACE)
    snapped = cube.snap(np.random.default_rng(0).random((300, len(cube))))
    trials = cube.decode(snapped)
    for trial in trials:
        assert list(trial) == active(SPACE, trial)
        assert all(SPACE[name].contains(value) for name, value in trial.items())
    np.testing.assert_allclose(cube.encode(trials), snapped, atol=1e-9)
    assert {trial.get("share") for trial in trials} == {None, 0.0, 0.25, 0.5, 0.75, 1.0}


def test_every_value_of_an_integer_owns_as_much_of_the_cube():
    cube = UnitCube({"depth": Parameter(int=(1, 4))})
    snapped = cube.snap((np.arange(100)[:, None] + 0.5) / 100)
    values = [trial["depth"] for trial in cube.decode(snapped)]
    assert np.bincount(values)[1:].tolist() == [25, 25, 25, 25]


def process_and_data():
    random = np.random.default_rng(2)
    points = random.random((40, 3))
    values = np.sin(6 * points[:, 0]) + (points[:, 1] - 0.5) ** 2
    return GaussianProcess(np.array([0, 1, 2])), points, (values - values.mean()) / values.std()


def whole(points, values):
    """Values at the only rung."""
    return Rows(points, values, np.zeros(len(values), int), np.arange(len(values)))


def test_distances_of_features():
    """Both ends of a number, conditional or not, and any two values of a choice: 1.

    What does not exist is as far from all values: other branches tell nothing of its middle.
    """
    cube = UnitCube(SPACE)
    rest = {"rate": 1e-3, "width": 64}
    trials = [
        {"kind": "one", **rest, "depth": 7, "share": 0.0, "deep": -1.0},
        {"kind": "one", **rest, "depth": 7, "share": 0.0, "deep": 1.0},
        {"kind": True, **rest, "depth": 7, "share": 0.0, "deep": -1.0},
        {"kind": "one", **rest, "depth": 7, "share": 0.25, "deep": 0.3},
        {"kind": "one", **rest, "depth": 7, "share": 0.25, "deep": -0.3},
        {"kind": "one", **rest, "depth": 7, "share": 0.5, "deep": -0.3, "inner": "a"},
        {"kind": "one", **rest, "depth": 7, "share": 0.5, "deep": -0.3, "inner": "b"},
        *({"kind": "two", **rest, "depth": 7, "deep": deep} for deep in (-1.0, 0.0, 0.3)),
        {"kind": "two", **rest, "depth": 7},
    ]
    features = cube.features(cube.encode(trials))
    assert features.shape[1] == len(cube.parameters)
    distances = np.linalg.norm(features[:, None] - features, axis=2)
    assert distances[0, 1] == pytest.approx(1)
    assert distances[0, 2] == pytest.approx(1)
    assert distances[5, 6] == pytest.approx(1)
    assert distances[3, 4] == pytest.approx(0.3, rel=0.15)
    np.testing.assert_allclose(distances[7:10, 10], np.sqrt(0.5))


@pytest.mark.parametrize("rungs", [1, 3])
def test_the_gradient_of_the_posterior_is_its_slope(rungs):
    _, points, values = process_and_data()
    process = GaussianProcess(np.array([0, 1, 1]), rungs)
    rows = Rows(points, values, np.arange(40) % rungs, np.arange(40) // rungs)
    logs = process._expected + 0.3 * np.random.default_rng(1).standard_normal(len(process._logs))
    _, gradient = process._loss(logs, rows)
    slope = approx_fprime(logs, lambda x: process._loss(x, rows)[0], 1e-6)
    np.testing.assert_allclose(gradient, slope, rtol=1e-3, atol=1e-3)


def test_the_process_learns_a_function():
    process, points, values = process_and_data()
    process.fit(whole(points[:30], values[:30]))
    process.condition(whole(points[:30], values[:30]), points[:0])
    mean, deviation = process.predict(points[30:])
    assert np.abs(mean - values[30:]).mean() < 0.15
    assert np.all(np.abs(mean - values[30:]) < 4 * deviation + 0.02)


def test_a_pending_point_takes_away_variance_and_leaves_the_mean():
    process, points, values = process_and_data()
    process.condition(whole(points[:20], values[:20]), points[:0])
    mean, deviation = process.predict(points[20:])
    process.believe(points[20])
    believed = process.predict(points[20:])
    np.testing.assert_allclose(believed[0], mean, atol=1e-9)
    assert believed[1][0] < 0.9 * deviation[0]
    assert np.all(believed[1] <= deviation + 1e-9)
    process.condition(whole(points[:20], values[:20]), points[20:21])
    np.testing.assert_allclose(process.predict(points[20:]), believed, atol=1e-7)


def trained(misleading, count=60):
    """Values at two rungs; every third trial is trained to its end."""
    random = np.random.default_rng(3)
    points = random.random((count, 2))
    end = np.sin(5 * points[:, 0]) + 0.02 * random.standard_normal(count)
    first = (points[:, 1] if misleading else 0.6 * end) + 3.0
    known = np.flatnonzero(np.arange(count) % 3 == 0)
    trials = np.append(np.arange(count), known)
    rungs = np.append(np.zeros(count, int), np.ones(len(known), int))
    rows = Rows(points[trials], np.append(first, end[known]), rungs, trials)
    return points, end, rows


def error_at_the_end(rows, points, end):
    process = GaussianProcess(np.array([0, 1]), 2)
    process.fit(rows)
    process.condition(rows, points[:0])
    rest = np.setdiff1d(np.arange(len(end)), rows.trials[rows.rungs == 1])
    mean, deviation = process.predict(points[rest], rest)
    assert np.abs((mean - end[rest]) / deviation).mean() < 2
    return np.sqrt(np.mean((mean - end[rest]) ** 2))


def test_a_rung_teaches_what_it_has_in_common_with_the_end():
    """And a misleading one does little harm."""
    for misleading in (False, True):
        points, end, rows = trained(misleading)
        alone = Rows(*(column[rows.rungs == 1] for column in rows))
        ratio = error_at_the_end(rows, points, end) / error_at_the_end(alone, points, end)
        assert ratio < (1.5 if misleading else 0.8)


def halfway(rates, losses, epochs=(1, 9)):
    """A search of one number: five trained trials, and others at the first rung."""
    proposer = Proposer({"x": Parameter(float=(0, 1))}, 1, epochs)
    ended = [
        KnownTrial({"x": x}, [(x - 0.3) ** 2], [(0, 1 + (x - 0.3) ** 2)])
        for x in (0.05, 0.3, 0.5, 0.75, 1.0)
    ]
    rest = [
        KnownTrial({"x": x}, [math.nan], [(0, loss)]) for x, loss in zip(rates, losses, strict=True)
    ]
    return proposer, ended + rest


def test_a_trial_goes_on_while_its_epochs_gain_more_than_new_ones():
    proposer, known = halfway([0.9, 0.28], [1.36, 1.0])
    assert not proposer.continues(known, [], 5, 1, seed=0)
    assert proposer.continues(known, [], 5, 6, seed=0), "fewer are complete than are wanted"
    proposer, known = halfway([0.25], [0.2])
    assert proposer.continues(known, [], 5, 1, seed=0), "far better than any at its rung"


def test_proposals_beat_chance_in_a_conditional_space():
    def loss(trial):
        own = (trial["share"] - 0.5) ** 2 if trial["kind"] == "one" else 0.5
        return own + 0.1 * (math.log10(trial["rate"]) + 3) ** 2 + 0.02 * abs(trial["depth"] - 5)

    finished = [KnownTrial(trial, [loss(trial)]) for trial in random_trials(20)]
    proposer = Proposer(SPACE)
    for seed in range(30):
        for trial in proposer.propose(finished, [], 1, seed):
            assert list(trial) == active(SPACE, trial)
            finished.append(KnownTrial(trial, [loss(trial)]))
    chance = min(loss(trial) for trial in random_trials(50))
    assert min(trial.numbers[0] for trial in finished) < 0.1 * chance


def test_branches_take_turns_however_poor_they_look():
    space = {
        "kind": Parameter(choices=("good", "poor")),
        "sort": Parameter(choices=("p", "q"), when={"kind": ("good",)}),
        "x": Parameter(float=(0, 1)),
        "own": Parameter(float=(0, 1), when={"sort": ("q",)}),
    }
    cube = UnitCube(space)
    names = [list(space)[branch.column] for branch in cube.branches()]
    assert names == ["kind", "kind", "sort", "sort"]
    finished = [
        KnownTrial(trial, [{"good": 0.0, "poor": 9.0}[trial["kind"]] + 0.1 * trial["x"]])
        for trial in random_trials(40, space)
    ]
    # With as many trials before each time: these end, and are asked for, in groups.
    proposer = Proposer(space)
    proposals = [t for seed in range(8) for t in proposer.propose(finished, [], 2, seed)]
    assert all(list(trial) == active(space, trial) for trial in proposals)
    assert [trial["kind"] for trial in proposals].count("poor") == 1
    assert [proposals[0]["kind"], proposals[4]["kind"]] == ["good", "poor"]
    assert [proposals[8]["sort"], proposals[12]["sort"]] == ["p", "q"]


def test_running_trials_spread_what_is_proposed():
    """The same point again would say nothing new, though the mean is least there."""
    space = {"x": Parameter(float=(0, 1))}
    finished = [KnownTrial({"x": x}, [(x - 0.6) ** 2]) for x in np.linspace(0, 1, 6)]
    found = [trial["x"] for trial in Proposer(space).propose(finished, [], 6, seed=0)]
    assert np.diff(np.sort(found)).min() > 0.002


def test_nothing_is_tried_twice_while_there_is_something_new():
    space = {"a": Parameter(choices=(1, 2, 3)), "b": Parameter(int=(1, 4))}
    trials = [{"a": a, "b": b} for a in (1, 2, 3) for b in (1, 2, 3, 4)]
    finished = [KnownTrial(trials[0], [1.0]), KnownTrial(trials[5], [0.1])]
    proposals = Proposer(space).propose(finished, trials[1:4], 8, seed=0)
    seen = [trials[0], trials[5], *trials[1:4], *proposals[:7]]
    assert all(seen.count(trial) == 1 for trial in trials)
    assert proposals[7] in trials, "all were tried"


@pytest.mark.parametrize("losses", [[0.3], [0.3] * 12, [1e-9, *[1e30] * 9], [-1e30, *range(11)]])
@pytest.mark.parametrize("first", [[], [0.9], [1e12]])
def test_odd_losses_do_no_harm(losses, first):
    """Also where all ends are equal, and rungs are far from them."""
    proposer = Proposer(SPACE, 1, (1, 3, 9))
    known = [
        KnownTrial(trial, [loss], [(0, value) for value in first])
        for trial, loss in zip(random_trials(len(losses)), losses, strict=True)
    ]
    known.append(KnownTrial(random_trials(20)[-1], [math.nan], [(0, 0.5)]))
    for trial in proposer.propose(known, random_trials(3), 2, seed=0):
        assert list(trial) == active(SPACE, trial)
    assert proposer.continues(known, [], len(losses), 1, seed=0) in (True, False)


def test_trials_are_left_out_whole():
    rows = Rows(
        np.zeros((60, 1)), np.arange(60.0)[::-1], np.arange(60) % 3, np.repeat(np.arange(20), 3)
    )
    kept = _subset(rows, rows.values, 30)
    assert 28 <= len(kept.values) <= 30
    assert (np.bincount(kept.trials)[np.unique(kept.trials)] == 3).all()
    assert {15, 16, 17, 18, 19} <= set(kept.trials)


def test_the_gain_is_the_mean_of_what_is_gained_and_its_logarithm_goes_on():
    drawn = np.random.default_rng(0).standard_normal(200_000)
    for z in (-1.5, -1.0, 0.0, 2.0):
        mean = np.maximum(z - drawn, 0).mean()
        assert np.exp(log_gain(np.array([z])))[0] == pytest.approx(mean, rel=0.03)
    far = log_gain(np.array([-1e5, -100.0, -10.0, -1.0001, -0.9999, 10.0, 100.0]))
    assert np.isfinite(far).all() and (np.diff(far) > 0).all()
    assert far[1] == pytest.approx(-5000 - np.log(np.sqrt(2 * np.pi) * 1e4), abs=1e-3)


@pytest.mark.parametrize("objectives", [1, 2, 3])
def test_the_volume_that_a_point_adds_is_that_of_many_draws(objectives):
    random = np.random.default_rng(objectives)
    front = _front(random.normal(size=(20, objectives)))
    corner = np.full(objectives, 1.5)
    mean, deviation = random.normal(size=(4, objectives)) - 1, np.full((4, objectives), 0.5)
    box = random.uniform(-4, corner, size=(20_000, objectives))
    free = ~(front <= box[:, None]).all(axis=2).any(axis=1)
    drawn = mean[:, None] + deviation[:, None] * random.normal(size=(4, 400, objectives))
    added = [(free & (one <= box[:, None]).all(axis=2).T).mean() for one in drawn]
    expected = np.array(added) * 5.5**objectives
    found = _added(front, corner, mean, deviation)
    np.testing.assert_allclose(found, expected, rtol=0.1, atol=0.05)


def test_both_ends_of_a_front_are_proposed():
    space = {"x": Parameter(float=(0, 1)), "y": Parameter(float=(0, 1))}
    proposer, trials = Proposer(space, 2), []
    for number in range(40):
        start = {"x": 0.3 + 0.4 * (number * 0.38 % 1), "y": number * 0.62 % 1}
        point = start if number < 12 else proposer.propose(trials, [], 1, number)[0]
        error, size = point["x"] + point["y"], 1 - point["x"]
        trials.append(KnownTrial(point, [error, size], []))
    errors, sizes = np.array([trial.numbers for trial in trials]).T
    assert errors.min() < 0.05
    assert sizes.min() < 0.05
    assert errors[sizes < 0.2].min() < 1.0  # of these, too, the one with the smaller error


def test_losses_are_made_normal_by_the_power_that_scipy_finds():
    drawn = np.random.default_rng(0).standard_normal(60)
    for losses in (drawn, drawn**2 - 1, np.exp(2 * drawn), np.append(drawn, 40.0), 0 * drawn):
        assert _power(losses) == pytest.approx(yeojohnson(losses)[1], abs=1e-6)


def test_a_branch_with_nothing_left_to_gain_is_left():
    """Its best trials are known; the others of it are still better than those of another branch."""
    space = {
        "kind": Parameter(choices=("tried", "rough")),
        "step": Parameter(int=(0, 60), when={"kind": ("tried",)}),
        "x": Parameter(float=(0, 1), when={"kind": ("rough",)}),
    }
    tried = [KnownTrial({"kind": "tried", "step": i}, [1 + 0.01 * i]) for i in range(0, 60, 3)]
    known = (0.02, 0.1, 0.2, 0.3, 0.4, 0.7, 0.8, 0.97)
    rough = [KnownTrial({"kind": "rough", "x": x}, [2 + math.sin(9 * x)]) for x in known]
    proposals = Proposer(space).propose(tried + rough, [], 4, 0)
    assert [trial["kind"] for trial in proposals[1:]] == ["rough"] * 3


def test_turns_of_a_branch_hardly_tried_are_quasi_random():
    """Not in its corners, of which the process knows least."""
    space = {
        "kind": Parameter(choices=("good", "new")),
        **{f"x.{i}": Parameter(float=(0, 1), when={"kind": ("new",)}) for i in range(6)},
    }
    middle = {f"x.{i}": 0.5 for i in range(6)}
    finished = [
        KnownTrial({"kind": "good"}, [0.0]),
        KnownTrial({"kind": "new", **middle}, [1.0]),
    ]
    # The fifth proposal is the new branch's turn.
    turns = [Proposer(space).propose(finished, [], 5, seed)[4] for seed in range(4)]
    units = np.array([[trial[f"x.{i}"] for i in range(6)] for trial in turns])
    assert np.mean((units > 0.05) & (units < 0.95)) > 0.8
