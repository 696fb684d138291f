"""Rules between parameters: no sampler breaks one, and what a trial has already stays."""

import optuna
import pytest

from hydragnn_flow.config import Parameter, SearchConfig
from hydragnn_flow.config.domain import Rule
from hydragnn_flow.config.optuna_classes import SAMPLERS
from hydragnn_flow.config.search_checks import check_space
from hydragnn_flow.errors import InputError
from hydragnn_flow.search.records import suggest
from hydragnn_flow.search.samplers.ruled import sampler_of

SPACE = {
    "net.width": {"int": [8, 200], "log": True},
    "net.heads": {"choices": [1, 2, 4, 8]},
    "net.kind": {"choices": ["deep", "flat"]},
    "rate": {"float": [1e-4, 1e-1], "log": True},
    "net.depth": {"int": [2, 12], "when": {"net.kind": ["deep"]}},
}
RULES = ("width % heads == 0", "kind != 'deep' or depth < width / 10", "not rate * width > 5")


def search(sampler="random", where=RULES, **more):
    section = {"trials": 99, "space": SPACE, "where": where, "sampler": sampler}
    return SearchConfig.model_validate(section | more)


def study_of(config):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(sampler=sampler_of(config, seed=3))


def run(config, study, count, loss=lambda values: abs(values["net.width"] - 60) + values["rate"]):
    for _ in range(count):
        trial = study.ask()
        values = suggest(trial, config.space)
        assert all(rule.holds(values) for rule in config.rules), values
        assert all(config.space[name].contains(value) for name, value in values.items())
        study.tell(trial, loss(values))
        yield values


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_no_proposal_breaks_a_rule(sampler):
    config = search(sampler)
    study = study_of(config)
    try:
        found = [*run(config, study, 14 if sampler == "gp" else 60)]
    finally:
        study.sampler.close()
    assert len({values["net.heads"] for values in found}) > 1
    assert {values["net.kind"] for values in found} == {"deep", "flat"}


def test_no_proposal_exceeds_a_limit_where_a_number_decides_what_exists():
    space = {"layers": {"int": [1, 8]}, "other": {"int": [1, 100]}}
    space["width"] = {"int": [1, 100], "when": {"layers": [2, 3, 4, 5]}}
    config = search(space=space, where=["width % 7 == 0"], constraints={"parameters": 200})
    foreseen = lambda of: {"parameters": of["layers"] * of["other"] + of.get("width", 0)}  # noqa: E731
    study = optuna.create_study(sampler=sampler_of(config, 1, foreseen=foreseen))
    for values in run(config, study, 100, lambda values: 0.0):
        assert foreseen(values)["parameters"] <= 200


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_no_proposal_of_thousands_breaks_a_rule(sampler):
    config, count = search(sampler), {"gp": 60, "tpe": 500, "auto": 500}.get(sampler, 2000)
    study = study_of(config)
    assert len([*run(config, study, count)]) == count
    getattr(study.sampler, "close", lambda: None)()


def test_a_proposal_moves_to_its_neighbour_and_only_where_the_rule_looks():
    config = search(where=RULES[:1])
    moved = kept = 0
    plain, ruled = (study_of(one) for one in (search(where=()), config))
    for _ in range(40):
        proposed, found = (suggest(study.ask(), config.space) for study in (plain, ruled))
        others = proposed.keys() - {"net.width", "net.heads"}
        assert {name: found.get(name) for name in others} == {n: proposed[n] for n in others}
        if config.rules[0].holds(proposed):
            kept += 1
            assert found == proposed
        elif found["net.heads"] == proposed["net.heads"]:
            moved += 1
            ratio = found["net.width"] / proposed["net.width"]
            assert 0.5 < ratio < 2
    assert kept > 5
    assert moved > 5


def test_enqueued_values_stay_and_an_interrupted_suggestion_is_completed_within_the_rules():
    config = search(enqueue=[{"net.width": 24, "net.kind": "deep"}])
    study = study_of(config)
    study.enqueue_trial(dict(config.enqueue[0]))
    values = next(run(config, study, 1))
    assert (values["net.width"], values["net.kind"], values["net.depth"]) == (24, "deep", 2)
    trial = study.ask()
    trial.suggest_int("net.width", 8, 200, log=True)  # then the driver was killed
    begun = trial.params
    resumed = suggest(optuna.Trial(study, trial._trial_id), config.space)
    assert resumed.items() >= begun.items()
    assert all(rule.holds(resumed) for rule in config.rules)


def test_linked_rules_are_met_by_many_different_trials():
    names = "abc"
    space = {name: {"int": [1, 40]} for name in names} | {"rate": {"float": [1e-4, 1.0]}}
    config = search(space=space, where=["a == b", "b == c"])
    study = study_of(config)
    found = [suggest(study.ask(), config.space) for _ in range(30)]
    assert all(values["a"] == values["b"] == values["c"] for values in found)
    assert len({values["rate"] for values in found}) == 30
    assert len({values["a"] for values in found}) > 12


