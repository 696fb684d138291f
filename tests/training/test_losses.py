"""The terms of the loss, against torch's own and by hand."""

import numpy as np
import pytest
import torch
from segment_cases import network_with
from torch.nn import functional
from training_cases import PROPERTY, judged, kept_in, segment, trainer_of

from hydragnn_flow.config import load_network
from hydragnn_flow.data import write_store
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.errors import InputError, StoreError
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.measures.losses import Counts, Loss, gaussian_nll, reference
from hydragnn_flow.training.runner import run_segment

TORCHS = {
    "mse": functional.mse_loss,
    "rmse": lambda a, b: functional.mse_loss(a, b).sqrt(),
    "mae": functional.l1_loss,
    "smooth_l1": functional.smooth_l1_loss,
}


def loss_with(store, **changes):
    return Loss(load_network(network_with(**changes)), store.manifest)


def means_of(loss, outputs, batch):
    return loss.term_means(outputs, batch, Counts(batch.num_graphs, batch.num_nodes))


@pytest.mark.parametrize("name", TORCHS)
def test_it_is_torchs(alloy_store, name):
    """On forces alone, in units of their spread."""
    on_forces = {"Architecture__energy_peratom_weight": 0.0}
    loss = loss_with(alloy_store, Training__loss_function_type=name, **on_forces)
    batch = alloy_store["trainset"].batch([0, 1, 2])
    spread = alloy_store.manifest.statistics.forces_rms
    forces = (batch.forces + spread * torch.randn_like(batch.forces)).requires_grad_()
    means = means_of(loss, {"forces": forces, "energy": torch.zeros(3, 1)}, batch)
    mine = loss.of_rank(means, World())
    expected = TORCHS[name](forces / spread, batch.forces / spread)
    torch.testing.assert_close(mine.float(), expected)
    torch.testing.assert_close(loss.total(means).float(), expected)
    slopes = [torch.autograd.grad(one, forces, retain_graph=True)[0] for one in (mine, expected)]
    torch.testing.assert_close(*slopes)


def test_a_root_has_a_slope_where_nothing_is_wrong(alloy_store):
    loss = loss_with(alloy_store, Training__loss_function_type="rmse")
    batch = alloy_store["trainset"].batch([0])
    outputs = {
        "forces": batch.forces.clone().requires_grad_(),
        "energy": batch.energy.view(1, 1).clone().requires_grad_(),
    }
    mine = loss.of_rank(means_of(loss, outputs, batch), World())
    mine.backward()
    assert mine == 0
    assert all(torch.isfinite(value.grad).all() for value in outputs.values())


def test_the_likelihood_is_torchs():
    residual = torch.randn(50, 3, dtype=torch.float64, requires_grad=True)
    deviation = torch.rand(50, 3, dtype=torch.float64).add(0.1).requires_grad_()
    zero = torch.zeros_like(residual)
    expected = functional.gaussian_nll_loss(residual, zero, deviation**2, reduction="none")
    torch.testing.assert_close(gaussian_nll(residual, deviation), expected)


def test_beta_weights_the_gradient_with_the_variance():
    """Seitzer et al., eq. 6: with β = 1 the mean learns as from a square error."""
    residual = torch.randn(50, dtype=torch.float64, requires_grad=True)
    deviation = torch.rand(50, dtype=torch.float64).add(0.1).requires_grad_()
    r, s = residual.detach(), deviation.detach()
    for beta in (1.0, 0.5):
        total = gaussian_nll(residual, deviation, beta).sum()
        slope, spread = torch.autograd.grad(total, [residual, deviation])
        weight = s ** (2 * beta)
        torch.testing.assert_close(slope, weight * r / s**2)
        torch.testing.assert_close(spread, weight * (1 / s - r**2 / s**3))


def test_noise_is_learnt_and_judged_alike(tmp_path, alloy_store):
    """The validation loss has no β in it, so that settings compare."""
    likelihood = PROPERTY | {"Training__loss_function_type": "GaussianNLLLoss"}
    gently = likelihood | {"Training__Optimizer__learning_rate": 1e-3}
    trainer = trainer_of(tmp_path, alloy_store, 3, **gently, Training__nll_beta=0.5)
    plain = loss_with(alloy_store, **likelihood)
    batch = alloy_store["valset"].batch(range(len(alloy_store["valset"])))
    with torch.no_grad(), trainer.average.applied() as model:
        outputs = model(batch)
    assert (outputs["energy_aleatoric_std"] > 0).all()
    expected = float(plain.total(means_of(plain, outputs, batch)))
    assert judged(trainer)[0] == pytest.approx(expected, rel=1e-6)
    trainer.run()
    first, *_, last = (loss for _, loss, *_ in trainer.progress.history)
    assert last < first


