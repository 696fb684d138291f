"""Whole campaigns on this machine, each device of it a GCD: `hydragnn-flow run`."""

import gc
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from campaign_cases import CONFIG
from segment_cases import make_spec, network_with

from hydragnn_flow import GraphStore
from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import prepare_store
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import SegmentResult
from hydragnn_flow.training.memory import give_back_memory
from hydragnn_flow.training.runner import run_segment

pytestmark = pytest.mark.gpu

REPOSITORY = Path(__file__).resolve().parents[2]

QUICKSTART: dict[str, Any] = {
    "name": "small",
    "seed": 1,
    "data": {
        "source": {"format": "emt_alloys", "structures": 120},
        "split": {"val": 0.2, "test": 0.2},
    },
    "search": {
        "trials": 4,
        "min_epochs": 2,
        "reduction_factor": 3,
        "space": {
            "Architecture.mpnn_type": {"choices": ["SchNet", "EGNN"]},
            "Architecture.hidden_dim": {"int": [16, 32], "log": True},
            "Architecture.num_conv_layers": {"int": [2, 3]},
            "Training.Optimizer.learning_rate": {"float": [2e-3, 6e-3], "log": True},
        },
    },
    "ensemble": {"size": 2, "epochs": 24, "coverage": 0.9},
}

# One process at a time on each GCD, with less memory than it has.
TIGHT_SITE = """
from dataclasses import replace

from hydragnn_flow.execution.sites.batch import Executors, local_processes
from hydragnn_flow.execution.site import Site
from hydragnn_flow.execution.sites.this_node import this_node


def site(options):
    run = options.resolved("tight", heartbeat=3)
    node = this_node()
    node = replace(node, gcd=replace(node.gcd, most_segments=1))
    parsl = Executors(node, run, local_processes, lambda: "127.0.0.1", first_lines=({line!r},))
    return Site("tight", 1, node, parsl)
"""
TIGHT_DATA: dict[str, Any] = {
    "source": {"format": "emt_alloys", "structures": 64, "atoms": [64, 64]},
    "split": {"val": 0.25, "test": 0.25},
}
SMALL, LARGE = 4, 32
# What a trainer process has of its own before it trains, in KiB, as `ulimit -d` counts it.
BEGIN = """
from pathlib import Path
from hydragnn_flow.execution.workers import answers
lines = Path("/proc/self/status").read_text().splitlines()
print(next(line.split()[1] for line in lines if line.startswith("VmData")))
"""
TIGHT_NETWORK = network_with(
    Architecture__hidden_dim=256, Training__num_epoch=1, Training__batch_size=LARGE
)


def ended(config, folder, site, device):
    """The directory of a run that ended well."""
    file, run = folder / "config.yaml", folder / "run"
    file.write_text(yaml.safe_dump(config))
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device.type == "cpu" else {}
    done = subprocess.run(
        [sys.executable, "-m", "hydragnn_flow", "run", file, "--run-dir", run, "--site", site],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, **hidden},
    )
    assert done.returncode == 0, done.stderr
    return run


def test_a_small_quickstart_makes_an_ensemble_that_is_better_than_the_mean(tmp_path, device):
    section = json.loads((REPOSITORY / "configs" / "potential.json").read_text())["NeuralNetwork"]
    section["Training"] |= {"num_epoch": 6, "batch_size": 4}
    run = ended(QUICKSTART | {"network": section}, tmp_path, "local", device)
    results = list(RunDirectory(run).results())
    assert {result.status for result in results} == {"ok"}
    with GraphStore.open(run / "store.gs", mode="random") as store:
        train, test = store["trainset"], store["testset"]
        mean = (train.target("energy").ravel() / train.n_atoms).mean()
        energies = abs(test.target("energy").ravel() / test.n_atoms - mean).mean()
        forces = abs(test.target("forces")).mean()
    found = json.loads((run / "ensemble" / "ensemble.json").read_text())["errors"]
    assert found["energy per atom"]["mae"]["ensemble"]["value"] < 1000 * energies / 4
    assert found["forces"]["mae"]["ensemble"]["value"] < forces / 2


def test_a_trial_that_does_not_fit_is_taken_in_more_parts(tmp_path, device):
    site = tmp_path / "tight.py"
    site.write_text(TIGHT_SITE.format(line=limit(tmp_path, device)))
    sizes = (SMALL, LARGE)
    config = CONFIG | {
        "data": TIGHT_DATA,
        "network": TIGHT_NETWORK,
        "search": {
            "trials": len(sizes),
            "rungs": "none",
            "space": {"Training.batch_size": {"choices": [SMALL, LARGE]}},
            "enqueue": [{"Training.batch_size": size} for size in sizes],
        },
        "ensemble": {"size": 2, "epochs": 2, "coverage": 0.8},
    }
    run = ended(config, tmp_path, site, device)
    segments: dict[int, list[SegmentResult]] = defaultdict(list)
    for result in RunDirectory(run).results():
        if result.kind == "trial":
            segments[result.number].append(result)
    for number, size in enumerate(sizes):
        *before, last = segments[number]
        assert (last.status, last.to_epoch) == ("ok", 1)
        assert {r.status for r in before} == ({"out_of_memory"} if size == LARGE else set())
        assert last.accumulation_steps == 2 ** len(before)


def limit(folder, device):
    """A shell line after which a process has memory for half of a large step, but not for all."""
    if device.type == "cpu":
        begin = subprocess.run([sys.executable, "-c", BEGIN], capture_output=True, check=True)
        return f"ulimit -d {int(begin.stdout) + 300_000}"  # KiB; a large step takes 500 MB
    if device.type != "cuda":
        pytest.skip(f"NOT CHECKED: torch has no limit of a process's memory on {device.type}")
    store = prepare_store(
        DataConfig.model_validate(TIGHT_DATA), 4.0, None, 0, folder / "measured.gs"
    )
    whole, half = (peak_gib(folder / f"{parts}", store, parts, device) for parts in (1, 2))
    _, total = torch.cuda.mem_get_info()
    share = 0.5 * (whole + half) * 2**30 / total
    return f"export PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction:{share:.6f}"


def peak_gib(folder, store, parts, device):
    training = {**TIGHT_NETWORK["Training"], "accumulation_steps": parts}
    spec = make_spec(folder, store, 1, network={**TIGHT_NETWORK, "Training": training})
    result = run_segment(spec, device=device)
    assert result.status == "ok"
    gc.collect()
    give_back_memory()
    return result.peak_memory_gib
