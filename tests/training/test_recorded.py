"""Steps that are replayed from a recording: on a CPU, as a trace of all that torch computes."""

import itertools
import math
import sys

import numpy as np
import pytest
import torch
from device_cases import HEADS, NETWORKS, write_labelled
from segment_cases import make_spec, network_with
from torch.fx.experimental.proxy_tensor import make_fx

from hydragnn_flow.data import write_store
from hydragnn_flow.models.kernels import spline
from hydragnn_flow.models.kernels.multilinear import tracing
from hydragnn_flow.training import recorded
from hydragnn_flow.training import trainer as trainer_module
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.filled import Filler, Size, choose_sizes
from hydragnn_flow.training.measures.losses import Counts
from hydragnn_flow.training.monitor import Stopped
from hydragnn_flow.training.trainer import Trainer

EPOCHS = 8
SAME = 1e-6
SETTINGS = {
    "Training__precision": "fp64",
    "Training__Optimizer": {"type": "AdamW", "learning_rate": 2e-3},
    "Training__Scheduler": {"type": "cosine", "warmup_epochs": 1},
    "Training__gradient_clip": 1.0,
    "Training__ema_decay": 0.9,
}
CASES = {
    "AdamW": {},
    "noise": {"Training__loss_function_type": "GaussianNLLLoss"},
    "SGD": {"Training__Optimizer": {"type": "SGD", "learning_rate": 1e-3}},
    "Adagrad": {"Training__Optimizer": {"type": "Adagrad", "learning_rate": 1e-3}},
    **NETWORKS,
}
OFTEN = ("AdamW", "Adagrad", "Muon", "in parts", "noise", "GIN")


class Tracer:
    """Records what torch computes; what a recording changes is put back, as no GPU computes it."""

    trainer: Trainer

    def __init__(self, device):
        self.recorded = self.replays = 0

    def record(self, function):
        kept = [(each, each.detach().clone()) for each in self.written()]

        def run():
            function()
            return torch.zeros(())

        trace = make_fx(run)()
        with torch.no_grad():
            for tensor, before in kept:
                tensor.copy_(before)
        self.recorded += 1

        def replay():
            self.replays += 1
            with torch.no_grad():
                trace()

        return replay

    def written(self):
        trainer, steps = self.trainer, self.trainer.recorded
        states = [one for state in trainer.optimizer.state.values() for one in state.values()]
        tensors = [
            *trainer.model.parameters(),
            steps._gradient,
            *trainer.average.weights.values(),
        ]
        return [
            one
            for one in [*tensors, steps._loss, steps._taken, trainer._sums, *states]
            if torch.is_tensor(one)
        ]


