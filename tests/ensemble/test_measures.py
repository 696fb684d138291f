"""Measures of predictions are those of other libraries, and of their definitions."""

import dataclasses
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mapie.metrics.regression import regression_coverage_score, regression_mean_width_score
from scipy import integrate, stats
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from uncertainty_toolbox import metrics_calibration, metrics_scoring_rule

from hydragnn_flow.ensemble import bootstrap
from hydragnn_flow.ensemble.bootstrap import MEASURES, Sample, interval, interval_names, measure
from hydragnn_flow.ensemble.measures import coverage_needed, gaussian_crps

COVERAGES = (0.5, 0.8, 0.9, 0.95)
IN_UNITS = ("mae", "rmse", "crps", "sharpness", "retention", *(f"width_{v}" for v in (50, 90)))


def drawn(seed=0, structures=60, values=5, ties=False):
    """Predictions whose errors depend on the structure, and whose error bars are too narrow."""
    random = np.random.default_rng(seed)
    structure = np.repeat(np.arange(structures), values)
    random.shuffle(structure)
    n = len(structure)
    std = 0.1 * np.exp(random.normal(0, 0.7, structures)[structure] + random.normal(0, 0.3, n))
    if ties:
        std = np.ceil(std * 20) / 20
    error = 1.3 * std * (random.normal(size=structures)[structure] + random.normal(size=n))
    reference = random.normal(3, 1, n)
    mean = reference + error
    if ties:
        reference, mean = np.round(reference, 1), np.round(mean, 1)
    halves = {c: stats.norm.ppf((1 + c) / 2) * std for c in COVERAGES}
    intervals = {c: (mean - half, mean + half) for c, half in halves.items()}
    return Sample(structure, reference, mean, std, intervals)


def values(sample):
    """The measures without their intervals."""
    return {name: estimate.value for name, estimate in measure(sample).items()}


def crps_by_integration(sample):
    """Mean integral of the squared difference of both distribution functions."""

    def score(reference, mean, std):
        below = integrate.quad(lambda x: stats.norm.cdf(x, mean, std) ** 2, -np.inf, reference)
        above = integrate.quad(lambda x: stats.norm.sf(x, mean, std) ** 2, reference, np.inf)
        return float(below[0] + above[0])

    rows = zip(sample.reference, sample.mean, sample.std, strict=True)
    return float(np.mean([score(*row) for row in rows]))


