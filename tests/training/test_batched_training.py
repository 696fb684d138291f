"""What fills a step: `Training.batch_size`, or HydraGNN's `Training.Batching`."""

import numpy as np
import pytest
import torch
from segment_cases import make_spec, network_with

from hydragnn_flow.config import load_network
from hydragnn_flow.data import GraphStore
from hydragnn_flow.errors import InputError
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.plan.batching import Budget
from hydragnn_flow.training.runner import run_segment
from hydragnn_flow.training.trainer import Trainer

# As HydraGNN's documentation shows it.
HYDRAGNN = {
    "mode": "node_budget",
    "max_nodes": 4096,
    "max_graphs": 64,
    "oversized_sample": "error",
    "shuffle": True,
    "seed": 0,
}


def budget(batching):
    return Budget.of(load_network(network_with(Training__Batching=batching)))


def trainer(folder, store, network):
    spec = make_spec(folder, store, 30, network=network)
    return Trainer(spec, store, torch.device("cpu"), World())


def test_the_budget_is_hydragnns():
    assert budget(HYDRAGNN) == Budget(graphs=64, atoms=4096)
    only_nodes = {"mode": "node_budget", "max_nodes": 50, "drop_last": False}
    assert budget(only_nodes) == Budget(atoms=50)
    ours = {**only_nodes, "max_edges": 900, "oversized_sample": "skip", "shuffle": None}
    assert budget(ours) == Budget(atoms=50, edges=900, oversized="skip")


@pytest.mark.parametrize("batching", [None, {}, {"mode": "fixed"}, {**HYDRAGNN, "mode": "fixed"}])
def test_batch_size_counts_otherwise(batching):
    assert budget(batching) == Budget(graphs=4)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("shuffle", False, "'shuffle' cannot be honoured: graphs are shuffled anew"),
        ("drop_last", True, "'drop_last' cannot be honoured: every graph is trained on"),
        ("seed", 7, "'seed' cannot be honoured: the run's seed"),
        ("max_node", 7, "unknown key 'max_node'; did you mean 'max_nodes'"),
        ("max_nodes", None, "needs max_nodes"),
        ("max_nodes", 0, "greater than or equal to 1"),
        ("max_graphs", True, "max_graphs must be a whole number"),
        ("oversized_sample", "drop", "'error', 'single' or 'skip'"),
        ("mode", "edges", "'fixed' or 'node_budget'"),
    ],
)
def test_what_cannot_be_honoured_is_refused(key, value, expected):
    with pytest.raises(InputError, match=r"network: Training\.Batching") as caught:
        budget({**HYDRAGNN, key: value})
    assert expected in str(caught.value)


def test_graphs_beyond_the_budget(tmp_path, alloy_store):
    sizes = alloy_store["trainset"].n_atoms
    limits = {"mode": "node_budget", "max_nodes": int(sizes.max()) - 1}

    def spec(policy):
        network = network_with(Training__Batching=limits | {"oversized_sample": policy})
        return make_spec(tmp_path / policy, alloy_store, 2, network=network)

    with pytest.raises(InputError, match=r"trainset: graph \d+ has .*max_nodes"):
        run_segment(spec("error"))
    for policy in ("single", "skip"):
        result = run_segment(spec(policy))
        assert result.status == "ok"
        plan = trainer(tmp_path / policy, alloy_store, spec(policy).network).plan(0)
        seen = sorted(np.concatenate([step.order for step in plan]).tolist())
        kept = sizes < sizes.max() if policy == "skip" else sizes > 0
        assert seen == np.flatnonzero(kept).tolist()


def test_a_stream_trains_and_evaluates_like_memory(tmp_path, blocks):
    network = network_with(Training__batch_size=3)
    spec = make_spec(tmp_path / "t", GraphStore.open(blocks), 6, network=network, mode="stream")
    result = run_segment(spec)
    assert (result.status, result.to_epoch) == ("ok", 6)
    training = [row[1] for row in result.history]
    assert training[-1] < 0.8 * training[0]
    judged = []
    for mode in ("stream", "memory"):
        again = trainer(tmp_path / "t", GraphStore.open(blocks, mode), network)
        assert again.progress.epoch == 6
        judged.append(again.evaluate(again.val)[0])
    assert judged[0] == pytest.approx(judged[1], rel=1e-6)
