"""A finished ensemble without a campaign: its members are networks that have learnt nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from campaign_cases import CONFIG
from segment_cases import NETWORK

from hydragnn_flow.config import RunConfig
from hydragnn_flow.config.network import write_network
from hydragnn_flow.data import GraphStore
from hydragnn_flow.ensemble import FOLDER, Ensemble, Member, finish_ensemble, member_folder
from hydragnn_flow.models import build_model
from hydragnn_flow.report.gcd_time import cost_of
from hydragnn_flow.testing.networks import lively
from hydragnn_flow.training.checkpoints.checkpoint import FILE, save_checkpoint


def untrained_ensemble(
    run: Path,
    store: GraphStore,
    members: int = 2,
    numbers: Sequence[int] = (),
    network: dict[str, Any] = NETWORK,
    **changes: Any,
) -> Path:
    """Finish an ensemble of networks in a run directory, freshly drawn where there are none yet.

    More keywords are sections of the configuration.
    """
    drawn = []
    for k in numbers or range(members):
        folder = member_folder(run / FOLDER, k)
        write_network(folder, network)
        torch.manual_seed(k)
        progress = {"best_epoch": 1 + k, "best_val_error": 1.0 - 0.1 * k}
        weights = build_model(network, store).state_dict()
        if not (folder / FILE).exists():
            save_checkpoint(folder / FILE, {"best": weights, "progress": progress})
        why = "diverged" if k else ""
        drawn.append(Member(k, 10 + k, 1.0 - 0.1 * k, 1.0, ["0"], 1.0, 1.0, why, "", 0, 1 - k / 9))
    asked = {**CONFIG["ensemble"], "coverage": 0.8}  # 5 structures cannot hold 0.9
    config = RunConfig.model_validate({**CONFIG, "network": network, "ensemble": asked, **changes})
    finish_ensemble(
        run,
        config.members,
        config.network_with({}),
        store,
        drawn,
        {"wall_seconds": 182.4, **cost_of([])},
    )
    return run


def lively_ensemble(run: Path, store: GraphStore, members: int = 3) -> Ensemble:
    """Such an ensemble, loaded, in float64 and with forces that are not small."""
    ensemble = Ensemble.load(untrained_ensemble(run, store, members))
    return replace(ensemble, models=tuple(lively(model) for model in ensemble.models))


def property_ensemble(potential: Ensemble, inputs: Sequence[int] = (0,)) -> Ensemble:
    """Networks that predict the energy as any property, with the calibration of a potential's."""
    head = {
        "num_headlayers": 1,
        "dim_headlayers": [4],
        "num_sharedlayers": 1,
        "dim_sharedlayers": 4,
    }
    network = {
        "Architecture": {
            "mpnn_type": "SchNet",
            "hidden_dim": 4,
            "num_conv_layers": 1,
            "radius": potential.manifest.cutoff,
            "output_heads": {"graph": head},
            "task_weights": [1.0],
        },
        "Variables_of_interest": {
            "input_node_features": [*inputs],
            "output_names": ["energy"],
            "type": ["graph"],
        },
        "Training": NETWORK["Training"],
    }
    models = tuple(build_model(network, potential.manifest).eval() for _ in potential.models)
    calibrations = {"energy": potential.calibrations["energy"]}
    return replace(potential, models=models, calibrations=calibrations)
