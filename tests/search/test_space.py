"""Suggestions stay within the space, whatever the space."""

import tempfile
import warnings
from pathlib import Path

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from study_cases import SPACE, came_to, open_search

from hydragnn_flow.config import Parameter, SearchConfig, load_config
from hydragnn_flow.search.records import active, distributions, suggest

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@st.composite
def parameters(draw, earlier):
    """Any parameter, conditional on an earlier choice now and then."""
    when = {}
    chosen = {name: p.choices for name, p in earlier.items() if p.choices is not None}
    if chosen and draw(st.booleans()):
        name = draw(st.sampled_from(sorted(chosen)))
        values = st.lists(st.sampled_from(chosen[name]), min_size=1, max_size=2)
        when = {name: tuple(draw(values))}
    kind = draw(st.sampled_from(["choices", "int", "float"]))
    if kind == "choices":
        scalars = st.integers(-9, 9) | st.sampled_from(["a", "b", "c"]) | st.floats(0.1, 0.9)
        choices = draw(st.lists(scalars, min_size=1, max_size=4, unique=True))
        return Parameter(choices=tuple(choices), when=when)
    scale = draw(st.sampled_from(["linear", "log", "step"]))
    log = scale == "log"
    if kind == "int":
        low = draw(st.integers(1 if log else -1000, 1000))
        high = low + draw(st.integers(0, 1000))
        step = draw(st.integers(1, high - low)) if scale == "step" and high > low else None
        return Parameter(int=(low, high), log=log, step=step, when=when)
    start = draw(st.floats(1e-6 if log else -1e3, 1e3))
    end = start + draw(st.floats(0, 1e3))
    step = None
    if scale == "step":
        start, end = round(start, 3), round(end, 3) + 7.0
        step = draw(st.sampled_from([0.1, 0.25, 7.0]))
    return Parameter(float=(start, end), log=log, step=step, when=when)


@st.composite
def spaces(draw):
    space: dict[str, Parameter] = {}
    for i in range(draw(st.integers(1, 4))):
        space[f"section.key{i}"] = draw(parameters(space))
    return space


@settings(max_examples=60, deadline=None)
@given(space=spaces(), seed=st.integers(0, 2**32 - 1))
def test_every_suggestion_is_within_the_space(space, seed):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Optuna warns where it has to lower the end of a range
        domains = distributions(space)
        for _ in range(5):
            trial = study.ask()
            values = suggest(trial, space)
            assert list(values) == active(space, values)
            assert all(space[name].contains(value) for name, value in values.items())
            # Samplers that are given the space beforehand see the domains that trials have.
            assert trial.distributions == {name: domains[name] for name in values}
            assert suggest(trial, space) == values


PUBLISHED = sorted(CONFIGS.rglob("*hpo*.yaml"))


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_every_network_of_a_published_space_can_be(path):
    config = load_config(path)
    space = config.search.space
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    seen: set[str] = set()
    for _ in range(60):
        values = suggest(study.ask(), space)
        network = config.network_with(values)
        assert network.Architecture.hidden_dim == values["Architecture.hidden_dim"]
        seen |= set(values)
    assert seen == set(space)


@settings(max_examples=15, deadline=None)
@given(space=spaces(), seed=st.integers(0, 10**12))
def test_a_study_knows_what_it_suggested(space, seed):
    config = SearchConfig(trials=9, sampler="random", space=space)
    with tempfile.TemporaryDirectory() as folder:
        search = open_search(Path(folder) / "study.journal", config, seed)
        asked = [search.ask().parameters for _ in range(3)]
        assert [record.parameters for record in search.records] == asked
        assert [search.record(number).parameters for number in range(3)] == asked
        search.close()


def test_the_samplers_own_suggestions_are_within_the_space(tmp_path):
    search = open_search(tmp_path / "study.journal")
    for _ in range(30):
        trial = search.ask()
        assert list(trial.parameters) == active(SPACE, trial.parameters)
        assert all(SPACE[name].contains(value) for name, value in trial.parameters.items())
        rung, outcome = 0, came_to(abs(trial.parameters["Architecture.hidden_dim"]))
        while search.report(trial.number, rung, outcome) == "goes_on":
            rung += 1
    types = {record.parameters["Architecture.mpnn_type"] for record in search.records}
    assert types == set(SPACE["Architecture.mpnn_type"].choices or ())


def test_conditional_parameters_exist_only_where_they_apply(tmp_path):
    search = open_search(tmp_path / "study.journal")
    trials = [search.ask().parameters for _ in range(20)]
    has = {t["Architecture.mpnn_type"]: "Architecture.num_gaussians" in t for t in trials}
    assert has == {"SchNet": True, "EGNN": False, "PNA": False}


CHAIN = {
    "a": Parameter(choices=("on", "off")),
    "b": Parameter(choices=(1, 2), when={"a": ("on",)}),
    "c": Parameter(int=(2, 9), when={"b": (1,)}),
}


@pytest.mark.parametrize(
    ("values", "existing"),
    [
        ({"a": "off"}, ["a"]),
        ({"a": "on", "b": 2}, ["a", "b"]),
        ({"a": "on", "b": 1}, ["a", "b", "c"]),
        ({"a": "off", "b": 1, "c": 2}, ["a"]),  # a value of what does not exist changes nothing
        ({"a": "on"}, ["a", "b"]),
        ({}, ["a"]),
    ],
)
def test_a_condition_on_a_parameter_that_does_not_exist_is_not_met(values, existing):
    assert active(CHAIN, values) == existing


def test_distributions_are_those_of_optuna():
    space = {
        "choice": Parameter(choices=("x", 2, True)),
        "whole": Parameter(int=(8, 60), step=16),
        "log": Parameter(int=(8, 64), log=True),
        "number": Parameter(float=(0.0, 1.0), step=0.3),
        "rate": Parameter(float=(1e-5, 1e-2), log=True),
    }
    assert distributions(space) == {
        "choice": CategoricalDistribution(("x", 2, True)),
        "whole": IntDistribution(8, 56, step=16),
        "log": IntDistribution(8, 64, log=True),
        "number": FloatDistribution(0.0, 0.9, step=0.3),
        "rate": FloatDistribution(1e-5, 1e-2, log=True),
    }


@pytest.mark.parametrize("seed", [0, 1, 123_456, 20_240_101, 2**40])
def test_the_seed_decides(seed, tmp_path):
    def suggestions(name, seed):
        search = open_search(tmp_path / name, seed=seed)
        return [search.ask().parameters for _ in range(5)]

    first = suggestions("first.journal", seed)
    assert suggestions("second.journal", seed) == first
    assert suggestions("other.journal", seed + 1) != first
