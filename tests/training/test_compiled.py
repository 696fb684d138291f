"""Steps whose gradient is compiled by inductor, on a CPU."""

import numpy as np
import pytest
import torch
from segment_cases import make_spec, network_with

from hydragnn_flow.config import load_network
from hydragnn_flow.training import compiled
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.monitor import Stopped
from hydragnn_flow.training.plan import sizes
from hydragnn_flow.training.plan.sizes import sizes_to_compile
from hydragnn_flow.training.trainer import Trainer

EPOCHS = 4
SETTINGS = {
    "Training__Scheduler": {"type": "cosine", "warmup_epochs": 1},
    "Training__gradient_clip": 1.0,
    "Training__ema_decay": 0.9,
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The run directory's folder of compiled kernels."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "to be put back")
    return tmp_path / "compiled"


def trainer_of(folder, store, compile, **changes):
    network = network_with(**{**SETTINGS, "Training__compile": compile, **changes})
    spec = make_spec(folder, store, EPOCHS, network=network, run_directory=str(folder.parent))
    return Trainer(spec, store, torch.device("cpu"), World())


def trained(*arguments, **changes):
    trainer = trainer_of(*arguments, **changes)
    trainer.run()
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "precision", "same"), [("SchNet", "fp32", 1e-5), ("PAINN", "fp64", 1e-6)]
)
def test_compiled_steps_are_those_that_are_computed(
    tmp_path, alloy_store, cache, kind, precision, same
):
    changes = {"Architecture__mpnn_type": kind, "Training__precision": precision}
    ordinary = trained(tmp_path / "ordinary", alloy_store, False, **changes)
    steps = trained(tmp_path / "compiled", alloy_store, True, **changes)
    assert steps.recorded.reason == "" and steps.recorded.replayed >= 10
    np.testing.assert_allclose(steps.progress.history, ordinary.progress.history, rtol=same)
    for name, weight in ordinary.model.named_parameters():
        there = steps.model.get_parameter(name)
        assert (there - weight).norm() <= 10 * same * weight.norm().clamp_min(1e-3)

    # Another process would find the kernels; and a training that was stopped ends as it would have.
    kernels = sorted(cache.rglob("*.so"))
    assert kernels
    stops = iter([False] * 6 + [True])
    with pytest.raises(Stopped):
        trainer_of(tmp_path / "again", alloy_store, True, **changes).run(lambda: next(stops))
    again = trained(tmp_path / "again", alloy_store, True, **changes)
    assert again.began[1] > 0 and again.recorded.replayed > 0
    assert sorted(cache.rglob("*.so")) == kernels
    for name, weight in steps.model.named_parameters():
        assert torch.equal(again.model.get_parameter(name), weight)


def test_without_a_compiler_steps_are_ordinary(tmp_path, alloy_store, monkeypatch, caplog):
    ordinary = trained(tmp_path / "ordinary", alloy_store, False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    trainer = trained(tmp_path / "t", alloy_store, True)
    assert "install g++" in trainer.recorded.reason and not trainer.recorded.replayed
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    np.testing.assert_allclose(trainer.progress.history, ordinary.progress.history, rtol=1e-5)
    monkeypatch.setattr(sizes, "_COMPILED", 0.0)
    assert trained(tmp_path / "auto", alloy_store, "auto").recorded is None


@pytest.mark.slow
def test_a_function_is_compiled_for_tensors_whose_values_change(cache):
    a, b = torch.ones(4), torch.ones(4, requires_grad=True)

    def gradient():
        return list(torch.autograd.grad((a * b.sin()).sum(), [b]))

    run = compiled.compiled(gradient, cache)
    for values in (torch.zeros(4), torch.arange(4.0)):
        with torch.no_grad():
            a.copy_(values + 1)
            b.copy_(values)
        torch.testing.assert_close(run(), gradient())


def test_only_long_trainings_of_types_that_gain_are_compiled(tmp_path, alloy_store, monkeypatch):
    assert trainer_of(tmp_path / "short", alloy_store, "auto").recorded is None
    monkeypatch.setattr(sizes, "_COMPILED", 0.0)
    assert trainer_of(tmp_path / "long", alloy_store, "auto").recorded is not None
    assert trainer_of(tmp_path / "off", alloy_store, False).recorded is None
    monkeypatch.setenv("HYDRAGNN_FLOW_REPLAY", "0")
    assert trainer_of(tmp_path / "none", alloy_store, "auto").recorded is None


@pytest.mark.parametrize(
    ("changes", "gains"),
    [
        ({}, True),
        ({"Architecture__mpnn_type": "DimeNet"}, False),
        ({"Training__precision": "fp64"}, False),
        ({"Training__conv_checkpointing": True}, False),
        ({"Architecture__global_attn_engine": "GPS"}, False),
    ],
)
def test_types_that_gain(changes, gains):
    assert compiled.is_faster(load_network(network_with(**changes))) is gains


def test_sizes_are_compiled_where_the_edges_to_come_are_worth_it():
    alike = np.tile([[32, 1024, 20480]], (100, 1))
    assert sizes_to_compile(alike, 32, 1_000) == sizes_to_compile(alike[:0], 32, 10**6) == []
    assert len(sizes_to_compile(alike, 32, 20_000)) == 1
    # A tenth of the edges beside many others: one size is mostly padding, two are worth more steps.
    mixed = np.where(np.arange(100)[:, None] % 10, alike // [1, 1, 10], alike)
    assert sizes_to_compile(mixed, 32, 20_000) == []
    assert len(sizes_to_compile(mixed, 32, 200_000)) > 1
