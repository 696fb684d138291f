"""GCDs of trials and members: searches for the fastest training, batches."""

import pytest

from hydragnn_flow.config import load_config

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
    assert config.search.directions == ("maximize",)
    assert (config.num_epoch, config.rungs) == (1, (1,)), "nothing is judged on the way"
    assert not config.resizes


def test_speed_is_that_of_one_gcd_unless_it_is_said(load):
    config = load({"objectives": ["throughput", "seconds"], "space": {**PRECISION, **GCDS}})
    assert config.gcds({"Resources.gcds": 2}) == 2
    assert load({"objectives": ["seconds"]}).gcds({}) == 1
    assert load({"objectives": ["val_error", "throughput"]}, MEMBERS).gcds({}) == 1
    assert load({}, MEMBERS).gcds({}) is None
    assert load({"objectives": ["seconds"]}, resources={"gcds": 4}).gcds({}) == 4


@pytest.mark.parametrize(
    ("search", "ensemble", "resizes"),
    [
        ({"space": {**PRECISION, **PARTS}}, MEMBERS, False),
        ({"objectives": ["throughput"]}, None, False),
        ({"objectives": ["val_error", "throughput"]}, MEMBERS, True),
    ],
    ids=str,
)
def test_lack_of_memory_is_a_result_where_its_remedy_is_searched_for(
    load, search, ensemble, resizes
):
    assert load(search, ensemble).resizes == resizes


PER_GCD = {"batch_per_gcd": True}


@pytest.mark.parametrize(
    ("resources", "asked", "batches"),
    [
        ({"gcds": 4}, {}, 1),
        (PER_GCD, {}, 1),
        (PER_GCD | {"gcds": 4}, {}, 4),
        (PER_GCD, {"Resources.gcds": 2}, 2),
    ],
)
def test_a_trial_has_a_batch_of_each_gcd_that_it_asks_for(load, resources, asked, batches):
    """How many were free decides nothing of a trial."""
    config = load({"objectives": ["throughput"]}, resources=resources)
    assert config.batches(asked) == batches