@pytest.fixture(scope="module")
def stressed(alloy_store, tmp_path_factory):
    """Stores with a stress of 6 and of 9 components; one structure of the test has no cell."""
    stores = {}
    for dim in (6, 9):
        splits = {name: list(alloy_store[name]) for name in alloy_store.splits}
        for number, graph in enumerate(graph for graphs in splits.values() for graph in graphs):
            voigt = torch.randn(6, generator=torch.Generator().manual_seed(number))
            tensor = voigt[[0, 5, 4, 5, 1, 3, 4, 3, 2]]
            graph.stress = (voigt if dim == 6 else tensor)[None]
        splits["testset"][0].cell = torch.zeros(3, 3)
        path = tmp_path_factory.mktemp("stressed") / "store.gs"
        stress = Target(level="graph", dim=dim, unit="eV/Å^3")
        targets = alloy_store.manifest.targets | {"stress": stress}
        stores[dim] = write_store(path, splits, targets=targets, cutoff=4.0)
    return stores


def test_a_stress_is_compared_in_voigts_order(stressed):
    like = torch.zeros(4, 6)
    six, nine = (
        reference(stressed[dim]["trainset"].batch([1, 2, 3, 4]), "stress", like) for dim in (6, 9)
    )
    torch.testing.assert_close(six, nine)
    first = stressed[6]["trainset"][1]
    torch.testing.assert_close(six[0], first.stress.view(6))


@pytest.mark.parametrize("dim", [6, 9])
def test_stress_is_trained_on(tmp_path, stressed, dim):
    spec = segment(tmp_path / "t", stressed[dim], 8, Architecture__stress_weight=1.0)
    result = run_segment(spec)
    assert result.status == "ok", result.reason
    assert result.history[-1][1] < result.history[0][1]
    assert 0 < result.metrics["stress_mae"] < 3
    assert "stress_mae_per_atom" not in result.metrics
    assert {"energy", "forces", "stress"} <= set(kept_in(spec.folder))


@pytest.mark.parametrize("split", ["trainset", "valset"])
def test_a_stress_needs_volumes(tmp_path, stressed, split):
    splits = {name: list(stressed[6][name]) for name in stressed[6].splits}
    splits[split][1].cell[2] = 0.0
    targets = stressed[6].manifest.targets
    store = write_store(tmp_path / "store.gs", splits, targets=targets, cutoff=4.0)
    assert trainer_of(tmp_path / "without", store, 3).loss.targets
    with pytest.raises(StoreError, match=rf"{split} has 1 graphs whose cell.*stress_weight; set"):
        trainer_of(tmp_path / "with", store, 3, Architecture__stress_weight=1.0)


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0)], ids=["energy", "forces"])
def test_what_has_no_weight_costs_no_gradient(tmp_path, alloy_store, weights):
    """Energies alone take no second derivative; either way every parameter gets its gradient."""
    energy, forces = weights
    given = {"energy_peratom_weight": energy, "force_weight": forces}
    changes = {f"Architecture__{key}": weight for key, weight in given.items()}
    trainer = trainer_of(tmp_path, alloy_store, 3, **changes)
    trainer.model.train()
    batch = alloy_store["trainset"].batch([0, 1])
    outputs = trainer.model(batch)
    asked: list[str] = []
    for name, value in outputs.items():
        value.register_hook(lambda gradient, name=name: asked.append(name))
    counts = Counts(2, batch.num_nodes)
    trainer.loss.of_rank(trainer.loss.term_means(outputs, batch, counts), World()).backward()
    assert set(asked) == ({"energy"} if energy else {"energy", "forces"})
    assert all(parameter.grad is not None for parameter in trainer.model.parameters())
    if energy:
        found = [parameter.grad.clone() for parameter in trainer.model.parameters()]
        trainer.model.zero_grad()
        outputs = trainer.model(batch)
        means = trainer.loss.term_means(outputs, batch, counts) + 0.0 * outputs["forces"].sum()
        trainer.loss.of_rank(means, World()).backward()
        for parameter, gradient in zip(trainer.model.parameters(), found, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.parametrize("name", ["mse", "GaussianNLLLoss"])
def test_parts_of_a_step_add_up(tmp_path, alloy_store, name):
    changes = PROPERTY | {"Training__loss_function_type": name, "Training__precision": "fp64"}
    losses = []
    for parts in (1, 2, 3, 9):
        changes["Training__accumulation_steps"] = parts
        trainer = trainer_of(tmp_path / str(parts), alloy_store, 3, **changes)
        steps = trainer.plan(0)
        pieces = list(trainer.micro_batches(steps))
        assert max(map(len, pieces)) == min(parts, max(step.graphs for step in steps))
        losses.append([float(loss) for loss, *_ in map(trainer.train_step, steps, pieces)])
        np.testing.assert_allclose(losses[-1], losses[0], rtol=1e-9)


def test_the_root_of_a_part_is_refused():
    parts = {"Training__loss_function_type": "rmse", "Training__accumulation_steps": 2}
    with pytest.raises(InputError, match=r"'rmse'.* accumulation_steps"):
        load_network(network_with(**parts))
