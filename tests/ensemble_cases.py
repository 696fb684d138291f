"""A finished ensemble without a campaign: its members are networks that have learnt nothing."""

from __future__ import annotations

from pathlib import Path

import torch
from campaign_cases import CONFIG
from segment_cases import NETWORK

from hydragnn_flow.config import RunConfig
from hydragnn_flow.config.network import write_network
from hydragnn_flow.data import GraphStore
from hydragnn_flow.ensemble import FOLDER, Member, finish_ensemble, member_folder
from hydragnn_flow.models import build_model
from hydragnn_flow.training.checkpoint import FILE, save_checkpoint


def untrained_ensemble(run: Path, store: GraphStore, members: int = 2) -> Path:
    """Finish an ensemble of freshly drawn networks in a run directory; returns the directory."""
    drawn = []
    for k in range(members):
        folder = member_folder(run / FOLDER, k)
        write_network(folder, NETWORK)
        torch.manual_seed(k)
        progress = {"best_epoch": 1 + k, "best_val_loss": 1.0 - 0.1 * k}
        weights = build_model(NETWORK, store).state_dict()
        save_checkpoint(folder / FILE, {"best": weights, "progress": progress})
        drawn.append(Member(k, 10 + k, 1.0 - 0.1 * k, ["0"], 1.0, 1.0, "diverged" if k else ""))
    config = RunConfig.model_validate(CONFIG)
    finish_ensemble(run, config, store, drawn, {"wall_seconds": 1.0, "cpu_seconds": 1.0})
    return run
