"""Fused trainings are those of separate ones: losses, weights, averages and optimiser states."""

from typing import Any

import pytest
import torch
from data_set_cases import branches, two_level_store
from segment_cases import make_spec, network_with
from training_cases import CPU, masked_store

from hydragnn_flow.data import GraphStore, write_store
from hydragnn_flow.training.checkpoints.checkpoint import load_checkpoint
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.fused import FusedTrainer, run_fused
from hydragnn_flow.training.fused import trainer as fused_trainer
from hydragnn_flow.training.predict import KEY
from hydragnn_flow.training.runner import run_segment
from hydragnn_flow.training.trainer import Trainer

PROPERTIES = {
    "Architecture__enable_interatomic_potential": False,
    "Architecture__energy_peratom_weight": 0.0,
    "Architecture__force_weight": 0.0,
    "Architecture__output_heads": {
        "graph": {"dim_sharedlayers": 8, "dim_headlayers": [8]},
        "node": {"num_headlayers": 1, "dim_headlayers": [8], "type": "mlp"},
    },
    "Variables_of_interest": {"output_names": ["energy", "forces"], "type": ["graph", "node"]},
}
# What members have of their own.
OWN: list[dict[str, Any]] = [
    {"Optimizer": {"learning_rate": 1e-3, "weight_decay": 0.02}, "gradient_clip": 0.5},
    {"Optimizer": {"learning_rate": 2e-3}, "ema_decay": 0.0},
    {"Optimizer": {"learning_rate": 5e-4, "weight_decay": 0.0}, "Scheduler": {"type": "cosine"}},
]


def properties(**changes):
    return network_with(**(PROPERTIES | changes))


def specs_of(folder, store, network, *, until=1, **changes):
    """Segments of one shape that differ in all that they may differ in."""
    folder.mkdir(exist_ok=True)
    found, training = [], network["Training"]
    for number, own in enumerate(OWN):
        optimizer = {"Optimizer": training["Optimizer"] | own["Optimizer"]}
        mine = network | {"Training": training | own | optimizer}
        values = {"network": mine, "seed": 5 + number, "number": number} | changes
        found.append(make_spec(folder / str(number), store, until, **values))
    return found


def fused(specs, store):
    trainer = FusedTrainer(specs, store, CPU)
    trainer.run(probe=False)
    assert not any(trainer.ended.values())
    return trainer


def tensors_of(trainer):
    """All that a training has become."""
    found = {f"model {name}": value for name, value in trainer.model.state_dict().items()}
    found |= {f"best {name}": value for name, value in trainer.best.items()}
    averages = trainer.average.state_dict()["weights"]
    found |= {f"average {name}": value for name, value in averages.items()}
    for number, state in trainer.optimizer.state_dict()["state"].items():
        found |= {f"{name} {number}": torch.as_tensor(v) for name, v in state.items()}
    return found


def assert_same(folder, store, network, **changes):
    """Train members separately and fused, in double precision, and compare all of it."""
    network = network | {"Training": network["Training"] | {"precision": "fp64"}}
    alone = [
        Trainer(spec, store, CPU, World())
        for spec in specs_of(folder / "alone", store, network, **changes)
    ]
    for trainer in alone:
        trainer.run()
    together = fused(specs_of(folder / "fused", store, network, **changes), store)
    for one, other in zip(alone, together.members, strict=True):
        assert len(other.progress.history) == len(one.progress.history) > 0
        for row, wanted in zip(other.progress.history, one.progress.history, strict=True):
            assert row == pytest.approx(wanted, rel=1e-9), (row, wanted)
        mine, theirs = tensors_of(other), tensors_of(one)
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            difference = (mine[name].double() - value.double()).abs().max() if value.numel() else 0
            assert difference <= 1e-9, (name, float(difference))