def test_trials_are_hardly_repeated_while_there_are_others():
    config = search("auto", space={name: {"int": [0, 6]} for name in "ab"}, where="a + b <= 6")
    study = study_of(config)
    try:
        found = [(v["a"], v["b"]) for v in run(config, study, 20, lambda v: -v["a"] - v["b"])]
    finally:
        study.sampler.close()
    assert len({*found}) >= 18


@pytest.mark.parametrize(
    "sampler", [{"type": "BruteForceSampler"}, {"type": "GridSampler", "search_space": {}}, "auto"]
)
def test_samplers_that_look_at_their_trial_and_values_without_a_choice(sampler):
    space = {"w": {"choices": [8, 12, 16]}, "h": {"choices": [1, 2, 3]}}
    if sampler == "auto":
        space["one"] = {"float": [0.5, 0.5]}
    elif "search_space" in sampler:
        sampler = {**sampler, "search_space": {k: v["choices"] for k, v in space.items()}}
    config = search(sampler, space=space, where="w % h == 0")
    study = study_of(config)
    try:
        for values in run(config, study, 6, lambda values: values["w"]):
            assert values["w"] % values["h"] == 0
    finally:
        getattr(study.sampler, "close", lambda: None)()


def domains(**space):
    return {name: Parameter.model_validate(domain) for name, domain in space.items()}


@pytest.mark.parametrize(
    ("text", "values", "holds"),
    [
        ("depth > 3", {"net.kind": "flat"}, True),
        ("depth > 3", {"net.depth": 3}, False),
        ("1 / depth > 0", {"net.depth": 0}, False),
        ("0 < rate < 0.1", {"rate": 0.1}, False),
        ("net.kind in ['deep'] and not depth > 3", {"net.kind": "deep", "net.depth": 3}, True),
        ("kind != 'deep'", {"net.kind": "deep"}, False),
        ("a.0.b + share == 0.3", {"a.0.b": 0.1, "share": 0.2}, True),
        ("a.1.b >= 1 and flag", {"a.1.b": 1.0, "flag": True}, True),
        ("flag == False", {"flag": True}, False),
        ("share % 2 == 0 or share > 0.1", {"share": 0.05}, False),
        ("mixed == 0.1", {"mixed": "auto"}, False),
        ("learning-rate < 0.5 or lambda > 1", {"learning-rate": 0.5, "lambda": 2.0}, True),
    ],
)
def test_what_a_rule_says(text, values, holds):
    reals = ("a.0.b", "a.1.b", "share", "learning-rate", "lambda", "rate")
    space = {name: {"float": [0.0, 2.0]} for name in reals} | {"flag": {"choices": [True, False]}}
    space |= {"dims.0": {"int": [1, 3]}, "mixed": {"choices": ["auto", 0.1]}}
    rule = Rule(text, domains(**SPACE | space))
    assert rule.holds(values) is holds
    assert values.keys() >= {*rule.paths} or holds


@pytest.mark.parametrize("text", ["b > 1", "a.0.b > 1 and c.b > 1 and b > 1"])
def test_an_end_that_two_paths_have_is_refused(text):
    space = domains(**{"a.0.b": {"int": [1, 2]}, "c.b": {"int": [1, 2]}})
    with pytest.raises(ValueError, match=r"'b' may be a\.0\.b or c\.b"):
        Rule(text, space)


def test_the_door_leaves_out_pairs_that_no_trial_has():
    space = {
        "Architecture.hidden_dim": Parameter(int=(8, 64)),
        "Architecture.num_conv_layers": Parameter(choices=(2, 4)),
    }

    class Network:
        def unread_keys(self):
            return ()

    def network_with(values):
        if values.get("Architecture.hidden_dim", 8) % values.get("Architecture.num_conv_layers", 4):
            raise InputError("no multiple")
        return Network()

    with pytest.raises(ValueError, match="no multiple"):
        check_space(space, network_with)
    check_space(space, network_with, [Rule("hidden_dim % num_conv_layers == 0", space)])
    space["Architecture.num_gaussians"] = Parameter(int=(10, 100))

    def of_three(values):
        if len(values) == 3 and values["Architecture.num_gaussians"] > 11:
            raise InputError("three of them")
        return network_with(values)

    check_space(space, of_three, [Rule("hidden_dim % num_conv_layers == 0", space)])
    Network.unread_keys = lambda self: ("Architecture.num_gaussians",)
    with pytest.raises(ValueError, match=r"num_gaussians: changes nothing here"):
        check_space(space, network_with, [Rule("hidden_dim % num_conv_layers == 0", space)])
