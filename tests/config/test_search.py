"""What a search may ask for: domains, conditions, samplers, objectives, rungs."""

import json
import os

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.config import Parameter, RunConfig, load_config
from hydragnn_flow.config.optuna_classes import build_pruner, build_sampler
from hydragnn_flow.config.origins import check_earlier
from hydragnn_flow.errors import InputError

SPACE = ("search", "space")
TYPE, WIDTH = "Architecture.mpnn_type", "Architecture.hidden_dim"
RATE = "Training.Optimizer.learning_rate"


def refusal(path):
    """The one line with which a file is refused."""
    with pytest.raises(InputError) as caught:
        load_config(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


GOOD = [
    {"sampler": "nsga2", "objectives": ["val.forces", "val.energy", "joules"]},
    {"sampler": {"type": "CmaEsSampler", "sigma0": 0.2, "with_margin": True}},
    {"sampler": {"type": "hydragnn_flow:BatchedTPESampler", "n_ei_candidates": 48}},
    {"constraints": {"peak_memory_gib": 48, "gcd_hours": 0.5}},
    {"rungs": "none"},
    {"pruner": {"type": "PatientPruner", "patience": 2, "wrapped_pruner": {"type": "NopPruner"}}},
    {"pruner": {"type": "PercentilePruner", "percentile": 25.0, "n_startup_trials": 3}},
    {"enqueue": [{WIDTH: 16}, {TYPE: "SchNet", "Architecture.num_gaussians": 9, RATE: 0.005}]},
]


@pytest.mark.parametrize("extra", GOOD, ids=str)
def test_what_is_right_reads_back_the_same(extra, quickstart, write):
    config = load_config(write({**quickstart, "search": {**quickstart["search"], **extra}}))
    text = yaml.safe_dump(config.model_dump(mode="json"))
    assert RunConfig.model_validate(yaml.safe_load(text)) == config
    kept = config.search.model_dump(mode="json")
    for key, value in extra.items():
        assert kept[key] == value or {**kept[key], **value} == kept[key]


def test_weights_may_vary_where_no_loss_is_compared(quickstart, change, write):
    weight = "Architecture.force_weight"
    values = change(quickstart, (*SPACE, weight), {"float": [1.0, 100.0], "log": True})
    assert weight in load_config(write(values)).search.space
    values = change(values, ("search", "objectives"), ["val_loss"])
    said = refusal(write(values))
    assert f"search.space.{weight}: trials could not be compared by val_loss" in said
    assert "write val_error among search.objectives" in said
    values = change(values, ("search", "objectives"), ["val.forces", "val.energy"])
    assert weight in load_config(write(values)).search.space


def test_parameters_that_need_each_other_are_tried_together(quickstart, change, write):
    """The network has no Scheduler, so that of its keys each alone would be refused."""
    section = "Training.Scheduler"
    values = change(quickstart, (*SPACE, f"{section}.warmup_epochs"), {"float": [0, 2]})
    assert f"{section}.type: this key is required" in refusal(write(values))
    values = change(values, (*SPACE, f"{section}.type"), {"choices": ["constant", "cosine"]})
    assert len(load_config(write(values)).search.space) == 8


def test_earlier_searches_are_found_beside_the_file(quickstart, change, write, tmp_path):
    journal = tmp_path / "runs" / "first" / "study.journal"
    journal.parent.mkdir(parents=True)
    journal.write_text(json.dumps({"op_code": 0, "study_name": "search"}) + "\n")
    place = ("search", "warm_start")
    config = load_config(write(change(quickstart, place, ["runs/first", str(journal)])))
    assert config.search.warm_start == (journal.parent, journal)

    os.mkfifo(tmp_path / "fifo")
    for name, words in {
        "fifo": "fifo is not an Optuna journal",
        "runs/second": "runs/second does not exist",
        "runs": "has no study.journal",
        "run.yaml": "run.yaml is not an Optuna journal",
    }.items():
        config = load_config(write(change(quickstart, place, ["runs/first", name])))
        with pytest.raises(InputError, match=words) as caught:
            check_earlier(config.search.warm_start)
        assert str(caught.value).startswith(f"search.warm_start.1: {tmp_path / name}")
    assert "search.warm_start: must be a list" in refusal(write(change(quickstart, place, "runs")))


def test_samplers_and_pruners_have_their_options_and_the_seed():
    wrapped = {"type": "PercentilePruner", "percentile": 25.0}
    pruner = build_pruner({"type": "PatientPruner", "patience": 3, "wrapped_pruner": wrapped})
    assert vars(pruner)["_patience"] == 3
    assert vars(vars(pruner)["_wrapped_pruner"])["_percentile"] == 25.0
    base = {"type": "NSGAIISampler", "population_size": 7, "mutation": "PolynomialMutation"}
    options = {"type": "PartialFixedSampler", "fixed_params": {"width": 8}, "base_sampler": base}
    first, again = (vars(build_sampler(options, {}, seed=5))["_base_sampler"] for _ in range(2))
    assert vars(first)["_population_size"] == 7
    assert first._rng.rng.random() == again._rng.rng.random()


def test_steps_are_counted_in_decimals():
    parameter = Parameter(float=(0.1, 0.3), step=0.2)  # in binary, 0.3 - 0.1 is less than 0.2
    assert parameter.bounds == (0.1, 0.3)


@st.composite
def ranges(draw):
    """Any range with a step that fits into it."""
    if draw(st.booleans()):
        low, steps = draw(st.integers(-1000, 1000)), draw(st.integers(1, 200))
        step = draw(st.integers(1, 50))
        return Parameter(int=(low, low + steps * step + draw(st.integers(0, step - 1))), step=step)
    low = draw(st.integers(-500, 500)) / 100
    step = draw(st.sampled_from([0.01, 0.05, 0.1, 0.3, 1.0]))
    return Parameter(float=(low, low + draw(st.floats(1.01, 9.0))), step=step)


@settings(max_examples=200)
@given(parameter=ranges(), data=st.data())
def test_a_domain_holds_its_steps_and_nothing_between(parameter, data):
    given_range = parameter.int or parameter.float
    low, high = parameter.bounds
    # Where the end of the range cannot be reached, the last step before it is its end.
    assert low == given_range[0]
    assert given_range[1] - parameter.step - 1e-9 < high <= given_range[1] + 1e-12
    assert all(parameter.contains(value) for value in parameter.examples())
    count = round((high - low) / parameter.step)
    value = low + data.draw(st.integers(0, count)) * parameter.step
    value = int(value) if parameter.int is not None else min(value, high)
    assert parameter.contains(value)
    assert not parameter.contains(value + parameter.step / 2)
    assert not parameter.contains(high + parameter.step)
    assert not parameter.contains(low - parameter.step)
    assert not parameter.contains(str(value))


def test_a_choice_is_of_its_own_kind():
    domain = Parameter(choices=(1, 2.0, "on", False))
    assert all(domain.contains(value) for value in (1, 2, "on", False))
    assert not any(domain.contains(value) for value in (True, 0, "1", None, [1]))
