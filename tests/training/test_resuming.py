"""Stopped anywhere and continued, a training is what it would have been, bit for bit."""

from typing import Any

import pytest
import torch
from segment_cases import make_spec, network_with

from hydragnn_flow.training import monitor as monitoring
from hydragnn_flow.training import trainer as trainer_module
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.monitor import Stopped
from hydragnn_flow.training.runner import run_segment
from hydragnn_flow.training.trainer import Trainer

EPOCHS = 3
PLATEAU = {"type": "ReduceLROnPlateau", "patience": 0, "factor": 0.3, "min_lr": 1e-4}
GAT_WITH_DROPOUT = {
    "Architecture__mpnn_type": "GAT",
    "Architecture__dropout": 0.3,
    "Architecture__edge_features": ["lengths"],
    "Architecture__num_gaussians": 4,
    "Architecture__hidden_dim": 6,
    "Architecture__enable_interatomic_potential": False,
    "Architecture__output_heads": {"graph": {"dim_headlayers": [6, 6], "dim_sharedlayers": 6}},
    "Variables_of_interest__type": ["graph"],
}
NETWORKS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "plateau": {"Training__Scheduler": PLATEAU | {"warmup_epochs": 1.5}},
    "one cycle": {
        "Training__Scheduler": {"type": "one_cycle"},
        "Training__ema_decay": 0.0,
        "Training__Optimizer__type": "SGD",
    },
    "dropout": GAT_WITH_DROPOUT,
    "LAMB, in parts": {"Training__Optimizer__type": "FusedLAMB", "Training__accumulation_steps": 2},
    "steps": {"Training__Scheduler": {"type": "cosine"}, "Training__batch_size": 3},
    "samples": {"Training__Batching": {"mode": "node_budget", "max_nodes": 40}},
}

CHANGES: dict[str, dict[str, Any]] = {
    "one cycle": {"bootstrap": True},
    "steps": {"budget": ("steps", 25), "subset": (4, 0)},
    "samples": {"budget": ("samples", 61), "bootstrap": True},
}
"""What else is asked of the training."""


def same(one, two):
    if isinstance(one, torch.Tensor):
        return isinstance(two, torch.Tensor) and torch.equal(one, two)
    if isinstance(one, dict):
        return (
            isinstance(two, dict)
            and one.keys() == two.keys()
            and all(same(one[key], two[key]) for key in one)
        )
    if isinstance(one, (list, tuple)):
        return isinstance(two, (list, tuple)) and len(one) == len(two) and all(map(same, one, two))
    return one == two


def trained(folder, store, name, stops):
    """Train, stopping when so many steps and batches have begun in all; the last checkpoint."""
    begun = 0

    def should_stop():
        nonlocal begun
        begun += 1
        return begun in stops

    network = network_with(**NETWORKS[name])
    spec = make_spec(folder, store, EPOCHS, network=network, **CHANGES.get(name, {}))
    for _ in range(len(stops) + 1):
        torch.manual_seed(torch.seed() % 2**31)  # what another segment of a warm process leaves
        trainer = Trainer(spec, store, torch.device("cpu"), World())
        try:
            trainer.run(should_stop)
            break
        except Stopped:
            continue
    assert trainer.progress.epoch == EPOCHS
    return load_checkpoint(folder / FILE)


@pytest.fixture(scope="module")
def unbroken(alloy_store, tmp_path_factory):
    folder, known = tmp_path_factory.mktemp("unbroken"), {}

    def get(name):
        if name not in known:
            known[name] = trained(folder / name, alloy_store, name, [])
        return known[name]

    return get


@pytest.mark.parametrize("name", NETWORKS)
def test_stopped_everywhere_it_is_the_same(tmp_path, alloy_store, unbroken, name):
    """Within an epoch, at its end, within its evaluation, twice at one place."""
    stops = [1, 2, 4, 7, 8, 15]
    assert same(trained(tmp_path / "t", alloy_store, name, stops), unbroken(name))


def test_dropout_draws_the_numbers_that_would_have_come(unbroken):
    """Or the tests above would say nothing of it."""
    numbers = [unbroken(name)["random"]["cpu"] for name in ("dropout", "as it comes")]
    assert not torch.equal(*numbers)


def test_a_killed_segment_goes_on_from_within_the_epoch(tmp_path, alloy_store, monkeypatch):
    """Long epochs are saved within: nothing was said to this one before it was gone."""
    monkeypatch.setattr(monitoring, "SECONDS_UNSAVED", 0.0)
    monkeypatch.setattr(monitoring, "SECONDS_BETWEEN_SYNCS", 0.0)
    monkeypatch.setattr(monitoring, "CHECKPOINT_FRACTION", 1e9)
    monkeypatch.setattr(trainer_module, "SAVES_PER_SECOND", 1e9)
    steps = 0

    def die():
        nonlocal steps
        steps += 1
        if steps == 3:
            raise KeyboardInterrupt
        return False

    spec = make_spec(tmp_path / "t", alloy_store, EPOCHS)
    with pytest.raises(KeyboardInterrupt):
        run_segment(spec, should_stop=die)
    assert load_checkpoint(tmp_path / "t" / FILE)["progress"]["step"] == 2
    again = run_segment(spec)
    assert (again.from_epoch, again.from_step, again.status) == (0, 2, "ok")
    whole = run_segment(make_spec(tmp_path / "whole", alloy_store, EPOCHS))
    assert again.history == whole.history


def test_a_member_on_ranks_of_its_own_can_go_on_from_within_an_epoch(tmp_path, alloy_store):
    spec = make_spec(tmp_path / "trial", alloy_store, EPOCHS)
    stops = iter([False, False, True])
    assert run_segment(spec, should_stop=lambda: next(stops)).status == "interrupted"
    member = make_spec(
        tmp_path / "member",
        alloy_store,
        EPOCHS,
        kind="member",
        trial_checkpoint=str(tmp_path / "trial" / FILE),
    )
    result = run_segment(member)
    assert (result.from_step, result.to_epoch, result.status) == (2, EPOCHS, "ok")
