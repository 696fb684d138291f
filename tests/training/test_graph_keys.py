"""Keys of graphs that only some networks read, from the store through training to predictions."""

from typing import Any

import numpy as np
import pytest
import torch
from calibration_cases import plain
from segment_cases import make_spec, network_with
from torch_geometric.data import Data
from training_cases import PROPERTY

from hydragnn_flow.data import Target, write_store
from hydragnn_flow.ensemble import Ensemble
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import build_model
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.predict import restore_model
from hydragnn_flow.training.runner import run_segment

TARGETS = {"gap": Target(level="graph", dim=1, unit="eV")}
HEAD = {"num_sharedlayers": 1, "dim_sharedlayers": 8, "num_headlayers": 1, "dim_headlayers": [8]}
BRANCHES = [{"type": f"branch-{n}", "architecture": HEAD} for n in range(2)]
# What a network says to read a key.
ASKING: dict[str, dict[str, Any]] = {
    "dataset_name": {"output_heads": {"graph": BRANCHES}},
    "graph_attr": {"use_graph_attr_conditioning": True},
    "pe": {"global_attn_engine": "GPS", "global_attn_heads": 2, "pe_dim": 3},
    "edge_attr": {"edge_features": ["lengths", "bond"]},
}


def network(key):
    of_graphs = {"Architecture__mpnn_type": "PNA", "Variables_of_interest__output_names": ["gap"]}
    asked = {f"Architecture__{name}": value for name, value in ASKING[key].items()}
    return network_with(**PROPERTY | of_graphs | {"Training__num_epoch": 4} | asked)


def keyed(graph, number):
    """The graph with every key, and a label that follows from the first two of them."""
    rng = torch.Generator().manual_seed(number)
    branch, heat = number % 2, torch.rand(2, generator=rng)
    pe = torch.rand(graph.num_nodes, 3, generator=rng)
    sender, receiver = graph.edge_index
    bond = torch.rand(graph.num_edges, 1, generator=rng)
    keys = {key: graph[key] for key in ("x", "pos", "cell", "pbc", "edge_index", "edge_shifts")}
    return Data(
        **keys,
        edge_attr=torch.cat([graph.edge_attr, bond], dim=1),
        graph_id=graph.graph_id,
        dataset_name=torch.tensor([[branch]]),
        graph_attr=heat[None],
        pe=pe,
        rel_pe=(pe[sender] - pe[receiver]).abs(),
        gap=3.0 * branch + heat[:1].double(),
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory, alloy_store):
    path = tmp_path_factory.mktemp("keys") / "store"
    splits = {
        name: [keyed(graph, number) for number, graph in enumerate(alloy_store[name])]
        for name in alloy_store.splits
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hydragnn_flow.data.writer.BLOCK_BYTES", 20_000)
        return write_store(path, splits, targets=TARGETS, cutoff=4.0, dtypes="compact")


def other(graph, key):
    """Another value of a key; of edge_attr in the last column."""
    values = graph.edge_attr[:, 1:] if key == "edge_attr" else graph[key]
    values.copy_(1 - values)
    return graph


def without(graph, key):
    if key == "edge_attr":
        graph.edge_attr = graph.edge_attr[:, :1]
    else:
        del graph[key]
    return graph


@pytest.mark.parametrize("key", ASKING)
def test_from_the_store_to_predictions(tmp_path, store, key):
    spec = make_spec(tmp_path / "trial", store, 4, network=network(key))
    result = run_segment(spec)
    assert (result.status, result.to_epoch) == ("ok", 4), result.reason
    assert result.history[-1][1] < result.history[0][1]
    model = restore_model(network(key), store.manifest, load_checkpoint(spec.folder / FILE)["best"])
    ensemble = Ensemble(
        (model, model), np.full(2, 0.5), {"gap": plain(1.0, 0.1, 1.0)}, store.manifest, 0.9
    )
    table = ensemble.predict(store.path, split="testset").graphs
    assert len(table) == len(store["testset"])
    assert np.isfinite(table["gap_mean"]).all()
    np.testing.assert_allclose(table["gap"], store["testset"].target("gap")[:, 0])

    def written(change):
        graphs = [change(graph, key) for graph in store["testset"]]
        path = tmp_path / change.__name__
        return write_store(path, {"trainset": graphs}, targets=TARGETS, cutoff=4.0).path

    # Predictions depend on the key that the network asks for, and need it.
    others = ensemble.predict(written(other)).graphs
    assert (np.abs(others["gap_mean"] - table["gap_mean"]) > 1e-6).all()
    file = tmp_path / "structures.xyz"
    file.write_text("2\n\nCu 0 0 0\nCu 0 0 2.5\n")
    for path in (file, written(without)):
        with pytest.raises(InputError, match=f"{key}'") as error:
            ensemble.predict(path)
        assert "\n" not in str(error.value)


def test_a_branch_that_the_network_has_not_got(tmp_path, store):
    splits = {name: list(store[name]) for name in store.splits}
    splits["valset"][0].dataset_name[:] = 2
    bad = write_store(tmp_path / "store", splits, targets=TARGETS, cutoff=4.0)
    assert bad.manifest.branches == [0, 1, 2]
    with pytest.raises(InputError, match=r"branches 0 to 1.*'dataset_name' = 2"):
        build_model(network("dataset_name"), bad)