def ence_by_definition(sample):
    """Levi et al.: equally filled bins of standard deviations, one after the other."""
    order = np.argsort(sample.std)
    bins = np.array_split(order, min(len(order) // 10, 10))
    error = sample.mean - sample.reference
    found = []
    for which in bins:
        rmv = np.sqrt(np.mean(sample.std[which] ** 2))
        found.append(abs(rmv - np.sqrt(np.mean(error[which] ** 2))) / rmv)
    return float(np.mean(found))


def retention_by_definition(sample):
    """Mean absolute error of the k least uncertain values, averaged over k."""
    error = np.abs(sample.mean - sample.reference)[np.argsort(sample.std)]
    return float(np.mean([error[:k].mean() for k in range(1, len(error) + 1)]))


OTHERS: dict[str, Callable[[Sample], float]] = {
    "mae": lambda s: mean_absolute_error(s.reference, s.mean),
    "rmse": lambda s: root_mean_squared_error(s.reference, s.mean),
    "r2": lambda s: r2_score(s.reference, s.mean),
    "nll": lambda s: metrics_scoring_rule.nll_gaussian(s.mean, s.std, s.reference),
    "crps": lambda s: metrics_scoring_rule.crps_gaussian(s.mean, s.std, s.reference),
    "ence": ence_by_definition,
    "miscalibration_area": lambda s: metrics_calibration.miscalibration_area(
        s.mean, s.std, s.reference, num_bins=101, vectorized=True
    ),
    "sharpness": lambda s: metrics_calibration.sharpness(s.std),
    "spearman": lambda s: stats.spearmanr(np.abs(s.mean - s.reference), s.std).statistic,
    "retention": retention_by_definition,
}


@pytest.mark.parametrize("name", MEASURES)
def test_a_measure_is_that_of_another_library(name):
    for seed in range(3):
        sample = drawn(seed)
        expected = OTHERS[name](sample)
        assert values(sample)[name] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_intervals_are_judged_as_by_another_library():
    sample = drawn()
    found = values(sample)
    for c, (lo, hi) in sample.intervals.items():
        ends = np.stack([lo, hi], axis=1)[:, :, None]
        covered = regression_coverage_score(sample.reference, ends)[0]
        assert found[f"coverage_{100 * c:g}"] == pytest.approx(covered)
        width = regression_mean_width_score(ends)[0]
        assert found[f"width_{100 * c:g}"] == pytest.approx(width)


def test_ties_count_as_in_another_library():
    """Standard deviations of a model are often equal: a floor, without spread between members."""
    sample = drawn(ties=True)
    found = values(sample)
    for name in set(MEASURES) - {"ence", "retention"}:
        assert found[name] == pytest.approx(OTHERS[name](sample), rel=1e-9), name


def test_the_crps_is_the_integral_that_defines_it():
    sample = drawn(structures=10, values=1)
    assert values(sample)["crps"] == pytest.approx(crps_by_integration(sample), rel=1e-6)
    tiny = gaussian_crps(np.array([0.3]), np.array([1e-9]))
    assert gaussian_crps(np.array([0.3]), np.zeros(1)) == pytest.approx(tiny)


def test_an_interval_is_that_of_copied_structures(monkeypatch):
    """To count a structure twice is to have it twice, in every measure that has no bins."""
    monkeypatch.setattr(bootstrap, "_DRAWS", 12)
    level = stats.norm.cdf(stats.t.ppf(0.025, 19) * (20 / 19) ** 0.5)
    for ties in (False, True):
        sample = drawn(structures=20, values=3, ties=ties)
        found = measure(sample, seed=7)
        names = set(MEASURES) - {"ence", "miscalibration_area"}
        copied: dict[str, list[float]] = {name: [] for name in names}
        for row in np.random.default_rng(7).integers(20, size=(12, 20)):
            rows = np.concatenate([np.flatnonzero(sample.structure == k) for k in row])
            several = Sample(*(getattr(sample, key)[rows] for key in FIELDS))
            for name in names:
                # Copies are ties, which the definition of the retention does not know.
                own = name == "retention"
                copied[name].append(values(several)[name] if own else OTHERS[name](several))
        for name in names:
            lo, hi = np.quantile(copied[name], [level, 1 - level])
            assert found[name][1:] == pytest.approx((lo, hi), rel=1e-9), name


FIELDS = ("structure", "reference", "mean", "std")


def test_draws_do_not_depend_on_how_many_are_computed_together(monkeypatch):
    sample = drawn(structures=12)
    together = measure(sample)
    assert measure(sample) == together != measure(sample, seed=1)
    monkeypatch.setattr(bootstrap, "_AT_ONCE", 3 * len(sample))
    apart = measure(sample)
    for name, estimate in together.items():
        assert apart[name] == pytest.approx(estimate, rel=1e-12), name


def test_intervals_hold_the_truth_over_structures(monkeypatch):
    """Were the values of one structure drawn each by itself, intervals would be far too narrow."""
    monkeypatch.setattr(bootstrap, "_DRAWS", 200)
    monkeypatch.setattr(bootstrap, "_MOST_VALUES", 2000)
    truth = values(drawn(99, structures=20_000, values=6))
    names = ("mae", "nll", "crps", "sharpness", "spearman", "retention", "coverage_50")
    held = dict.fromkeys((*names, "apart"), 0)
    repeats = 60
    for seed in range(repeats):
        sample = drawn(seed, structures=40, values=6)
        found = measure(sample)
        for name in names:
            held[name] += found[name].lo <= truth[name] <= found[name].hi
        numbers = np.arange(len(sample))
        wrong = measure(Sample(numbers, sample.reference, sample.mean, sample.std))["mae"]
        held["apart"] += wrong.lo <= truth["mae"] <= wrong.hi
    assert held.pop("apart") < 0.8 * repeats
    assert min(held.values()) >= 0.83 * repeats, held


def test_few_structures_have_wide_intervals_or_none():
    """Plain percentiles of six structures hold a mean in 84 % of cases, these in 90 %."""
    for n in (1, 2, 4):
        few = measure(drawn(structures=n))
        assert all(np.isnan(end) for estimate in few.values() for end in estimate[1:])
    random = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        sample = random.normal(size=6)
        lo, hi = interval(sample[random.integers(6, size=(500, 6))].mean(axis=1), 6)
        held += lo <= 0 <= hi
    assert held >= 0.88 * 300


def test_perfect_error_bars_may_be_perfect(monkeypatch):
    """The area of any sample is above zero; the interval says that this may be chance."""
    monkeypatch.setattr(bootstrap, "_DRAWS", 200)
    random = np.random.default_rng(3)
    lows = []
    for _ in range(60):
        std = np.exp(random.normal(size=50))
        perfect = Sample(np.arange(50), np.zeros(50), std * random.normal(size=50), std)
        area = measure(perfect)["miscalibration_area"]
        assert 0 <= area.lo <= area.value <= area.hi
        lows.append(area.lo)
    assert np.mean(np.array(lows) == 0) >= 0.85
    narrow = Sample(perfect.structure, perfect.reference, perfect.mean, perfect.std / 4)
    assert measure(narrow)["miscalibration_area"].lo > 0.1


def test_a_large_sample_has_the_interval_of_a_part_of_it(monkeypatch):
    sample = drawn(structures=400)
    whole = measure(sample)
    monkeypatch.setattr(bootstrap, "_MOST_VALUES", len(sample) // 2)
    part = measure(sample)
    for name in ("mae", "rmse", "nll", "spearman", "retention", "coverage_90"):
        assert part[name].value == whole[name].value
        widths = [found[name].hi - found[name].lo for found in (whole, part)]
        assert widths[1] == pytest.approx(widths[0], rel=0.3), name


def test_some_values_of_large_structures_stand_for_all(monkeypatch):
    """Of few structures none may be left out, however many values they have."""
    sample = drawn(structures=30, values=160)
    monkeypatch.setattr(bootstrap, "_DRAWS", 200)
    whole = measure(sample)
    monkeypatch.setattr(bootstrap, "_MOST_VALUES", len(sample) // 4)
    some = measure(sample)
    for name in ("mae", "rmse", "nll", "spearman", "retention", "coverage_90"):
        assert some[name].value == whole[name].value
        widths = [found[name].hi - found[name].lo for found in (whole, some)]
        assert widths[0] != widths[1] == pytest.approx(widths[0], rel=0.3), name


def test_where_all_draws_agree_the_rule_of_three_bounds():
    n = 30
    reference = np.linspace(0, 1, n)
    ends = (reference - 1, reference + 1)
    sample = Sample(np.arange(n), reference, reference + 0.01, np.ones(n), {0.9: ends})
    assert measure(sample)["coverage_90"] == pytest.approx((1.0, 0.9, 1.0))
    outside = Sample(*(getattr(sample, key) for key in FIELDS), {0.9: (ends[1], ends[1])})
    assert measure(outside)["coverage_90"] == pytest.approx((0.0, 0.0, 0.1))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 999), scale=st.floats(1e-3, 1e3), ties=st.booleans())
def test_the_unit_and_the_order_change_nothing(seed, scale, ties):
    sample = drawn(seed, structures=25, values=2, ties=ties)
    found = values(sample)
    order = np.random.default_rng(seed).permutation(len(sample))
    shuffled = values(sample[order])
    scaled = values(
        Sample(
            sample.structure,
            scale * sample.reference,
            scale * sample.mean,
            scale * sample.std,
            {c: (scale * lo, scale * hi) for c, (lo, hi) in sample.intervals.items()},
        )
    )
    for name, value in found.items():
        assert shuffled[name] == pytest.approx(value, rel=1e-9), name
        if name.startswith("coverage"):
            assert abs(scaled[name] - value) <= 2 / len(sample), "ends may round"
            continue
        if name == "nll":
            value += np.log(scale)
        elif name in IN_UNITS or name.startswith("width"):
            value *= scale
        elif name in ("ence", "miscalibration_area", "spearman") and ties:
            continue  # rounding may part equal values
        assert scaled[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name


def test_a_perfect_prediction():
    sample = drawn()
    exact = Sample(sample.structure, sample.reference, sample.reference, sample.std)
    found = values(exact)
    assert [found[name] for name in ("mae", "rmse", "retention")] == [0, 0, 0]
    assert found["r2"] == 1 and found["ence"] == 1
    assert found["miscalibration_area"] == pytest.approx(0.5, abs=0.01)
    assert np.isnan(found["spearman"]), "there is nothing to rank"


def test_without_uncertainty_an_interval_holds_what_is_exact():
    error, std = np.array([0.0, -1e-9, 0.3, 0.0]), np.array([0.0, 0.0, 0.3, 0.3])
    one_sigma = stats.norm.cdf(1) - stats.norm.cdf(-1)
    assert coverage_needed(error, std) == pytest.approx([0, 1, one_sigma, 0])


def test_total_energies_far_from_zero():
    """Those of large cells differ in the seventh digit; R² is that of the differences."""
    sample = drawn()
    away = dataclasses.replace(sample, reference=sample.reference - 1e8, mean=sample.mean - 1e8)
    assert measure(away)["r2"] == pytest.approx(measure(sample)["r2"], rel=1e-5)


def ranked(sign):
    """Error bars that are the larger, or the smaller, the larger the error."""
    error = np.linspace(0.1, 1, 40)
    zeros = np.zeros(40)
    return Sample(np.arange(40), zeros, error, np.exp(sign * error))


def test_error_bars_that_know_the_errors_keep_the_good_values():
    best, worst = values(ranked(1)), values(ranked(-1))
    assert best["spearman"] == pytest.approx(1) and worst["spearman"] == pytest.approx(-1)
    assert best["retention"] < best["mae"] < worst["retention"]
    none = Sample(np.arange(40), np.zeros(40), np.linspace(0.1, 1, 40), np.ones(40))
    assert values(none)["retention"] == pytest.approx(best["mae"])


def one(**changed):
    sample = drawn(structures=6, values=4)
    fields = {key: getattr(sample, key) for key in (*FIELDS, "intervals")}
    return Sample(**{**fields, **changed})  # type: ignore[arg-type]


N = 24
NAN = np.full(N, np.nan)
ALL = {*MEASURES, *(name for c in COVERAGES for name in interval_names(c))}
DEGENERATE: dict[str, tuple[Sample, set[str]]] = {
    "one structure": (one(structure=np.zeros(N, np.int64)), set()),
    "no std": (one(std=np.zeros(N)), {"nll", "ence", "spearman"}),
    "one std": (one(std=np.ones(N)), {"spearman"}),
    "constant reference": (one(reference=np.full(N, 0.1)), {"r2"}),
    "no reference": (one(reference=NAN), ALL),
    "no prediction": (one(mean=NAN), ALL),
    "nothing": (one()[np.zeros(N, bool)], ALL),
    "no interval": (one(intervals={0.9: (NAN, NAN)}), {"width_90"}),
    "infinite": (one(intervals={0.9: (NAN - np.inf, NAN + np.inf)}), {"width_90"}),
    "beyond squares": (one(mean=np.full(N, 1e200)), {"rmse", "r2", "nll", "ence", "spearman"}),
    "one value": (one()[np.arange(N) == 3], {"r2", "spearman"}),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_what_cannot_be_measured_is_nan_and_no_warning(name):
    sample, undefined = DEGENERATE[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = measure(sample)
    assert {name for name, estimate in found.items() if np.isnan(estimate.value)} == undefined
    assert not any(np.isinf(number) for estimate in found.values() for number in estimate)
    if len(np.unique(sample.known().structure)) < 5:
        assert all(np.isnan(estimate.lo) for estimate in found.values())


def test_values_that_are_not_known_do_not_count():
    sample = drawn()
    gaps = sample.reference.copy()
    gaps[::3] = np.nan
    some = np.arange(len(sample)) % 3 > 0
    fields = (sample.structure, gaps, sample.mean, sample.std, sample.intervals)
    assert values(Sample(*fields)) == pytest.approx(values(sample[some]))
