"""Calibration of a GCD by segments of a few networks, small and large, on generated alloys."""

from __future__ import annotations

import time
from dataclasses import astuple
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from hydragnn_flow.config import DataConfig, load_network
from hydragnn_flow.config.network import NetworkConfig
from hydragnn_flow.data import GraphStore, prepare_store
from hydragnn_flow.data.splits import TRAIN, VALIDATION
from hydragnn_flow.models import build_model, network_cost
from hydragnn_flow.placement import Taken, Work
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.runner import run_segment

SECONDS = 60.0
"""Time after which no further network is started [s]."""
TYPES = ("SchNet", "EGNN", "PAINN", "PNAEq", "MACE")
# Number of features of small and of large networks.
_SIZES_ON_CORES, _SIZES_ON_ACCELERATORS = (16, 64, 192), (64, 256, 512)
_STRUCTURES, _CUTOFF, _BATCH, _EPOCHS = 160, 4.0, 16, 3


def calibrate(request: dict[str, Any]) -> dict[str, Any]:
    """Train networks for about a minute, in a trainer process.

    Each is trained like a segment. The small ones of all types come first, so that even a slow
    machine measures each type.

    Parameters
    ----------
    request
        ``device`` for torch; ``threads`` of a GCD; ``seconds`` after which no further one starts.

    Returns
    -------
    dict
        ``networks``, a list: ``kind``, ``hidden`` and ``taken``, the fields of
        :class:`~hydragnn_flow.placement.Taken`, or the ``reason`` why it was not trained.
    """
    device, give_up = request["device"], time.monotonic() + request["seconds"]
    sizes = _SIZES_ON_CORES if device == "cpu" else _SIZES_ON_ACCELERATORS
    found: list[dict[str, Any]] = []
    with TemporaryDirectory(prefix="hydragnn_flow-") as folder:
        data = DataConfig.model_validate(
            {
                "source": {"format": "emt_alloys", "structures": _STRUCTURES, "atoms": [8, 16]},
                "split": {"val": 0.2, "test": 0.2},
            }
        )
        path = Path(folder, "alloys.gs")
        with prepare_store(data, _CUTOFF, None, 0, path) as store:
            for number, (hidden, kind) in enumerate((h, k) for h in sizes for k in TYPES):
                if found and time.monotonic() > give_up:
                    break
                directory = Path(folder, str(number))
                directory.mkdir()
                spec = SegmentSpec(
                    kind="trial",
                    number=number,
                    rung=0,
                    directory=str(directory),
                    store=str(path),
                    network=network(kind, hidden),
                    until_epoch=_EPOCHS,
                    seed=number,
                    threads=request["threads"],
                )
                found.append({"kind": kind, "hidden": hidden, **_trained(spec, store, device)})
    return {"networks": found}


def network(kind: str, hidden: int) -> NetworkConfig:
    """Make a potential of a message-passing type."""
    values = {
        "Architecture": {
            "mpnn_type": kind,
            "hidden_dim": hidden,
            "num_conv_layers": 3,
            "radius": _CUTOFF,
            "num_gaussians": 32,
            "activation_function": "silu",
            "enable_interatomic_potential": True,
            "energy_peratom_weight": 1.0,
            "force_weight": 1.0,
            "output_heads": {"node": {"num_headlayers": 2, "dim_headlayers": [hidden, hidden]}},
        },
        "Variables_of_interest": {"output_names": ["energy"], "type": ["node"]},
        "Training": {
            "num_epoch": _EPOCHS,
            "batch_size": _BATCH,
            "Optimizer": {"type": "AdamW", "learning_rate": 1e-4},
        },
    }
    return load_network(values, "calibration")


def _trained(spec: SegmentSpec, store: GraphStore, device: str) -> dict[str, Any]:
    """Measure the cost of a segment, or return why it failed."""
    outcome = run_segment(spec, device=device)
    if outcome.status != "ok":
        return {"reason": f"{outcome.status}: {outcome.reason}"}
    splits = store.manifest.splits
    train, steps = splits[TRAIN], outcome.steps // _EPOCHS
    taken = Taken(
        _work(spec.network, store, steps),
        outcome.steps,
        outcome.step_seconds,
        outcome.seconds,
        _EPOCHS,
        evaluated=steps * splits[VALIDATION].graphs / train.graphs,
    )
    return {"taken": {**vars(taken), "work": astuple(taken.work)}}


def _work(config: NetworkConfig, store: GraphStore, steps: int) -> Work:
    """Count a training step on a batch of mean size, as a campaign does."""
    train = store.manifest.splits[TRAIN]
    atoms, edges, graphs = (-(-n // steps) for n in (train.atoms, train.edges, train.graphs))
    with torch.device("meta"):
        model = build_model(config, store)
    cost = network_cost(model, atoms, edges, graphs, int(store[TRAIN].n_atoms.max()))
    return Work(cost.flops, cost.bytes, cost.launches, cost.peak_bytes, 4 * cost.parameters)