# Every type, and beside it something else that members may have in common.
NETWORKS: dict[str, dict[str, Any]] = {
    "SchNet, limits of atoms": properties(
        Architecture__mpnn_type="SchNet",
        Training__Batching={"mode": "node_budget", "max_nodes": 40, "max_graphs": 4},
    ),
    "PAINN, Muon, rmse": properties(
        Architecture__mpnn_type="PAINN",
        Training__Optimizer={"type": "Muon", "learning_rate": 1e-3, "weight_decay": 0.02},
        Training__loss_function_type="rmse",
    ),
    "SAGE, noise, convolutions as heads": properties(
        Architecture__mpnn_type="SAGE",
        Training__loss_function_type="GaussianNLLLoss",
        Architecture__output_heads={
            "graph": {"dim_sharedlayers": 8, "dim_headlayers": [8]},
            "node": {"num_headlayers": 2, "dim_headlayers": [8, 8], "type": "conv"},
        },
    ),
    "GIN, graph norm, PReLU": properties(
        Architecture__mpnn_type="GIN",
        Architecture__normalization="graph",
        Architecture__activation_function="prelu",
    ),
    "EGNN, atoms that move": properties(
        Architecture__mpnn_type="EGNN", Architecture__equivariance=True
    ),
    "EGNN, noise of a potential": network_with(
        Architecture__mpnn_type="EGNN",
        Training__loss_function_type="GaussianNLLLoss",
        Training__nll_beta=0.5,
    ),
    "PAINN, potential": network_with(Architecture__mpnn_type="PAINN"),
    "PNA, connections": properties(Architecture__mpnn_type="PNA"),
    "PNA, SGD, again in the backward pass": network_with(
        Architecture__mpnn_type="PNA",
        Training__Optimizer={"type": "SGD", "learning_rate": 1e-3},
        Training__conv_checkpointing=True,
    ),
    "PNAPlus": network_with(Architecture__mpnn_type="PNAPlus"),
    "PNAEq": network_with(Architecture__mpnn_type="PNAEq"),
    "CGCNN, frozen": network_with(
        Architecture__mpnn_type="CGCNN", Architecture__freeze_conv_layers=True
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_members_are_the_same(name, alloy_store, tmp_path):
    # Few steps are enough: what is wrong would be so in the first.
    assert_same(tmp_path, alloy_store, NETWORKS[name])


def test_attributes_encodings_and_features_of_graphs_are_those_of_the_member(alloy_store, tmp_path):
    torch.manual_seed(1)
    splits = {name: list(alloy_store[name]) for name in alloy_store.splits}
    for graph in (graph for graphs in splits.values() for graph in graphs):
        lengths = torch.rand(graph.num_edges, 1)
        graph.edge_attr = torch.cat([lengths, torch.randn(graph.num_edges, 1)], dim=1)
        graph.graph_attr = torch.randn(3)
    write_store(tmp_path / "store", splits, targets=alloy_store.manifest.targets, cutoff=4.0)
    store = GraphStore.open(tmp_path / "store")
    network = properties(
        Architecture__mpnn_type="CGCNN",
        Architecture__edge_features=["lengths", "other"],
        Architecture__use_graph_attr_conditioning=True,
        Architecture__graph_attr_conditioning_mode="film",
    )
    assert_same(tmp_path, store, network)


def test_missing_labels_and_weights_are_those_of_the_member(alloy_store, tmp_path):
    store = masked_store(tmp_path / "s", alloy_store)
    assert_same(tmp_path, store, network_with(Architecture__mpnn_type="PAINN"))


def test_branches_of_several_data_sets_are_those_of_the_member(tmp_path):
    store = two_level_store(tmp_path)
    network = network_with(Architecture__output_heads={"node": branches()})
    assert_same(tmp_path, store, network, sampling="equal", budget=("steps", 12))


def test_a_checkpoint_of_either_kind_is_continued_by_the_other(alloy_store, tmp_path):
    def run(folder, first, second):
        for until, how in ((1, first), (2, second)):
            network = properties(Architecture__mpnn_type="SAGE")
            specs = specs_of(tmp_path / folder, alloy_store, network, until=until, kind="member")
            outcomes = how(specs)
            assert [outcome.status for outcome in outcomes] == ["ok"] * 3
        return [load_checkpoint(spec.folder / outcomes[0].checkpoint) for spec in specs]

    def alone(specs):
        return [run_segment(spec) for spec in specs]

    def together(specs):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fused_trainer, "_PAYS", 1e9)
            return run_fused(specs)

    whole = run("alone", alone, alone)
    for first, second in ((alone, together), (together, alone)):
        folder = f"{first.__name__} {second.__name__}"
        for state, expected in zip(run(folder, first, second), whole, strict=True):
            assert state.keys() == expected.keys() and state[KEY].keys() == expected[KEY].keys()
            assert state["progress"]["history"] == [
                pytest.approx(row, rel=1e-5) for row in expected["progress"]["history"]
            ]
            for key in ("model", "best"):
                for name, value in expected[key].items():
                    assert torch.allclose(state[key][name], value, atol=1e-5), name
