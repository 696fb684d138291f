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
    section = {"trials": 99, "space": SPACE, "where": where, "sampler": sampler, **more}
    return SearchConfig.model_validate(section)


def study_of(config):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(sampler=sampler_of(config, seed=3))


def run(config, study, count):
    for _ in range(count):
        trial = study.ask()
        values = suggest(trial, config.space)
        assert all(rule.holds(values) for rule in config.rules), values
        assert all(config.space[name].contains(value) for name, value in values.items())
        study.tell(trial, abs(values["net.width"] - 60) + values["rate"])
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


def test_a_rule_applies_only_while_its_parameters_exist():
    rule = Rule("depth > 3", SPACE)
    assert rule.paths == ("net.depth",)
    assert rule.holds({"net.kind": "flat"})
    assert not rule.holds({"net.depth": 3})
    assert not Rule("1 / depth > 0", SPACE).holds({"net.depth": 0})


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
