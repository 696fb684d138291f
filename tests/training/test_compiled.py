"""Steps whose gradient is compiled by inductor, on a CPU."""

import os
import time

import numpy as np
import pytest
import torch
from segment_cases import make_spec, network_with

from hydragnn_flow.config import load_network
from hydragnn_flow.training import compiled, recorded
from hydragnn_flow.training.compiled import FirstBatches
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.monitor import Stopped
from hydragnn_flow.training.trainer import Trainer

EPOCHS = 4
SETTINGS = {
    "Training__Scheduler": {"type": "cosine", "warmup_epochs": 1},
    "Training__gradient_clip": 1.0,
    "Training__ema_decay": 0.9,
}


@pytest.fixture
def cache(tmp_path):
    """The run directory's folder of compiled kernels."""
    return tmp_path / "compiled"


def trainer_of(folder, store, compile, deadline=None, epochs=EPOCHS, **changes):
    network = network_with(**{**SETTINGS, "Training__compile": compile, **changes})
    fields = {"network": network, "run_directory": str(folder.parent), "deadline": deadline}
    spec = make_spec(folder, store, epochs, **fields)
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
    assert compiled.expected_speed(load_network(network_with())) == 1.0


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


def test_kernels_are_found_when_all_are_finished(tmp_path):
    folder = tmp_path / "compiled" / "kernels"
    with pytest.raises(RuntimeError, match="torn"), compiled.finished(folder) as own:
        (own / "kernel").write_text("half")
        raise RuntimeError("torn")
    assert not list(folder.parent.iterdir())
    with compiled.finished(folder) as own, compiled.finished(folder) as other:
        assert len({own, other, folder}) == 3
        (own / "kernel").write_text("whole")
        (other / "kernel").write_text("another's")
    with compiled.finished(folder) as there:
        assert there == folder and (there / "kernel").read_text() == "another's"
    assert list(folder.parent.iterdir()) == [folder]
    dead, alive = (folder.with_name(f".{name}.1.tmp") for name in ("dead", "alive"))
    for left, age in ((dead, 4000), (alive, 3000)):
        (left / "half").mkdir(parents=True)
        os.utime(left, 2 * (time.time() - age,))
    with compiled.finished(folder.with_name("others")):
        assert not dead.exists() and alive.exists()


def test_nothing_is_compiled_before_a_stop_or_a_near_deadline(tmp_path, alloy_store, cache):
    trainer = trainer_of(tmp_path / "stop", alloy_store, True)
    with pytest.raises(Stopped, match="in epoch 1 after step 0"):
        trainer.run(lambda: True)
    near = time.monotonic() + 300
    trainer = trained(tmp_path / "late", alloy_store, True, deadline=near)
    assert "deadline" in trainer.recorded.reason and trainer.progress.epoch == EPOCHS
    assert not cache.exists()


def test_numbers_that_a_trace_has_read_are_found_by_a_second_batch(
    tmp_path, alloy_store, monkeypatch
):
    def traced(compute, cache):
        constant = compute()
        return lambda: constant

    monkeypatch.setattr(recorded, "compiled", traced)
    ordinary = trained(tmp_path / "ordinary", alloy_store, False)
    trainer = trained(tmp_path / "t", alloy_store, True)
    assert "differ" in trainer.recorded.reason and trainer.recorded.replayed == 1
    np.testing.assert_allclose(trainer.progress.history, ordinary.progress.history, rtol=1e-5)


def test_after_an_error_of_a_compiled_step_others_are_ordinary(
    tmp_path, alloy_store, monkeypatch, caplog
):
    def failing(compute, cache):
        calls = iter(range(8))
        return lambda: [next(calls), *compute()][1:]

    monkeypatch.setattr(recorded, "compiled", failing)
    ordinary = trained(tmp_path / "ordinary", alloy_store, False)
    trainer = trained(tmp_path / "t", alloy_store, True)
    assert "StopIteration" in trainer.recorded.reason and trainer.recorded.replayed
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    np.testing.assert_allclose(trainer.progress.history, ordinary.progress.history, rtol=1e-5)


