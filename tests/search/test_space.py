"""Suggestions stay within the space, whatever the space."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from study_cases import SPACE, fits, open_search

from hydragnn_flow.config import Parameter, SearchConfig


@st.composite
def parameters(draw: st.DrawFn, earlier: dict[str, Parameter]) -> Parameter:
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
    log = draw(st.booleans())
    if kind == "int":
        low = draw(st.integers(1 if log else -1000, 1000))
        return Parameter(int=(low, low + draw(st.integers(0, 1000))), log=log, when=when)
    start = draw(st.floats(1e-6 if log else -1e3, 1e3))
    return Parameter(float=(start, start + draw(st.floats(0, 1e3))), log=log, when=when)


@st.composite
def spaces(draw: st.DrawFn) -> dict[str, Parameter]:
    space: dict[str, Parameter] = {}
    for i in range(draw(st.integers(1, 4))):
        space[f"section.key{i}"] = draw(parameters(space))
    return space


@settings(max_examples=40, deadline=None)
@given(space=spaces(), seed=st.integers(0, 10**12))
def test_every_suggestion_is_within_the_space(space: dict[str, Parameter], seed: int) -> None:
    config = SearchConfig(trials=9, space=space)
    with tempfile.TemporaryDirectory() as folder:
        search = open_search(Path(folder) / "study.journal", config, seed)
        asked = [search.ask().parameters for _ in range(3)]
        assert all(fits(parameters, config) for parameters in asked)
        assert [record.parameters for record in search.records] == asked
        assert [search.resume(number).parameters for number in range(3)] == asked


def test_the_samplers_own_suggestions_are_within_the_space(tmp_path: Path) -> None:
    search = open_search(tmp_path / "study.journal")
    for _ in range(30):
        trial = search.ask()
        assert fits(trial.parameters)
        rung = 0
        while search.report(trial.number, rung, abs(trial.parameters["Architecture.hidden_dim"])):
            rung += 1
    types = {record.parameters["Architecture.mpnn_type"] for record in search.records}
    assert types == set(SPACE["Architecture.mpnn_type"].choices or ())


def test_conditional_parameters_exist_only_where_they_apply(tmp_path: Path) -> None:
    search = open_search(tmp_path / "study.journal")
    trials = [search.ask().parameters for _ in range(20)]
    has = {t["Architecture.mpnn_type"]: "Architecture.num_gaussians" in t for t in trials}
    assert has == {"SchNet": True, "EGNN": False, "PNA": False}


def test_a_condition_on_a_parameter_that_does_not_exist_is_not_met(tmp_path: Path) -> None:
    space = {
        "a": Parameter(choices=("on", "off")),
        "b": Parameter(choices=(1,), when={"a": ("on",)}),
        "c": Parameter(choices=(2,), when={"b": (1,)}),
    }
    search = open_search(tmp_path / "study.journal", SearchConfig(trials=9, space=space))
    seen = {tuple(sorted(search.ask().parameters)) for _ in range(20)}
    assert seen == {("a",), ("a", "b", "c")}


@pytest.mark.parametrize("seed", [0, 1, 123_456, 20_240_101, 2**40])
def test_the_seed_decides(seed: int, tmp_path: Path) -> None:
    def suggestions(name: str, seed: int) -> list[dict[str, object]]:
        search = open_search(tmp_path / name, seed=seed)
        return [search.ask().parameters for _ in range(5)]

    first = suggestions("first.journal", seed)
    assert suggestions("second.journal", seed) == first
    assert suggestions("other.journal", seed + 1) != first
