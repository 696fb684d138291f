"""Searches for the fastest training: what they may ask for, and what follows from it."""

import pytest
import yaml

from hydragnn_flow.config import RunConfig, load_config
from hydragnn_flow.errors import InputError

MEMBERS = {"size": 2, "epochs": 18}
GCDS = {"Resources.gcds": {"choices": [1, 2]}}
PRECISION = {"Training.precision": {"choices": ["fp32", "fp64"]}}
PARTS = {"Training.accumulation_steps": {"choices": [1, 2]}}


@pytest.fixture
def load(quickstart, write):
    """A configuration of a search, with changes to it, and its other sections."""

    def loaded(search, ensemble=None, resources=None):
        values = {key: quickstart[key] for key in ("name", "data", "network")}
        values["search"] = {"trials": 4, "space": PRECISION, **search}
        values |= {"ensemble": ensemble} if ensemble else {}
        values |= {"resources": resources} if resources else {}
        return load_config(write(values))

    return loaded


def test_the_configuration_that_ships(configs):
    config = load_config(configs / "strategy.yaml")
    assert config.ensemble is None
    assert config.search.directions == ("maximize",)
    assert (config.num_epoch, config.rungs) == (1, (1,)), "nothing is judged on the way"
    assert config.search.failures.out_of_memory == "record"
    lines = (configs / "strategy.yaml").read_text().splitlines()
    search = yaml.safe_load("\n".join(lines))["search"]
    assert len(search["space"]) >= 5


@pytest.mark.parametrize(
    ("search", "ensemble", "said"),
    [
        ({"objectives": ["throughput"]}, MEMBERS, ("measures none", "remove ensemble")),
        ({"objectives": ["seconds", "joules"]}, MEMBERS, ("seconds and joules measures none",)),
        ({}, None, ("ensemble is missing; give it", "this one is for val_error")),
        ({"objectives": ["val_loss", "throughput"]}, None, ("ensemble is missing",)),
        ({"objectives": ["throughput", "val_loss"]}, MEMBERS, ("rungs judge", "with val_loss")),
        ({"objectives": ["throughput", "seconds"]}, None, ("say the same", "Resources.gcds")),
        ({"objectives": ["seconds"], "budget": {"steps": 5}}, None, ("steps = 5", "as 20")),
        ({"objectives": ["joules"], "patience": {"epochs": 2}}, None, ("patience", "remove it")),
        ({"objectives": ["joules"], "learning_curve": {}}, None, ("learning_curve predicts",)),
        ({"objectives": ["throughputs"]}, None, ("did you mean 'throughput'",)),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_named(load, search, ensemble, said):
    with pytest.raises(InputError) as error:
        load(search, ensemble)
    assert "\n" not in str(error.value)
    for words in said:
        assert words in str(error.value)


def test_speed_is_that_of_one_gcd_unless_it_is_said(load):
    config = load({"objectives": ["throughput", "seconds"], "space": {**PRECISION, **GCDS}})
    assert config.gcds({"Resources.gcds": 2}) == 2
    assert load({"objectives": ["seconds"]}).gcds({}) == 1
    assert load({"objectives": ["val_error", "throughput"]}, MEMBERS).gcds({}) == 1
    assert load({}, MEMBERS).gcds({}) is None
    assert load({"objectives": ["seconds"]}, resources={"gcds": 4}).gcds({}) == 4


@pytest.mark.parametrize(
    ("search", "ensemble", "treatment"),
    [
        ({"space": {**PRECISION, **PARTS}}, MEMBERS, "record"),
        ({"objectives": ["throughput"]}, None, "record"),
        ({"objectives": ["val_error", "throughput"]}, MEMBERS, "resize"),
        ({"objectives": ["throughput"], "failures": {"out_of_memory": "resize"}}, None, "resize"),
    ],
    ids=str,
)
def test_lack_of_memory_is_a_result_where_its_remedy_is_searched_for(
    load, search, ensemble, treatment
):
    config = load(search, ensemble)
    assert config.search.failures.out_of_memory == treatment
    again = RunConfig.model_validate(config.model_dump(mode="json"))
    assert again.search == config.search, "also when it is read from run.yaml"


def test_each_gcd_may_have_a_batch(load):
    resources = {"gcds": 2, "batch_per_gcd": True}
    assert load({"objectives": ["throughput"]}, resources=resources).batches({}) == 2