@pytest.fixture
def one_size(monkeypatch):
    """To trace takes seconds, for each size anew."""
    monkeypatch.setattr(
        trainer_module,
        "choose_sizes",
        lambda batches, largest, number: choose_sizes(batches, largest, 16, most=1),
    )


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The kernels that accelerators take, which read no number on the host."""
    monkeypatch.setattr(spline, "longest_bag", lambda device: 64)
    with tracing():
        yield


@pytest.fixture(scope="module")
def labelled(tmp_path_factory, alloy_store):
    return write_labelled(tmp_path_factory.mktemp("labelled") / "store.gs", alloy_store)


def trained(folder, store, changes, epochs=EPOCHS, **options):
    network = network_with(**{**SETTINGS, **changes})
    spec = make_spec(folder, store, epochs, network=network)
    trainer = Trainer(spec, store, torch.device("cpu"), World())
    if trainer.recorded is not None:
        trainer.recorded._recorder.trainer = trainer
    trainer.run(**options)
    return trainer


def compare(folder, store, monkeypatch, changes, epochs=EPOCHS):
    """Train ordinarily and by replays; return the steps that were recorded."""
    ordinary = trained(folder / "ordinary", store, changes, epochs)
    monkeypatch.setitem(recorded.RECORDERS, "cpu", Tracer)
    replayed = trained(folder / "replayed", store, changes, epochs)
    steps = replayed.recorded
    assert steps.reason == "" and steps.replayed > epochs
    # A gradient and an evaluation at least, and the update but for Adagrad's.
    assert steps._recorder.recorded >= 2 + steps._records_update
    np.testing.assert_allclose(replayed.progress.history, ordinary.progress.history, rtol=SAME)
    for name, weight in ordinary.model.named_parameters():
        there = replayed.model.get_parameter(name)
        torch.testing.assert_close(there, weight, rtol=SAME, atol=SAME)
    return steps


@pytest.mark.parametrize(
    "name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_replayed_steps_are_those_that_are_computed(
    tmp_path, labelled, monkeypatch, as_on_a_gpu, one_size, name
):
    compare(tmp_path, labelled, monkeypatch, CASES[name], epochs=2)


def test_bf16_is_replayed_as_well(tmp_path, alloy_store, monkeypatch, one_size):
    monkeypatch.setattr(sys.modules[__name__], "SAME", 0.05)
    compare(tmp_path, alloy_store, monkeypatch, {"Training__precision": "bf16"}, epochs=1)


def test_dropout_is_replayed_though_it_cannot_be_compared(
    tmp_path, alloy_store, monkeypatch, as_on_a_gpu, one_size
):
    monkeypatch.setitem(recorded.RECORDERS, "cpu", Tracer)
    changes = {"Architecture__mpnn_type": "GAT", **HEADS, "Architecture__dropout": 0.2}
    assert trained(tmp_path, alloy_store, changes).recorded.replayed > EPOCHS


def test_sizes_rates_and_averages_change(tmp_path, alloy_store, monkeypatch):
    steps = compare(tmp_path, alloy_store, monkeypatch, {})
    assert steps._recorder.recorded > 3


def test_a_recording_that_differs_is_not_used(tmp_path, alloy_store, monkeypatch, one_size):
    ordinary = trained(tmp_path / "ordinary", alloy_store, {})

    class Wrong(Tracer):
        def record(self, function):
            replay = super().record(function)

            def wrongly():
                replay()
                self.trainer.recorded._gradients[0].add_(1e-3)

            return wrongly

    monkeypatch.setitem(recorded.RECORDERS, "cpu", Wrong)
    trainer = trained(tmp_path / "wrong", alloy_store, {})
    assert "recorded steps differ by " in trainer.recorded.reason and not trainer.recorded.replayed
    np.testing.assert_allclose(trainer.progress.history, ordinary.progress.history, rtol=SAME)


@pytest.mark.parametrize("which", [0, 1, 2], ids=["a gradient", "the update", "an evaluation"])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("out of memory"), ValueError("no")])
def test_what_cannot_be_recorded_is_computed(
    tmp_path, alloy_store, monkeypatch, one_size, error, which, caplog
):
    ordinary = trained(tmp_path / "ordinary", alloy_store, {})
    records = itertools.count()

    class Failing(Tracer):
        def record(self, function):
            if next(records) == which:
                raise error
            return super().record(function)

    monkeypatch.setitem(recorded.RECORDERS, "cpu", Failing)
    trainer = trained(tmp_path / "failing", alloy_store, {})
    assert str(error) in trainer.recorded.reason
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    np.testing.assert_allclose(trainer.progress.history, ordinary.progress.history, rtol=SAME)


def test_a_training_that_was_stopped_within_an_epoch_goes_on(
    tmp_path, alloy_store, monkeypatch, one_size
):
    ordinary = trained(tmp_path / "ordinary", alloy_store, {})
    monkeypatch.setitem(recorded.RECORDERS, "cpu", Tracer)
    stops = iter([False] * 6 + [True])
    with pytest.raises(Stopped):
        trained(tmp_path / "t", alloy_store, {}, should_stop=lambda: next(stops))
    trainer = trained(tmp_path / "t", alloy_store, {})
    assert trainer.began[1] > 0 and trainer.recorded.replayed > 0
    np.testing.assert_allclose(trainer.progress.history, ordinary.progress.history, rtol=SAME)
    monkeypatch.delitem(recorded.RECORDERS, "cpu")
    assert trained(tmp_path / "t", alloy_store, {}, epochs=EPOCHS + 1).is_finished


def test_an_ordinary_batch_gets_the_memory_of_recordings(
    tmp_path, alloy_store, monkeypatch, one_size
):
    monkeypatch.setitem(recorded.RECORDERS, "cpu", Tracer)
    with monkeypatch.context() as patch:  # as in the middle of a training
        patch.setattr(recorded.RecordedSteps, "forget", lambda self: None)
        trainer = trained(tmp_path, alloy_store, {}, epochs=2)
    steps, short = trainer.recorded, iter([torch.OutOfMemoryError("out of memory")])
    assert steps._places
    loss = steps._loss_of

    def tight(batch, counts):
        for error in short:
            raise error
        return loss(batch, counts)

    monkeypatch.setattr(steps, "_loss_of", tight)
    trainer.model.train()
    steps.take([trainer.train.batch([0])], Counts(1, 8), 1e-3)
    assert steps.reason == "out of memory" and not steps._places


def test_labels_that_no_integer_could_mark_as_padding(alloy_store):
    batch, manifest = alloy_store["trainset"].batch([0, 1]), alloy_store.manifest
    batch.energy = torch.tensor([3, 4])
    made = Filler(manifest, ["energy"], 8.0, {}, 16).filled(batch, Size(4, 60, batch.num_edges))
    assert made.layout.batch(made.memory).energy.tolist() == [3, 4, math.inf, math.inf]
    other = Filler(manifest, ["forces"], 8.0, {}, 16).filled(batch, Size(4, 60, batch.num_edges))
    assert other.layout.batch(other.memory).energy.tolist() == [3, 4, 3, 3]


def test_edges_as_many_in_each_graph_are_filled_like_others(tmp_path, alloy_store):
    graph = next(iter(alloy_store["trainset"]))
    store = write_store(
        tmp_path / "alike.gs",
        {"trainset": [graph] * 3},
        targets=alloy_store.manifest.targets,
        cutoff=alloy_store.manifest.cutoff,
    )
    size = Size(4, 4 * graph.num_nodes, 5 * graph.num_edges)
    made = Filler(store.manifest, ["energy"], 8.0, {}, 16).filled(
        store["trainset"].batch([0, 1, 2]), size
    )
    there = made.layout.batch(made.memory).edge_shifts
    torch.testing.assert_close(there[: 3 * graph.num_edges], graph.edge_shifts.repeat(3, 1))
    assert there.tolist()[3 * graph.num_edges :] == [[8.0, 0.0, 0.0]] * (2 * graph.num_edges)


def test_graphs_of_one_atom_have_sizes():
    (size,) = choose_sizes(np.array([[64, 64, 10]] * 20), 1, 20)
    assert size.holds(64, 64, 10, 1)


def _epoch(rng, atoms, edges):
    graphs = rng.permutation(len(atoms))[: len(atoms) // 32 * 32].reshape(-1, 32)
    sums = atoms[graphs].sum(axis=1), edges[graphs].sum(axis=1)
    return np.stack([np.full(len(graphs), 32), *sums], axis=1)


@pytest.mark.parametrize("kind", ["molecules", "crystals", "surfaces"])
def test_six_sizes_hold_the_batches_of_later_epochs_at_few_padding_edges(kind):
    rng = np.random.default_rng(0)
    if kind == "molecules":  # sizes like QM9's, with all pairs as edges
        atoms = rng.normal(18, 3, 8000).clip(4, 29).astype(int)
        edges = atoms * (atoms - 1)
    elif kind == "crystals":
        atoms = np.exp(rng.normal(3.0, 0.9, 8000)).clip(1, 444).astype(int)
        edges = atoms * rng.integers(15, 45, 8000)
    else:
        atoms = rng.integers(40, 240, 8000)
        edges = atoms * rng.integers(25, 50, 8000)
    largest = int(atoms.max())
    sizes = choose_sizes(_epoch(rng, atoms, edges), largest, 1000)
    assert len(sizes) <= 6
    later = [tuple(map(int, row)) for _ in range(4) for row in _epoch(rng, atoms, edges)]
    held = [(row, next((s for s in sizes if s.holds(*row, largest)), None)) for row in later]
    used = [(row[2], size.edges) for row, size in held if size is not None]
    assert len(used) >= 0.99 * len(later)
    assert np.divide(*np.sum(used, axis=0)[::-1]) <= 1.15  # padded over own edges
