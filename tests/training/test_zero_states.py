"""What ranks that share an optimiser's state gather of each other."""

import multiprocessing
import os
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from training_cases import same

from hydragnn_flow.config.network import Optimizer
from hydragnn_flow.training.distributed import World, join
from hydragnn_flow.training.optimizers import make_optimizer, optimizer_state


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


SETTINGS = Optimizer(type="AdamW", learning_rate=0.01, use_zero_redundancy=True)
MUON = SETTINGS.model_copy(update={"type": "Muon"})


def trained(make):
    """An optimiser that has taken two steps, with the same gradients each time."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = make(model)
    for _ in range(2):
        for weight in model.parameters():
            weight.grad = torch.randn(weight.shape)
        optimizer.step()
    return optimizer


def compare(world, folder):
    shared = trained(lambda model: make_optimizer(model, SETTINGS, 0.01, world))
    found = optimizer_state(shared, world)
    if world.is_first:
        whole = trained(lambda model: torch.optim.AdamW(model.parameters(), lr=0.01))
        assert same(found["state"], whole.state_dict()["state"])
    shared = trained(lambda model: make_optimizer(model, MUON, 0.01, world))
    found = optimizer_state(shared, world)
    if world.is_first:
        alone = trained(lambda model: make_optimizer(model, MUON, 0.01, World()))
        assert same(found["state"], alone.state_dict()["state"])
        assert "matrices" not in found["param_groups"][0], "no second copy of the weights"


def attack(world, folder):
    optimizer: Any = trained(lambda model: make_optimizer(model, SETTINGS, 0.01, world))
    if not world.is_first:
        optimizer.optim.param_groups[0]["extra"] = Bomb(folder / "has run code")
    try:
        optimizer_state(optimizer, world)
    except pickle.UnpicklingError:
        (folder / "refused").touch()


def _run(rank, part, folder):
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # as a user may have it for other tools
    world = join(rank, 2, dist.FileStore(str(folder / "store"), 2), "cpu")
    part(world, folder)
    if part is compare:
        world.leave()
    os._exit(0)  # a rank that refused has left the other waiting


@pytest.mark.parametrize("part", [compare, attack])
def test_states_are_gathered_whole_and_run_no_code(part, tmp_path):
    # Forked: torch is imported already.
    ranks = [
        multiprocessing.get_context("fork").Process(target=_run, args=(rank, part, tmp_path))
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    ranks[0].join(60)
    for rank in ranks:
        rank.kill() if part is attack else rank.join(60)
    assert ranks[0].exitcode == 0
    assert not (tmp_path / "has run code").exists()
    assert (tmp_path / "refused").exists() is (part is attack)
