"""The density is Optuna's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers._tpe.parzen_estimator import _ParzenEstimator, _ParzenEstimatorParameters
from optuna.samplers._tpe.sampler import default_weights
from scipy.stats import spearmanr

from hydragnn_flow.search.samplers import kernels
from hydragnn_flow.search.samplers.parzen import LiarKernels, Parzen, ramp

OPTUNA = _ParzenEstimatorParameters(
    prior_weight=1.0,
    consider_magic_clip=True,
    consider_endpoints=False,
    weights=default_weights,
    multivariate=True,
)
SPACE: dict[str, BaseDistribution] = {
    "batch_size": IntDistribution(16, 256, log=True),
    "dropout": FloatDistribution(0.0, 0.5, step=0.1),
    "hidden_dim": IntDistribution(100, 3000),
    "learning_rate": FloatDistribution(1e-5, 3e-3, log=True),
    "model_type": CategoricalDistribution(["SchNet", "PNA", "EGNN"]),
    "num_conv_layers": IntDistribution(2, 6),
    "radius": FloatDistribution(2.0, 10.0),
}


@pytest.fixture(autouse=True, scope="module")
def optunas_width():
    """Let kernels be as narrow as Optuna's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "NARROWEST", 100.0)
        yield


@st.composite
def distributions(draw):
    kind = draw(st.sampled_from(["choice", "int", "log int", "step int", "float", "log", "step"]))
    low = draw(st.integers(1, 50))
    high = low + draw(st.integers(1, 2000))
    match kind:
        case "choice":
            return CategoricalDistribution(list(range(draw(st.integers(1, 9)))))
        case "int":
            return IntDistribution(low, high)
        case "log int":
            return IntDistribution(low, high, log=True)
        case "step int":
            step = draw(st.integers(2, 9))
            return IntDistribution(low, low + step * (high - low), step=step)
        case "float":
            return FloatDistribution(-low / 7, high / 3)
        case "log":
            return FloatDistribution(low * 1e-5, high * 1e-3, log=True)
    return FloatDistribution(low / 4, low / 4 + 0.125 * (high - low), step=0.125)


def uniform(space, rng, size):
    return Parzen(np.empty((0, len(space))), space).sample(rng, size)


def both(space, observations, points, weights=None):
    """Logarithms by Optuna and by us."""
    names = list(space)

    def columns(array):
        return {name: array[:, j] for j, name in enumerate(names)}

    theirs = _ParzenEstimator(columns(observations), space, OPTUNA, weights)
    return theirs.log_pdf(columns(points)), Parzen(observations, space, weights).log_pdf(points)


@given(
    st.lists(distributions(), min_size=1, max_size=5),
    st.integers(0, 40),
    st.integers(0, 2**31),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_log_pdf_is_that_of_optuna(domains, count, seed, is_clustered):
    space = {f"p{j}": domain for j, domain in enumerate(domains)}
    rng = np.random.RandomState(seed)
    observations = uniform(space, rng, count)
    if is_clustered and count > 3:
        observations = Parzen(observations[:3], space).sample(rng, count)
    points = np.vstack([uniform(space, rng, 20), Parzen(observations, space).sample(rng, 20)])
    theirs, ours = both(space, observations, points)
    # Bins at the limit of being coarse are the least exact.
    np.testing.assert_allclose(ours, theirs, atol=0.1)
    assert np.mean(np.abs(ours - theirs)) < 0.02


@pytest.mark.parametrize("is_clustered", [False, True])
def test_kernels_that_are_left_out_are_not_missed(is_clustered):
    rng = np.random.RandomState(1)
    observations = uniform(SPACE, rng, 2500)
    if is_clustered:
        observations[:2000] = Parzen(observations[:4], SPACE).sample(rng, 2000)
    points = np.vstack([Parzen(observations[:25], SPACE).sample(rng, 250), uniform(SPACE, rng, 50)])
    theirs, ours = both(SPACE, observations, points)
    np.testing.assert_allclose(ours, theirs, atol=0.1)
    assert np.mean(np.abs(ours - theirs)) < 2e-3
    assert spearmanr(ours, theirs).statistic > 0.9999


def test_given_weights_count():
    rng = np.random.RandomState(2)
    observations, points = uniform(SPACE, rng, 30), uniform(SPACE, rng, 30)
    theirs, ours = both(SPACE, observations, points, np.ones(30))
    np.testing.assert_allclose(ours, theirs, atol=0.05)


@pytest.mark.parametrize("count", [0, 1, 2, 60])
def test_samples_are_those_of_optuna(count):
    rng = np.random.RandomState(3)
    observations = uniform(SPACE, rng, count)
    names = list(SPACE)
    theirs = _ParzenEstimator(
        {name: observations[:, j] for j, name in enumerate(names)}, SPACE, OPTUNA
    ).sample(np.random.RandomState(4), 300)
    ours = Parzen(observations, SPACE).sample(np.random.RandomState(4), 300)
    for j, name in enumerate(names):
        np.testing.assert_allclose(ours[:, j], theirs[name], rtol=1e-6, atol=1e-9, err_msg=name)


def test_weights_are_those_of_optuna():
    for count in (0, 1, 24, 25, 26, 300):
        np.testing.assert_array_equal(ramp(count), default_weights(count))


def test_observations_out_of_a_range_that_has_shrunk_count_at_its_end():
    space: dict[str, BaseDistribution] = {"x": FloatDistribution(0.0, 1.0)}
    points = np.linspace(0.0, 1.0, 11)[:, None]
    outside = Parzen(np.array([[7.0], [0.2]]), space).log_pdf(points)
    at_the_end = Parzen(np.array([[1.0], [0.2]]), space).log_pdf(points)
    np.testing.assert_array_equal(outside, at_the_end)


def test_a_liar_kernel_is_densest_at_its_own_point():
    rng = np.random.RandomState(5)
    points = uniform(SPACE, rng, 40)
    liars = LiarKernels(points, SPACE, 500)
    assert all(np.argmax(liars.log_pdf(0, point)) == point for point in range(40))


def test_a_liar_kernel_is_one_more_kernel_of_the_narrowest_width():
    space: dict[str, BaseDistribution] = {"x": FloatDistribution(0.0, 1.0)}
    # A history dense enough that the kernel of a new trial has the least width.
    seen = np.linspace(0.001, 0.999, 1000)[:, None]
    points = np.array([[0.4005], [0.41], [0.45]])
    before = np.exp(Parzen(seen, space, np.ones(1000)).log_pdf(points))
    after = np.exp(Parzen(np.vstack([seen, points[:1]]), space, np.ones(1001)).log_pdf(points))
    liar = np.exp(LiarKernels(points, space, 1000).log_pdf(0, 0)) * (ramp(1000).sum() + 1) / 1001
    np.testing.assert_allclose((before + liar) * 1001 / 1002, after, rtol=2e-3)
