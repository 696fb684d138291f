"""Segments on the device: they learn, stop and go on, there or on another device."""

from typing import Any

import numpy as np
import pytest
import torch
from device_cases import NETWORKS, make_trainer
from segment_cases import make_spec, network_with

from hydragnn_flow.training import loading
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.monitor import EnergyMeter
from hydragnn_flow.training.predict import (
    predict_batches,
    predictions_in,
    restore_model,
    split_batches,
)
from hydragnn_flow.training.profile import profile_training
from hydragnn_flow.training.runner import run_segment

pytestmark = pytest.mark.gpu

EPOCHS = 4
# What sums in another order come to after some dozen steps of training.
CLOSE = {"rtol": 5e-4}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
def test_a_segment_learns(tmp_path, alloy_store, device, precision):
    spec = make_spec(
        tmp_path / "t", alloy_store, 30, network=network_with(Training__precision=precision)
    )
    result = run_segment(spec, device=device)
    assert (result.status, result.to_epoch) == ("ok", 30)
    training, validation = np.array(result.history)[:, 1:3].T
    assert training[-1] < 0.5 * training[0]
    assert validation[-1] < 0.5 * validation[0]
    assert 0 < result.peak_memory_gib < 4


@pytest.mark.parametrize("mode", ["memory", "random", "stream"])
def test_a_segment_that_was_stopped_goes_on(tmp_path, alloy_store, device, mode):
    """Within an epoch, and while its thread reads ahead."""
    whole = run_segment(make_spec(tmp_path / "whole", alloy_store, EPOCHS, mode=mode))
    stops = iter([False] * 5 + [True])
    spec = make_spec(tmp_path / "t", alloy_store, EPOCHS, mode=mode)
    stopped = run_segment(spec, device=device, should_stop=lambda: next(stops))
    assert stopped.status == "interrupted"
    again = run_segment(spec, device=device)
    assert (again.status, again.to_epoch) == ("ok", EPOCHS)
    np.testing.assert_allclose(again.history, whole.history, **CLOSE)


@pytest.mark.parametrize("optimiser", ["AdamW", "Adagrad", "Muon"])
@pytest.mark.parametrize("back", [False, True], ids=["to the device", "to the CPU"])
def test_what_one_device_has_begun_another_goes_on_with(
    tmp_path, alloy_store, accelerator, optimiser, back
):
    devices = [accelerator, torch.device("cpu")] if back else [torch.device("cpu"), accelerator]
    network = network_with(Training__Optimizer__type=optimiser)
    whole = run_segment(make_spec(tmp_path / "whole", alloy_store, EPOCHS, network=network))
    for until, device in zip((EPOCHS // 2, EPOCHS), devices, strict=True):
        spec = make_spec(tmp_path / "t", alloy_store, until, network=network)
        result = run_segment(spec, device=device)
        assert result.status == "ok"
    np.testing.assert_allclose(result.history, whole.history, **CLOSE)


@pytest.mark.parametrize("name", ["EGNN", "GPS", "in parts"])
def test_batches_made_ahead_change_nothing(tmp_path, store, device, name, monkeypatch):
    histories = []
    for ahead in (False, True):
        monkeypatch.setattr(loading, "reads_ahead", lambda _, ahead=ahead: ahead)
        spec = make_spec(
            tmp_path / f"{ahead}", store, EPOCHS, network=network_with(**NETWORKS[name])
        )
        histories.append(run_segment(spec, device=device).history)
    np.testing.assert_allclose(*histories, **({"rtol": 0} if device.type == "cpu" else CLOSE))


def test_predictions_are_those_of_the_cpu(tmp_path, alloy_store, device):
    spec = make_spec(tmp_path / "t", alloy_store, EPOCHS)
    assert run_segment(spec, device=device).status == "ok"
    state = load_checkpoint(spec.folder / FILE)
    model = restore_model(spec.network, alloy_store.manifest, state["best"])
    val = alloy_store["valset"]
    expected = predict_batches(model, split_batches(val, 2))
    found = predict_batches(model, split_batches(val, 2), device)
    kept = predictions_in(state, "valset")
    for name, values in expected.items():
        scale = np.abs(values - values.mean(axis=0)).max()
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-4 * scale)
        np.testing.assert_allclose(kept[name], values, rtol=0, atol=1e-4 * scale)


def test_a_profile_takes_the_steps_apart(tmp_path, alloy_store, device):
    spec = make_spec(tmp_path / "t", alloy_store, 1, seconds=1.0)
    profile = profile_training(spec, alloy_store, device)
    assert profile.parts.reading > 0 and profile.parts.computing > 0
    assert 0 < profile.peak_memory_gib < 4


def test_joules_are_counted_where_there_is_a_counter(tmp_path, alloy_store, device):
    if EnergyMeter(device).joules() is None:
        pytest.skip(f"NOT CHECKED: nothing counts the joules of {device.type} here")
    result = run_segment(make_spec(tmp_path / "t", alloy_store, 40), device=device)
    assert result.joules is not None
    assert 0 < result.joules < 2000 * result.seconds


def test_dropout_goes_on_where_it_was(tmp_path, alloy_store, device):
    """The random numbers of the device are in the checkpoint."""
    network: dict[str, Any] = network_with(**NETWORKS["GPS"], Architecture__dropout=0.3)
    whole = make_trainer(
        make_spec(tmp_path / "whole", alloy_store, 2, network=network), alloy_store, device
    )
    whole.run()
    for until in (1, 2):
        part = make_trainer(
            make_spec(tmp_path / "t", alloy_store, until, network=network), alloy_store, device
        )
        part.run()
        torch.manual_seed(7)  # what another segment of a warm process leaves
    np.testing.assert_allclose(part.progress.history, whole.progress.history, **CLOSE)