def test_dropout_continues_after_a_stop(tmp_path, alloy_store, monkeypatch):
    monkeypatch.setattr(recorded, "compiled", lambda compute, cache: compute)
    changes = {"Architecture__mpnn_type": "GAT", "Architecture__dropout": 0.3}
    whole = trained(tmp_path / "whole", alloy_store, True, **changes)
    stops = iter([False] * 6 + [True])
    with pytest.raises(Stopped):
        trainer_of(tmp_path / "parts", alloy_store, True, **changes).run(lambda: next(stops))
    parts = trained(tmp_path / "parts", alloy_store, True, **changes)
    assert parts.began[1] > 0 and parts.recorded.replayed > 0
    for name, weight in whole.model.named_parameters():
        assert torch.equal(parts.model.get_parameter(name), weight)


@pytest.mark.parametrize(
    ("compile", "epochs", "more", "reason"),
    [
        ("auto", 150, -0.5, ""),
        ("auto", 150, 0.5, "compiled, they take 1.5 times as long"),
        (True, 150, 0.5, ""),
        ("auto", 75, -0.5, None),
    ],
)
def test_long_trainings_are_compiled_where_that_is_faster(
    tmp_path, alloy_store, monkeypatch, compile, epochs, more, reason
):
    now, loss_of = [0.0], Trainer._loss_of

    def of_a_second(*arguments):
        now[0] += 1.0
        return loss_of(*arguments)

    def traced(compute, cache):
        return lambda: [now.append(now.pop() + more), *compute()][1:]

    monkeypatch.setattr(time, "thread_time", lambda: now[0])
    monkeypatch.setattr(Trainer, "_loss_of", of_a_second)
    monkeypatch.setattr(recorded, "compiled", traced)
    trainer = trainer_of(tmp_path / "t", alloy_store, compile, epochs=epochs)
    with pytest.raises(Stopped):
        trainer.run(lambda: trainer.progress.step > 2)
    assert (trainer.recorded and trainer.recorded.reason) == reason
    # Near the end it would not pay to compile, but the kernels are there.
    again = trainer_of(tmp_path / "t", alloy_store, compile, epochs=epochs)
    again.progress.epoch = epochs - 1
    again._compile_if_it_pays()
    assert again._to_compile == trainer._to_compile
    assert bool(again._to_compile) == (reason is not None)


@pytest.mark.parametrize(
    ("changes", "gains"),
    [
        ({}, True),
        ({"Architecture__mpnn_type": "DimeNet"}, False),
        ({"Architecture__mpnn_type": "GAT"}, True),
        ({"Architecture__mpnn_type": "GAT", "Architecture__dropout": 0.3}, False),
        ({"Training__precision": "fp64"}, False),
        ({"Training__conv_checkpointing": True}, False),
        ({"Architecture__global_attn_engine": "GPS"}, False),
    ],
)
def test_types_that_gain(changes, gains):
    assert (compiled.expected_speed(load_network(network_with(**changes))) > 1.0) is gains


def sizes_to_compile(rows, number, left=10**9):
    return compiled.sizes_to_compile(FirstBatches([], rows, 32, number, left), 2.4e-6, 1.5)


def test_sizes_are_compiled_where_the_steps_to_come_are_worth_it():
    alike = np.tile([[32, 1024, 20480]], (100, 1))
    assert sizes_to_compile(alike, 1_000) == sizes_to_compile(alike[:0], 10**6) == []
    assert len(sizes_to_compile(alike, 20_000)) == 1
    assert sizes_to_compile(alike, 20_000, left=1_000) == []
    # A tenth of the edges beside many others: one size is mostly padding, two are worth more steps.
    mixed = np.where(np.arange(100)[:, None] % 10, alike // [1, 1, 10], alike)
    assert sizes_to_compile(mixed, 20_000) == []
    assert len(sizes_to_compile(mixed, 200_000)) > 1
