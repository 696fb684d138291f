"""What is said of a configuration that is right."""

import json

import pytest

from hydragnn_flow.config import load_config, load_network
from hydragnn_flow.errors import InputError

ARCHITECTURE = ("network", "NeuralNetwork", "Architecture")
TRAINING = ("network", "NeuralNetwork", "Training")
WEIGHTS = ("energy_weight", "energy_peratom_weight", "force_weight")


@pytest.fixture
def loaded(quickstart, change, write):
    """The quickstart with some values changed, and no others in its space than the rate."""

    def load(*changes):
        values = change(quickstart, ("search", "enqueue"), [])
        rate = {"Training.Optimizer.learning_rate": {"float": [1e-4, 1e-2], "log": True}}
        values = change(values, ("search", "space"), rate)
        for place, value in changes:
            values = change(values, place, value)
        return load_config(write(values))

    return load


def test_keys_that_nothing_reads_are_named(loaded):
    unread = ((*ARCHITECTURE, "num_spherical"), 5)
    (said,) = loaded(unread, ((*TRAINING, "patience"), 3)).remarks()
    assert said.endswith(" reads: Architecture.num_spherical, Training.patience")
    zero = ((*TRAINING, "Optimizer", "use_zero_redundancy"), True)
    assert loaded(zero).remarks() == []
    (said,) = loaded(zero, ((*TRAINING, "sharding"), {"strategy": "NO_SHARD"})).remarks()
    assert said.endswith(" reads: Training.Optimizer.use_zero_redundancy")
    # One trial that reads a key is enough.
    types = {"Architecture.mpnn_type": {"choices": ["EGNN", "DimeNet"]}}
    assert loaded(unread, (("search", "space"), types)).remarks() == []


def test_what_batches_mean_is_said_of_a_hydragnn_file(loaded):
    theirs = ((*TRAINING, "perc_train"), 0.9)
    unused, batches = loaded(theirs).remarks()
    assert unused == "network: keys that change nothing here: Training.perc_train"
    assert "Training.batch_size = " in batches and "resources.batch_per_gcd: true" in batches
    atoms = ((*TRAINING, "Batching"), {"mode": "node_budget", "max_nodes": 64})
    _, batches = loaded(theirs, atoms).remarks()
    assert "Training.Batching.max_nodes = 64 is the number of atoms" in batches
    for meant in (True, False):
        assert len(loaded(theirs, (("resources",), {"batch_per_gcd": meant})).remarks()) == 1
    off = loaded(((*TRAINING, "Batching"), {"mode": "fixed", "max_nodes": 64})).remarks()
    assert off[0].endswith("change nothing here: Training.Batching.max_nodes")


def test_a_potential_with_encodings_is_told_of_its_jumps(loaded):
    attention = {"global_attn_engine": "GPS", "global_attn_heads": 8, "pe_dim": 4}
    changes = [((*ARCHITECTURE, key), value) for key, value in attention.items()]
    config = loaded(*changes)
    assert config.encodings == 4
    (said,) = config.remarks()
    assert said.startswith("network: Architecture.pe_dim: encodings change at once")
    assert loaded().encodings == loaded(changes[2]).encodings == 0
    # One trial that has attention is enough.
    engine = {"Architecture.global_attn_engine": {"choices": ["", "GPS"]}}
    space = (("search", "space"), engine)
    assert loaded(*changes[1:], space).encodings == 4


def without_weights(change, values, place):
    architecture = values
    for key in place:
        architecture = architecture[key]
    return change(values, place, {k: v for k, v in architecture.items() if k not in WEIGHTS})


def test_a_potential_without_weights_gets_some_and_says_so(loaded, quickstart, change):
    bare = without_weights(change, quickstart, ARCHITECTURE)
    architecture = bare["network"]["NeuralNetwork"]["Architecture"]
    config = loaded((ARCHITECTURE, architecture))
    (said,) = config.remarks()
    assert "Architecture.energy_peratom_weight = 40 and Architecture.force_weight = 1" in said
    # A trial with a weight of its own has the other as well.
    network = config.network_with({"Architecture.force_weight": 5.0}).Architecture
    assert (network.energy_peratom_weight, network.force_weight) == (40.0, 5.0)
    # So has the file alone, without a campaign.
    alone = load_network(bare["network"])
    assert alone == load_network(json.loads(json.dumps({"NeuralNetwork": alone.to_json()})))
    assert alone.Architecture.force_weight == 1.0


@pytest.mark.parametrize(
    ("zeros", "weights"),
    [
        (("force_weight",), (0, 40, 0)),
        (("energy_peratom_weight",), (0, 0, 1)),
        (("energy_weight",), (0, 40, 1)),
        (WEIGHTS, None),
        (("energy_peratom_weight", "force_weight"), None),
    ],
)
def test_a_zero_that_is_written_stays(zeros, weights, network, change):
    place = ("NeuralNetwork", "Architecture")
    bare = without_weights(change, network, place)
    for key in zeros:
        bare = change(bare, (*place, key), 0.0)
    if weights is None:
        with pytest.raises(InputError, match="needs a weight above zero"):
            load_network(bare)
    else:
        found = load_network(bare).Architecture
        assert tuple(getattr(found, key) for key in WEIGHTS) == weights
