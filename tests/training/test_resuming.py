"""Stopped anywhere and continued, a training is what it would have been, bit for bit."""

from typing import Any

import pytest
import torch
from segment_cases import make_spec
from training_cases import CPU, PROPERTY, member_of, same, segment, stops_at, trainer_of

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
    **PROPERTY,
}
TRAININGS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "plateau": {"Training__Scheduler": PLATEAU | {"warmup_epochs": 1.5}},
    "SGD": {
        "Training__Scheduler": {"type": "constant", "warmup_epochs": 2},
        "Training__ema_decay": 0.0,
        "Training__Optimizer__type": "SGD",
        "bootstrap": True,
    },
    "dropout": GAT_WITH_DROPOUT,
    "Muon, in parts": {"Training__Optimizer__type": "Muon", "Training__accumulation_steps": 2},
    "steps": {
        "Training__Scheduler": {"type": "cosine"},
        "Training__batch_size": 3,
        "budget": ("steps", 25),
        "subset": (4, 0),
    },
    "samples": {
        "Training__Batching": {"mode": "node_budget", "max_nodes": 40},
        "budget": ("samples", 61),
        "bootstrap": True,
    },
}


def trained(folder, store, name, stops=()):
    """Train, stopping when so many steps and batches have begun in all; the last checkpoint."""
    should_stop = stops_at(*stops)
    spec = segment(folder, store, EPOCHS, **TRAININGS[name])
    for _ in range(len(stops) + 1):
        torch.manual_seed(torch.seed() % 2**31)  # what another segment of a warm process leaves
        trainer = Trainer(spec, store, CPU, World())
        try:
            trainer.run(should_stop)
            break
        except Stopped:
            continue
    assert trainer.progress.epoch == EPOCHS
    return load_checkpoint(folder / FILE)


@pytest.mark.parametrize("name", TRAININGS)
def test_stopped_everywhere_it_is_the_same(tmp_path, alloy_store, name):
    """Within an epoch, at its end, within its evaluation, twice at one place."""
    whole = trained(tmp_path / "whole", alloy_store, name)
    assert same(trained(tmp_path / "t", alloy_store, name, (1, 2, 4, 7, 8, 15)), whole)
    trainer_of(tmp_path / "begun", alloy_store, EPOCHS, **TRAININGS[name])
    drew = not torch.equal(whole["random"]["cpu"], torch.get_rng_state())
    assert drew == (name == "dropout"), "only that has tried the numbers that would have come"


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
    assert run_segment(spec, should_stop=stops_at(3)).status == "interrupted"
    result = run_segment(make_spec(tmp_path / "member", alloy_store, EPOCHS, **member_of(spec)))
    assert (result.from_step, result.to_epoch, result.status) == (2, EPOCHS, "ok")
