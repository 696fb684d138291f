"""Trainings whose epochs are parts of a budget, judged by some graphs, drawn from data sets."""

from collections import Counter

import numpy as np
import pytest
import torch
from segment_cases import changed, network_with
from training_cases import segment, trainer_of

from hydragnn_flow.data import GraphStore, Target, write_store
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.plan import epochs as epochs_module
from hydragnn_flow.training.plan.sampling import judged_by
from hydragnn_flow.training.runner import run_segment
from hydragnn_flow.training.trainer import Trainer


class Seeing(Trainer):
    """Remembers the graphs of its steps."""

    def run_seen(self):
        seen: list[list[int]] = []
        step_of = self.train_step

        def step(step, batch):
            seen.append(step.order.tolist())
            return step_of(step, batch)

        self.train_step = step  # type: ignore[method-assign]
        self.run()
        return seen


def check_passes(steps, n):
    """Every graph comes once before any comes twice."""
    drawn = [graph for graphs in steps for graph in graphs]
    for first in range(0, len(drawn) - n + 1, n):
        assert sorted(drawn[first : first + n]) == [*range(n)]


def test_a_budget_in_steps_is_divided_into_epochs_that_go_on(tmp_path, alloy_store):
    """20 steps in 6 epochs, over epochs and segments."""
    seen: list[list[int]] = []
    for until in (2, 6):
        one = trainer_of(tmp_path / "t", alloy_store, until, Seeing, budget=("steps", 20))
        seen += one.run_seen()
    assert [len(graphs) for graphs in seen] == [4] * 20
    assert one.progress.epoch == 6
    check_passes(seen, len(alloy_store["trainset"]))
    result = run_segment(changed(one.spec, directory=str(tmp_path / "u")))
    assert (result.steps, result.graphs_per_step) == (20, 4.0)
    assert [row[0] for row in result.history] == [1, 2, 3, 4, 5, 6]


def test_a_budget_in_samples_is_the_same_for_all_sizes_of_a_step(tmp_path, alloy_store):
    for size in (2, 7):
        changes = {"Training__batch_size": size, "budget": ("samples", 50)}
        one = trainer_of(tmp_path / str(size), alloy_store, 6, Seeing, **changes)
        assert sum(map(len, one.run_seen())) == 50


def test_epochs_are_judged_by_the_same_graphs_in_all_trials(tmp_path, alloy_store):
    """But a member predicts the whole split at its end."""
    val = alloy_store["valset"]
    parts = [judged_by(val, (4, seed)) for seed in (0, 0, 1)]
    assert judged_by(val, None) is judged_by(val, (len(val), 3)) is val
    energies = [part.target("energy").ravel().tolist() for part in parts]
    assert energies[0] == energies[1] != energies[2]
    assert {*energies[0]} <= {*val.target("energy").ravel().tolist()}
    part = parts[0]

    one = trainer_of(tmp_path / "t", alloy_store, 2, subset=(4, 0), number=3)
    one.run()
    predicted = load_checkpoint(tmp_path / "t" / FILE)["predicted"]
    assert {name: len(found["energy"]) for name, found in predicted.items()} == {"4 of valset": 4}
    errors = np.abs(predicted["4 of valset"]["energy"].numpy() - part.target("energy"))
    per_atom = float((errors.ravel() / part.n_atoms).mean())
    assert one.progress.metrics["energy_mae_per_atom"] == pytest.approx(per_atom, rel=1e-4)

    member = segment(tmp_path / "m", alloy_store, 2, kind="member", subset=(4, 0))
    assert run_segment(member).status == "ok"
    predicted = load_checkpoint(member.folder / FILE)["predicted"]
    assert len(predicted["valset"]["energy"]) == len(val)


HEAD = {"num_sharedlayers": 1, "dim_sharedlayers": 4, "num_headlayers": 1, "dim_headlayers": [4]}
OF_BRANCHES = network_with(
    Architecture__enable_interatomic_potential=False,
    Architecture__output_heads={
        "graph": [{"type": f"branch-{n}", "architecture": HEAD} for n in range(2)]
    },
    Variables_of_interest__type=["graph"],
)


@pytest.fixture(scope="module")
def store(tmp_path_factory, alloy_store):
    """The small store; the first five graphs of each split are of one branch."""
    splits = {name: list(alloy_store[name]) for name in alloy_store.splits}
    for graphs in splits.values():
        for number, graph in enumerate(graphs):
            graph.dataset_name = torch.tensor([[int(number >= 5)]])
    path = tmp_path_factory.mktemp("branches") / "store"
    return write_store(path, splits, targets={"energy": Target(level="graph", dim=1)}, cutoff=4.0)


def test_data_sets_contribute_equally_or_by_weights(tmp_path, store):
    """As many graphs as there are, of which those of the small one come more often."""
    n = len(store["trainset"])
    for sampling, part in (("equal", 0.5), ({"0": 1, "1": 3}, 0.25)):
        one = trainer_of(tmp_path / str(part), store, 40, network=OF_BRANCHES, sampling=sampling)
        drawn: Counter[int] = Counter()
        for epoch in range(40):
            steps = one.plan(epoch)
            assert sum(step.graphs for step in steps) == n
            drawn.update(int(graph) for step in steps for graph in step.order)
            one.progress.start += n
        small = sum(drawn[graph] for graph in range(5)) / drawn.total()
        assert small == pytest.approx(part, abs=0.03)
        for graphs in (range(5), range(5, n)):
            counts = [drawn[graph] for graph in graphs]
            assert max(counts) - min(counts) <= 1
    result = run_segment(changed(one.spec, until_epoch=2))
    assert (result.status, result.to_epoch) == ("ok", 2)


def test_the_runs_of_branches_are_known_without_reading_graphs(store):
    runs = [(0, 5), (1, len(store["trainset"]) - 5)]
    with GraphStore.open(store.path, "random") as again:
        assert again["trainset"].branch_runs.pairs == runs
        assert "_reader" not in vars(again["trainset"])
    (shard,) = store.manifest.shards
    # A store that does not say has them read, and one without branches has one.
    untold = shard.model_copy(update={"branch_runs": {}})
    manifest = store.manifest.model_copy(update={"shards": [untold]})
    with GraphStore(store.path, manifest, "random") as old:
        assert old["trainset"].branch_runs.pairs == runs


@pytest.mark.parametrize("mode", ["memory", "stream"])
def test_whole_epochs_of_a_large_split_are_planned_while_they_are_trained(
    tmp_path, blocks, monkeypatch, mode
):
    monkeypatch.setattr(epochs_module, "_MOST_GRAPHS", 5)
    with GraphStore.open(blocks, mode) as store:
        seen = trainer_of(tmp_path / "t", store, 3, Seeing, mode=mode).run_seen()
        n = len(store["trainset"])
    assert sum(map(len, seen)) == 3 * n
    check_passes(seen, n)
