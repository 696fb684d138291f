"""What a search may ask for: domains, conditions, samplers, objectives, rungs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.config import Parameter, RunConfig, SearchConfig, load_config
from hydragnn_flow.config.optuna_classes import build_pruner, build_sampler
from hydragnn_flow.config.warm_start import check_earlier
from hydragnn_flow.errors import InputError

SEARCH = ("search",)
SPACE = ("search", "space")
TYPE, WIDTH, RATE = (
    "Architecture.mpnn_type",
    "Architecture.hidden_dim",
    "Training.Optimizer.learning_rate",
)
OWN = {"int": [8, 40]}

# Where, what, and what the message must say.
MISTAKES: list[tuple[tuple[str, ...], Any, tuple[str, ...]]] = [
    # domains
    ((*SPACE, WIDTH), {"int": [8, 48], "step": 0}, ("hidden_dim.step: must be greater than 0",)),
    ((*SPACE, WIDTH), {"int": [8, 48], "step": True}, ("step must be a number",)),
    ((*SPACE, WIDTH), {"int": [8, 48], "step": 2.5}, ("hidden_dim", "step 2.5", "whole number")),
    ((*SPACE, WIDTH), {"int": [8, 48], "step": 41}, ("step 41 leaves only 8", "lower it")),
    ((*SPACE, WIDTH), {"int": [8, 48], "step": 8, "log": True}, ("step and log", "remove one")),
    ((*SPACE, WIDTH), {"choices": [8, 16], "step": 8}, ("step belongs to", "remove it")),
    ((*SPACE, WIDTH), {"choices": [8, 16, 8]}, ("hidden_dim: choices lists 8 twice",)),
    ((*SPACE, RATE), {"float": [-1e-3, 1e-2], "log": True}, ("learning_rate", "above zero")),
    ((*SPACE, RATE), {"float": [1e-2, 1e-3]}, ("learning_rate", "is empty")),
    (
        (*SPACE, RATE),
        {"float": [660.2740759771327, 1064.47], "step": 0.1},
        ("step 0.1 cannot be counted from 660.2740759771327", "fewer digits"),
    ),
    # conditions
    ((*SPACE, WIDTH, "when"), {TYPE: ["MACE"]}, ("'MACE'", "not in the domain of 'Architecture")),
    (
        SPACE,
        {WIDTH: {"int": [8, 48]}, RATE: {"float": [1e-3, 1e-2], "when": {WIDTH: [64]}}},
        (f"space.{RATE}.when lists 64", "not in the domain"),
    ),
    (
        SPACE,
        {WIDTH: {"int": [8, 48], "step": 8}, RATE: {"float": [1e-3, 1e-2], "when": {WIDTH: [9]}}},
        (f"space.{RATE}.when lists 9", "not in the domain"),
    ),
    (
        SPACE,
        {RATE: {"float": [1e-3, 1e-2]}, WIDTH: {"int": [8, 48], "when": {RATE: [5e-3]}}},
        (f"space.{WIDTH}.when", "without step", "choices or a step"),
    ),
    (
        SPACE,
        {
            TYPE: {"choices": ["SchNet", "EGNN"]},
            "Architecture.num_gaussians": {"int": [8, 9], "when": {TYPE: ["SchNet"]}},
            WIDTH: {"int": [8, 48], "when": {"Architecture.num_gaussians": [8], TYPE: ["EGNN"]}},
        },
        (f"space.{WIDTH}.when can never hold", TYPE, "correct one"),
    ),
    # resources
    (
        (*SPACE, "Resources.gcds"),
        {"choices": [0, 2]},
        ("search.space.Resources.gcds", "whole numbers of GCDs from 1 on", "correct it"),
    ),
    ((*SPACE, "Resources.gcds"), {"float": [1, 4]}, ("Resources.gcds", "whole numbers")),
    ((*SPACE, "Resources.nodes"), {"choices": [1, 2]}, ("Resources.nodes", "is Resources.gcds")),
    ((*SPACE, "Training.precision"), {"choices": ["fp32", "fp8"]}, ("Training.precision", "fp8")),
    # samplers and objectives
    ((*SEARCH, "sampler"), "batch_tpe", ("search.sampler", "did you mean 'batched_tpe'")),
    ((*SEARCH, "sampler"), "zzz", ("search.sampler", "known are auto, batched_tpe, tpe")),
    ((*SEARCH, "sampler"), ["tpe"], ("search.sampler", "is not a sampler")),
    ((*SEARCH, "sampler"), {"type": "CMAES"}, ("sampler.type 'CMAES'", "CmaEsSampler")),
    ((*SEARCH, "sampler"), {"n_ei_candidates": 48}, ("sampler needs type", "module:Class")),
    (
        (*SEARCH, "sampler"),
        {"type": "TPESampler", "n_ei_candidate": 48},
        ("sampler.n_ei_candidate", "did you mean 'n_ei_candidates'"),
    ),
    ((*SEARCH, "sampler"), {"type": "TPESampler", "seed": 1}, ("follows from the run's seed",)),
    ((*SEARCH, "sampler"), {"type": "TPESampler", "gamma": "sqrt"}, ("takes a function",)),
    (
        (*SEARCH, "sampler"),
        {"type": "NSGAIISampler", "crossover": {"type": "SBXCrosover"}},
        ("sampler.crossover.type 'SBXCrosover'", "did you mean 'SBXCrossover'"),
    ),
    ((*SEARCH, "sampler"), {"type": "QMCSampler", "qmc_type": "x"}, ("refuses its options",)),
    ((*SEARCH, "sampler"), {"type": "no_module:X"}, ("no module 'no_module'", "PYTHONPATH")),
    ((*SEARCH, "sampler"), {"type": "json:Dumps"}, ("json has no 'Dumps'",)),
    ((*SEARCH, "sampler"), {"type": "json:JSONDecoder"}, ("not derived from", "BaseSampler")),
    (
        SEARCH,
        {"sampler": {"type": "CmaEsSampler"}, "objectives": ["val.forces", "val.energy"]},
        ("CmaEsSampler knows one objective",),
    ),
    (
        SEARCH,
        {"sampler": {"type": "CmaEsSampler"}, "constraints": {"seconds": 60}},
        ("CmaEsSampler ignores constraints",),
    ),
    (
        SEARCH,
        {"sampler": {"type": "TPESampler"}, "objectives": ["val.forces", "val.energy"]},
        ("TPESampler cannot learn from pruned trials",),
    ),
    ((*SEARCH, "objectives"), "val_loss", ("search.objectives: must be a list",)),
    ((*SEARCH, "objectives"), [], ("search.objectives: must be one to 3",)),
    ((*SEARCH, "objectives"), ["val_los"], ("search.objectives", "did you mean 'val_loss'")),
    ((*SEARCH, "objectives"), ["val_loss", "zzz"], ("objectives", "known are val_error", "TARGET")),
    ((*SEARCH, "objectives"), ["val_loss", "val_loss"], ("is given twice; remove one",)),
    ((*SEARCH, "objectives"), ["seconds", "val_loss"], ("'seconds'", "rungs judge by the first")),
    (
        (*SEARCH, "objectives"),
        ["val.energy", "val.forces", "seconds", "joules"],
        ("search.objectives: must be one to 3 objectives, got 4",),
    ),
    ((*SEARCH, "objectives"), ["val.stress"], ("'val.stress'", "outputs are energy, forces")),
    ((*SEARCH, "objectives"), ["val.force"], ("'val.force'", "did you mean 'forces'")),
    ((*SEARCH, "constraints"), {"seconds": 0}, ("constraints.seconds: must be greater than 0",)),
    ((*SEARCH, "constraints"), {"memory": 4}, ("constraints", "'memory'", "peak_memory_gib")),
    ((*SEARCH, "constraints"), ["seconds"], ("search.constraints: must be a mapping",)),
    # rungs
    ((*SEARCH, "rungs"), "asha", ("search.rungs", "'promotion'")),
    ((*SEARCH, "brackets"), 2, ("brackets = 2", "rungs: hyperband", "'stopping'")),
    (SEARCH, {"rungs": "hyperband", "brackets": 4}, ("search.brackets = 4", "2, 6, 18", "lower")),
    (SEARCH, {"rungs": "hyperband", "brackets": 0}, ("search.brackets: must be greater",)),
    (
        SEARCH,
        {"rungs": "promotion", "pruner": {"type": "MedianPruner"}},
        ("pruner judges at the rungs", "'promotion'", "remove one"),
    ),
    (
        SEARCH,
        {"objectives": ["val_loss", "seconds"], "pruner": {"type": "MedianPruner"}},
        ("pruner knows one objective", "remove it"),
    ),
    ((*SEARCH, "pruner"), {"type": "MedanPruner"}, ("pruner", "did you mean 'MedianPruner'")),
    ((*SEARCH, "pruner"), {"type": "BasePruner"}, ("pruner.type 'BasePruner'",)),
    ((*SEARCH, "pruner"), {"percentile": 25.0}, ("pruner needs type", "HyperbandPruner")),
    (
        (*SEARCH, "pruner"),
        {"type": "MedianPruner", "n_warmup_step": 3},
        ("pruner.n_warmup_step", "MedianPruner", "did you mean 'n_warmup_steps'"),
    ),
    ((*SEARCH, "pruner"), {"type": "NopPruner", "args": 3}, ("pruner.args", "no options")),
    ((*SEARCH, "pruner"), {"type": "PercentilePruner"}, ("needs percentile",)),
    (
        (*SEARCH, "pruner"),
        {"type": "PercentilePruner", "percentile": 300.0},
        ("PercentilePruner refuses its options",),
    ),
    (
        (*SEARCH, "pruner"),
        {"type": "PatientPruner", "patience": 2, "wrapped_pruner": {"type": "Median"}},
        ("pruner.type 'Median'", "did you mean 'MedianPruner'"),
    ),
    ((*SEARCH, "patience"), {"epochs": 0}, ("search.patience.epochs: must be greater",)),
    ((*SEARCH, "patience"), {"epoch": 3}, ("search.patience", "did you mean 'epochs'")),
    ((*SEARCH, "patience"), 3, ("search.patience: must be a mapping",)),
    ((*SEARCH, "learning_curve"), {"probability": 1}, ("learning_curve.probability:",)),
    (
        SEARCH,
        {"objectives": ["val.forces"], "learning_curve": {}},
        ("learning_curve predicts val_error or val_loss", "put one of those first"),
    ),
    ((*SEARCH, "failures"), {"diverged": "resize"}, ("search.failures.diverged", "'record'")),
    ((*SEARCH, "failures"), {"oom": "retry"}, ("search.failures", "'oom'")),
    # given configurations
    ((*SEARCH, "enqueue"), [{}], ("enqueue.0 names no parameter",)),
    ((*SEARCH, "enqueue"), {WIDTH: 16}, ("search.enqueue: must be a list",)),
    ((*SEARCH, "enqueue"), [{WIDTH: [16]}], ("search.enqueue.0.Architecture.hidden_dim",)),
    ((*SEARCH, "enqueue"), [{WIDTH: 16}, {"hidden_dim": 16}], ("enqueue.1 names 'hidden_dim'",)),
    ((*SEARCH, "enqueue"), [{"Architecture.hiden_dim": 16}], (f"did you mean '{WIDTH}'",)),
    ((*SEARCH, "enqueue"), [{WIDTH: 100}], (f"enqueue.0: {WIDTH} = 100", f"space.{WIDTH}")),
    ((*SEARCH, "enqueue"), [{WIDTH: 16.0}], (f"enqueue.0: {WIDTH} = 16.0",)),
    ((*SEARCH, "enqueue"), [{WIDTH: True}], (f"enqueue.0: {WIDTH} = True",)),
    ((*SEARCH, "enqueue"), [{TYPE: "MACE"}], (f"enqueue.0: {TYPE} = 'MACE'",)),
    (
        (*SEARCH, "enqueue"),
        [{TYPE: "PNA", "Architecture.num_gaussians": 9}],
        ("num_gaussians does not exist while Architecture.mpnn_type = 'PNA'", "remove it"),
    ),
]


@pytest.mark.parametrize(
    ("place", "value", "said"),
    MISTAKES,
    ids=[f"{'.'.join(place)}={str(value)[:60]}" for place, value, _ in MISTAKES],
)
def test_a_mistake_is_named(place, value, said, quickstart, change, write):
    path = write(
        change(quickstart, place, {**quickstart["search"], **value} if place == SEARCH else value)
    )
    message = refusal(path)
    assert message.startswith(str(path))
    for words in said:
        assert words in message


def refusal(path):
    """The one line with which a file is refused."""
    with pytest.raises(InputError) as caught:
        load_config(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


GOOD: list[dict[str, Any]] = [
    {"sampler": "nsga2", "objectives": ["val.forces", "val.energy", "joules"]},
    {"sampler": {"type": "CmaEsSampler", "sigma0": 0.2, "with_margin": True}},
    {"sampler": {"type": "hydragnn_flow:BatchedTPESampler", "n_ei_candidates": 48}},
    {"constraints": {"peak_memory_gib": 48, "gcd_hours": 0.5}},
    {"rungs": "hyperband"},
    {"rungs": "hyperband", "brackets": 3},
    {"rungs": "promotion", "patience": {"epochs": 5}, "learning_curve": {}},
    {"rungs": "none", "failures": {"diverged": "retry", "lost": "record"}},
    {"pruner": {"type": "PatientPruner", "patience": 2, "wrapped_pruner": {"type": "NopPruner"}}},
    {"pruner": {"type": "PercentilePruner", "percentile": 25.0, "n_startup_trials": 3}},
    {"enqueue": [{WIDTH: 16}, {TYPE: "SchNet", "Architecture.num_gaussians": 9, RATE: 0.005}]},
    {"enqueue": [{"Architecture.num_gaussians": 9}]},  # the type is left to the sampler
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
    # Members are chosen by the criterion, whose targets must be the same.
    values = change(values, (*SPACE, weight), {"choices": [0.0, 1.0]})
    assert f"search.space.{weight}: trials without a target" in refusal(write(values))


def test_one_width_is_that_of_every_layer(quickstart, change, write):
    path = "Architecture.output_heads.node.dim_headlayers"
    values = change(quickstart, (*SPACE, path), {"int": [8, 64], "step": 8})
    config = load_config(write(values))
    head = config.network_values({path: 24})["Architecture"]["output_heads"]["node"]
    assert head["dim_headlayers"] == [24, 24]
    assert config.network["Architecture"]["output_heads"]["node"]["dim_headlayers"] == [64, 32]


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
        "fifo": ("fifo is not an Optuna journal",),
        "runs/second": ("runs/second does not exist", "correct the path"),
        "runs": ("has no study.journal", "run whose search has begun"),
        "run.yaml": ("run.yaml is not an Optuna journal",),
    }.items():
        config = load_config(write(change(quickstart, place, ["runs/first", name])))
        with pytest.raises(InputError) as caught:
            check_earlier(config.search.warm_start)
        message = str(caught.value)
        assert message.startswith(f"search.warm_start.1: {tmp_path / name}")
        assert all(word in message for word in words)
    assert "search.warm_start: must be a list" in refusal(write(change(quickstart, place, "runs")))
    assert "search.warm_start.0:" in refusal(write(change(quickstart, place, [3])))


def test_without_a_rule_and_a_stopper_there_is_one_rung():
    space = {"Training.batch_size": Parameter(choices=(8,))}
    assert SearchConfig(trials=1, rungs="none", space=space).rung_epochs(18) == (18,)
    search = SearchConfig.model_validate(
        {"trials": 1, "rungs": "none", "patience": {"epochs": 4}, "space": space}
    )
    assert search.rung_epochs(18) == (2, 6, 18)


def test_a_pruner_has_its_options():
    pruner = build_pruner(
        {
            "type": "PatientPruner",
            "patience": 3,
            "wrapped_pruner": {"type": "PercentilePruner", "percentile": 25.0},
        }
    )
    assert vars(pruner)["_patience"] == 3
    assert vars(vars(pruner)["_wrapped_pruner"])["_percentile"] == 25.0
    named = {"type": "PatientPruner", "patience": 3, "wrapped_pruner": "MedianPruner"}
    assert type(vars(build_pruner(named))["_wrapped_pruner"]).__name__ == "MedianPruner"


def test_a_sampler_has_its_options_and_the_seed():
    options = {
        "type": "PartialFixedSampler",
        "fixed_params": {"width": 8},
        "base_sampler": {
            "type": "NSGAIISampler",
            "population_size": 7,
            "mutation": "PolynomialMutation",
        },
    }
    first, again = (vars(build_sampler(options, {}, seed=5))["_base_sampler"] for _ in range(2))
    assert vars(first)["_population_size"] == 7
    assert first._rng.rng.random() == again._rng.rng.random()


def test_steps_are_counted_in_decimals():
    parameter = Parameter(float=(0.1, 0.3), step=0.2)  # in binary, 0.3 - 0.1 is less than 0.2
    assert parameter.bounds == (0.1, 0.3)


def large_space():
    """The six types with their own parameters, and what else can vary."""
    shipped = Path(__file__).resolve().parents[2] / "configs" / "hydragnn_hpo.yaml"
    space: dict[str, Any] = yaml.safe_load(shipped.read_text())["search"]["space"]
    return space | {
        "Architecture.activation_function": {"choices": ["silu", "tanh", "gelu"]},
        "Training.Optimizer.type": {"choices": ["AdamW", "Adam", "SGD"]},
        "Training.Optimizer.weight_decay": {"float": [1e-6, 1e-1], "log": True},
        "Training.precision": {"choices": ["fp32", "bf16", "fp64"]},
        "Training.gradient_clip": {"float": [0.0, 10.0], "step": 0.5},
        "Training.ema_decay": {"float": [0.0, 0.999]},
        "Training.accumulation_steps": {"int": [1, 4]},
    }


def test_a_space_of_thirty_parameters_loads(write, configs):
    values = yaml.safe_load((configs / "hydragnn_hpo.yaml").read_text())
    values["network"] = json.loads((configs / "hydragnn" / "potential.json").read_text())
    values["search"]["space"] = large_space()
    assert len(load_config(write(values)).search.space) == 30


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


@settings(max_examples=200, deadline=None)
@given(parameter=ranges(), data=st.data())
def test_a_domain_holds_its_steps_and_nothing_between(parameter, data):
    assert parameter.bounds is not None and parameter.step is not None
    given_range = parameter.int or parameter.float
    assert given_range is not None
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
