"""The host tells the device what to do, and does not wait for it, within a step."""

from contextlib import closing, contextmanager

import pytest
import torch
from device_cases import NETWORKS, OPTIMISERS, make_trainer
from segment_cases import make_spec, network_with

pytestmark = pytest.mark.gpu


@pytest.fixture
def cuda(device):
    if device.type == "cpu":
        pytest.skip("NOT CHECKED on a CPU, which nobody waits for; test_pretended.py looks as well")
    if device.type != "cuda":
        pytest.skip(f"NOT CHECKED: torch does not say when the host waits for {device.type}")
    return device


@contextmanager
def waiting_fails():
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def take_an_epoch(trainer):
    """The first steps apart, in which kernels are chosen and memory is taken."""
    steps = trainer.plan(0)
    with closing(trainer.micro_batches(steps)) as batches:
        rest = zip(steps, batches, strict=True)
        trainer.train_step(*next(rest))
        with waiting_fails():
            for step, pieces in rest:
                trainer.train_step(step, pieces)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_does_not_wait(tmp_path, store, cuda, name, precision):
    network = network_with(**NETWORKS[name], Training__precision=precision)
    take_an_epoch(make_trainer(make_spec(tmp_path / "t", store, 1, network=network), store, cuda))


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_a_step_after_a_checkpoint_does_not_wait(tmp_path, store, cuda, optimiser):
    network = network_with(Training__Optimizer__type=optimiser)
    spec = make_spec(tmp_path / "t", store, 1, network=network)
    for _ in range(2):
        trainer = make_trainer(spec, store, cuda)
        take_an_epoch(trainer)
        trainer.save()
