"""Suggestions stay within the space, whatever the space."""

import warnings
from pathlib import Path

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.config import Parameter, load_config
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


CHAIN = {
    "a": Parameter(choices=("on", "off")),
    "e": Parameter(float=(0, 0.5), step=0.1),
    "b": Parameter(choices=(1, 2), when={"a": ("on",)}),
    "c": Parameter(int=(2, 9), when={"b": (1,)}),
    "d": Parameter(int=(2, 9), when={"e": (0.3,)}),
}


@pytest.mark.parametrize(
    ("values", "existing"),
    [
        ({"a": "off"}, "ae"),
        ({"a": "on", "b": 2}, "aeb"),
        ({"a": "on", "b": 1}, "aebc"),
        ({"a": "off", "b": 1, "c": 2}, "ae"),  # a value of what does not exist changes nothing
        ({"a": "on"}, "aeb"),
        ({"e": 3 * 0.1}, "aed"),  # 0.30000000000000004
    ],
)
def test_a_condition_on_a_parameter_that_does_not_exist_is_not_met(values, existing):
    assert active(CHAIN, values) == [*existing]
