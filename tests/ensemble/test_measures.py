"""Measures of predictions are those of other libraries; their intervals are of structures."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from mapie.metrics.regression import regression_coverage_score, regression_mean_width_score
from scipy import stats
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from uncertainty_toolbox import metrics_scoring_rule

from hydragnn_flow.ensemble.evaluation import bootstrap
from hydragnn_flow.ensemble.evaluation import measures as module
from hydragnn_flow.ensemble.evaluation.bootstrap import compare_errors, compare_models, estimate
from hydragnn_flow.ensemble.evaluation.measures import MEASURES, measure

COVERAGES = (0.5, 0.8, 0.9, 0.95)
IN_UNITS = ("mae", "rmse", "crps")
FIELDS = ("structure", "reference", "mean", "std")


def sample_of(structure, reference, mean, std, intervals=None):
    columns = dict(zip(FIELDS, (structure, reference, mean, std), strict=True))
    for coverage, (lo, hi) in (intervals or {}).items():
        columns |= {f"lo_{100 * coverage:g}": lo, f"hi_{100 * coverage:g}": hi}
    return pd.DataFrame(columns)


def drawn(seed=0, structures=60, values=5, ties=False):
    """Predictions whose errors depend on the structure, and whose error bars are too narrow."""
    random = np.random.default_rng(seed)
    structure = np.repeat(np.arange(structures), values)
    random.shuffle(structure)
    n = len(structure)
    std = 0.1 * np.exp(random.normal(0, 0.7, structures)[structure] + random.normal(0, 0.3, n))
    if ties:  # as of a floor, without spread between members
        std = np.ceil(std * 20) / 20
    error = 1.3 * std * (random.normal(size=structures)[structure] + random.normal(size=n))
    reference = random.normal(3, 1, n)
    mean = reference + error
    if ties:
        reference, mean = np.round(reference, 1), np.round(mean, 1)
    halves = {c: stats.norm.ppf((1 + c) / 2) * std for c in COVERAGES}
    intervals = {c: (mean - half, mean + half) for c, half in halves.items()}
    return sample_of(structure, reference, mean, std, intervals)


def values(sample):
    """The measures without their intervals."""
    return {name: estimate.value for name, estimate in measure(sample).items()}


OTHERS: dict[str, Callable[[pd.DataFrame], float]] = {
    "mae": lambda s: mean_absolute_error(s["reference"], s["mean"]),
    "rmse": lambda s: root_mean_squared_error(s["reference"], s["mean"]),
    "r2": lambda s: r2_score(s["reference"], s["mean"]),
    "crps": lambda s: metrics_scoring_rule.crps_gaussian(
        *(s[name].to_numpy() for name in ("mean", "std", "reference"))
    ),
    "spearman": lambda s: stats.spearmanr(np.abs(s["mean"] - s["reference"]), s["std"]).statistic,
}


@pytest.mark.parametrize("ties", [False, True])
def test_measures_are_those_of_other_libraries(ties):
    """Of the values that are known, and R² where references are large beside their differences."""
    sample = drawn(ties=ties)
    found = values(sample)
    far = sample.assign(**{name: sample[name] - 1e8 for name in ("reference", "mean")})
    assert values(far)["r2"] == pytest.approx(found["r2"], rel=1e-5)
    gap = sample[:1].assign(reference=np.nan)
    assert values(pd.concat([sample, gap], ignore_index=True)) == pytest.approx(found)
    for name in MEASURES:
        assert found[name] == pytest.approx(OTHERS[name](sample), rel=1e-9), name
    for c in (f"{100 * c:g}" for c in COVERAGES):
        ends = sample[[f"lo_{c}", f"hi_{c}"]].to_numpy()[:, :, None]
        covered = regression_coverage_score(sample["reference"], ends)[0]
        assert found[f"coverage_{c}"] == pytest.approx(covered)
        width = regression_mean_width_score(ends)[0]
        assert found[f"width_{c}"] == pytest.approx(width)


def test_an_interval_is_that_of_copied_structures(monkeypatch):
    """To count a structure twice is to have it twice, however many draws are made at a time."""
    monkeypatch.setattr(bootstrap, "_DRAWS", 12)
    level = stats.norm.cdf(stats.t.ppf(0.025, 19) * (20 / 19) ** 0.5)
    for ties in (False, True):
        sample = drawn(structures=20, values=3, ties=ties)
        found = measure(sample, seed=7)
        assert found != measure(sample, seed=1)
        copied: dict[str, list[float]] = {name: [] for name in MEASURES}
        for row in np.random.default_rng(7).integers(20, size=(12, 20)):
            rows = np.concatenate([np.flatnonzero(sample["structure"] == k) for k in row])
            several = sample.iloc[rows]
            for name in MEASURES:
                copied[name].append(OTHERS[name](several))
        for name in MEASURES:
            lo, hi = np.quantile(copied[name], [level, 1 - level])
            assert found[name][1:] == pytest.approx((lo, hi), rel=1e-9), name
        with monkeypatch.context() as patch:
            patch.setattr(bootstrap, "_AT_ONCE", 5 * len(sample))
            for name, one in measure(sample, seed=7).items():
                assert one == pytest.approx(found[name], rel=1e-12), name


def test_intervals_hold_the_truth_over_structures(monkeypatch):
    """Were the values of one structure drawn each by itself, intervals would be far too narrow."""
    monkeypatch.setattr(bootstrap, "_DRAWS", 200)
    monkeypatch.setattr(module, "_MOST_VALUES", 2000)
    truth = values(drawn(99, structures=20_000, values=6))
    names = ("mae", "crps", "spearman", "coverage_50")
    held = dict.fromkeys((*names, "apart"), 0)
    repeats = 60
    for seed in range(repeats):
        sample = drawn(seed, structures=40, values=6)
        found = measure(sample)
        for name in names:
            held[name] += found[name].lo <= truth[name] <= found[name].hi
        wrong = measure(sample.assign(structure=np.arange(len(sample))))["mae"]
        held["apart"] += wrong.lo <= truth["mae"] <= wrong.hi
    assert held.pop("apart") < 0.8 * repeats
    assert min(held.values()) >= 0.83 * repeats, held


def test_few_structures_have_wide_intervals_or_none():
    """Plain percentiles of six structures hold a mean in 84 % of cases, these in 90 %."""
    for n in (1, 4):
        few = measure(drawn(structures=n))
        assert all(np.isnan(end) for one in few.values() for end in one[1:])
    random = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        sample = random.normal(size=6)
        draws = sample[random.integers(6, size=(500, 6))].mean(axis=1)
        _, lo, hi = estimate(sample.mean(), draws, 6)
        held += lo <= 0 <= hi
    assert held >= 0.88 * 300


@pytest.mark.parametrize(("structures", "per_structure", "part"), [(400, 5, 2), (30, 160, 4)])
def test_a_large_sample_has_the_interval_of_a_part_of_it(
    monkeypatch, structures, per_structure, part
):
    """Of few structures none may be left out, however many values they have."""
    sample = drawn(structures=structures, values=per_structure)
    monkeypatch.setattr(bootstrap, "_DRAWS", 400)
    whole = measure(sample)
    monkeypatch.setattr(module, "_MOST_VALUES", len(sample) // part)
    some = measure(sample)
    for name in ("mae", "rmse", "crps", "spearman", "coverage_90"):
        assert some[name].value == whole[name].value
        widths = [found[name].hi - found[name].lo for found in (whole, some)]
        assert widths[0] != widths[1] == pytest.approx(widths[0], rel=0.3), name


def test_where_all_draws_agree_the_rule_of_three_bounds():
    n = 30
    reference = np.linspace(0, 1, n)
    ends = (reference - 1, reference + 1)
    sample = sample_of(np.arange(n), reference, reference + 0.01, np.ones(n), {0.9: ends})
    assert measure(sample)["coverage_90"] == pytest.approx((1.0, 0.9, 1.0))
    outside = sample.assign(lo_90=ends[1])
    assert measure(outside)["coverage_90"] == pytest.approx((0.0, 0.0, 0.1))


def one(**changed):
    sample = drawn(structures=6, values=4)
    return sample.assign(**changed)


N = 24
NAN = np.full(N, np.nan)
ALL = {*MEASURES, *(f"{of}_{100 * c:g}" for c in COVERAGES for of in ("coverage", "width"))}
DEGENERATE: dict[str, tuple[pd.DataFrame, set[str]]] = {
    "one structure": (one(structure=np.zeros(N, np.int64)), set()),
    "no std": (one(std=np.zeros(N)), {"spearman"}),
    "one std": (one(std=np.ones(N)), {"spearman"}),
    "exact": (one(mean=one()["reference"]), {"spearman"}),
    "constant reference": (one(reference=np.full(N, 0.1)), {"r2"}),
    "no reference": (one(reference=NAN), ALL),
    "no prediction": (one(mean=NAN), ALL),
    "nothing": (one()[np.zeros(N, bool)], ALL),
    "no interval": (one(lo_90=NAN, hi_90=NAN), {"width_90"}),
    "infinite": (one(lo_90=-np.inf, hi_90=np.inf), {"width_90"}),
    "beyond squares": (one(mean=np.full(N, 1e200)), {"rmse", "r2", "spearman"}),
    "one value": (one()[np.arange(N) == 3], {"r2", "spearman"}),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", DEGENERATE)
def test_what_cannot_be_measured_is_nan_and_no_warning(name):
    sample, undefined = DEGENERATE[name]
    found = measure(sample)
    assert {name for name, estimate in found.items() if np.isnan(estimate.value)} == undefined
    assert not any(np.isinf(number) for estimate in found.values() for number in estimate)
    if name == "no std":
        assert found["crps"].value == pytest.approx(found["mae"].value)


def errors_of_three(n):
    """Errors of three models, and the structures they are of: 1 to 6 values each."""
    rng = np.random.default_rng(0)
    structure = np.repeat(np.arange(n), rng.integers(1, 7, n))
    common = rng.lognormal(0, 1, n)[structure]
    return np.abs(common * rng.normal(1, 0.1, (3, len(structure)))), structure


def test_what_two_models_share_does_not_widen_the_interval_of_their_difference():
    errors, structure = errors_of_three(40)
    mae, change = compare_errors(errors, structure)
    for of, found in zip(errors, mae, strict=True):
        sample = sample_of(structure, np.zeros(len(of)), of, np.ones(len(of)))
        assert found == pytest.approx(measure(sample)["mae"], rel=1e-9)
    for value, lo, hi in change:
        assert lo <= value <= hi
        assert hi - lo < 0.3 * (mae[0].hi - mae[0].lo) / mae[0].value
    _, twice = compare_errors(np.stack([errors[0], 2 * errors[0]]), structure)
    assert twice[0] == pytest.approx((-0.5, -0.5, -0.5))


def test_the_interval_holds_the_true_change_as_often_as_it_says():
    held = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        errors = np.stack([0.8 * rng.exponential(size=50), rng.exponential(size=50)])
        _, (change,) = compare_errors(errors, np.arange(50), seed)
        held += change.lo <= -0.2 <= change.hi
    assert held >= 51  # of 57 that are expected; fewer with probability 0.006


def test_few_structures_and_a_perfect_member_have_no_intervals():
    mae, change = compare_errors(np.array([[1.0, 3.0], [4.0, 4.0]]), np.array([7, 8]))
    assert [found.value for found in (*mae, *change)] == [2.0, 4.0, -0.5]
    assert all(np.isnan(found.lo) for found in (*mae, *change))
    _, (perfect,) = compare_errors(np.array([[1.0, 3.0], [0.0, 0.0]]), np.array([0, 1]))
    assert np.isnan(perfect.value)


def test_sums_are_judged_per_atom_and_the_unknown_is_left_out(alloy_store):
    store, split = alloy_store, alloy_store["testset"]
    atoms = split.n_atoms
    truth = {"energy": split.target("energy"), "forces": split.target("forces")}
    truth["energy"] = np.where(np.arange(len(atoms))[:, None] == 0, np.nan, truth["energy"])
    away = {"ensemble": 0.1, "0": 0.2}
    models = {who: {name: of + by for name, of in truth.items()} for who, by in away.items()}
    bars = {
        name: SimpleNamespace(mean=of, lo=of - 0.05, hi=of + 0.05, aleatoric_std=0 * of + 0.2)
        for name, of in models["ensemble"].items()
    }
    bars["forces"].lo[:, 0] -= 0.1
    found = compare_models(models, truth, atoms, store.manifest, bars)
    assert [of["coverage"] for of in found.values()] == [0.0, pytest.approx(1 / 3)]
    assert found["forces"]["aleatoric_std"] == pytest.approx(0.2)
    assert list(found) == ["energy per atom", "forces"]
    energy = found["energy per atom"]
    assert energy["unit"] == "meV/atom" and energy["structures"] == len(atoms) - 1
    assert energy["mae"]["ensemble"]["value"] == pytest.approx(np.mean(100 / atoms[1:]))
    assert energy["change"]["0"]["value"] == pytest.approx(-0.5)
    each = truth["energy"][1:, 0] / atoms[1:]
    assert energy["spread"] == pytest.approx(1000 * np.std(each))
    some = compare_models(models, truth, atoms, store.manifest, bars, np.arange(len(atoms)) < 3)
    assert [of["structures"] for of in some.values()] == [2, 3]
