"""The campaign of docs/migration.md is one, with a network like HydraGNN's and with HydraGNN's own
file (``pytest --hydragnn=PATH-OF-A-CHECKOUT``)."""

import json
from pathlib import Path

import pytest
from page_cases import blocks

from hydragnn_flow import load_config

THEIRS = Path("examples/multidataset_hpo_sc26/gfm_mlip.json")
LIKE_THEIRS = {
    "mpnn_type": "MACE",
    "enable_interatomic_potential": True,
    "edge_features": None,
    "output_heads": {"graph": {"num_headlayers": 3, "dim_headlayers": [128, 128, 128]}},
    "task_weights": [1.0],
    "energy_peratom_weight": 1.0,
    "force_weight": 10.0,
}
OUTPUTS = {
    "output_names": ["graph_energy"],
    "output_index": [0],
    "output_dim": [1],
    "type": ["graph"],
}


@pytest.mark.parametrize("whose", ["like theirs", "theirs"])
def test_the_campaign_of_the_page_is_one(tmp_path, pytestconfig, whose):
    file = Path(__file__).with_name("hydragnn.json")
    network = json.loads(file.read_text(encoding="utf-8"))
    network["NeuralNetwork"]["Architecture"] |= LIKE_THEIRS
    network["NeuralNetwork"]["Variables_of_interest"] |= OUTPUTS
    if whose == "theirs":
        checkout = pytestconfig.getoption("--hydragnn")
        if checkout is None:
            pytest.skip("needs a checkout of HydraGNN, named by --hydragnn=PATH")
        network = json.loads((checkout / THEIRS).read_text(encoding="utf-8"))
    # What the page says has to be settled.
    section = network["NeuralNetwork"]
    section["Training"] |= {"num_epoch": 20, "batch_size": 200}
    section["Architecture"] |= {"truncated_neighbours": "allow", "activation_function": "silu"}
    (tmp_path / "gfm_mlip.json").write_text(json.dumps(network), encoding="utf-8")
    (text,) = (block.text for block in blocks("text") if block.text.startswith("name: gfm"))
    (tmp_path / "gfm.yaml").write_text(text, encoding="utf-8")
    config = load_config(tmp_path / "gfm.yaml")
    assert config.search.trials == 200
    parameters = {
        "Architecture.mpnn_type": "SchNet",
        "Architecture.num_conv_layers": 3,
        "Architecture.hidden_dim": 256,
        "Architecture.output_heads.graph.num_headlayers": 2,
        "Architecture.output_heads.graph.dim_headlayers": 300,
        "Architecture.force_weight": 50.0,
        "Training.Optimizer.learning_rate": 1e-4,
    }
    assert config.search.space.keys() == parameters.keys()
    trial = config.network_with(parameters)
    heads = trial.Architecture.output_heads.graph
    assert [head.dim_headlayers[: head.num_headlayers] for head in heads] == [(300, 300)] * 3
