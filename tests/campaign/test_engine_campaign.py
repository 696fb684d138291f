"""Campaigns whose networks an engine builds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from ase.build import bulk
from ase.calculators.fd import calculate_numerical_forces
from campaign_cases import CONFIG
from driver_cases import TWO_CORES
from own_engine import Neighbours
from phase_cases import RATES

from hydragnn_flow import Ensemble, EnsembleCalculator
from hydragnn_flow.execution.binding import bound_to
from hydragnn_flow.search import read_trials
from hydragnn_flow.training.checkpoints.checkpoint import load_checkpoint

pytestmark = pytest.mark.xdist_group("engines")
TESTS = Path(__file__).resolve().parents[1]
BENCHMARKS = TESTS.parent / "benchmarks"
RUN = ("run", "config.yaml", "--run-dir", "run")
PREDICT = ("predict", "run", "run/store.gs", "-o", "predictions.csv")
POTENTIAL = {
    "radius": 4.0,
    "enable_interatomic_potential": True,
    "energy_peratom_weight": 1.0,
    "force_weight": 1.0,
}


def config_of(folder, engine, keys, **search):
    network = CONFIG["network"] | {"engine": engine, "Architecture": POTENTIAL | keys}
    network["Training"] = network["Training"] | {"num_epoch": 3}
    search = {"trials": 3, "min_epochs": 1, "space": RATES} | search
    ensemble = {"size": 2, "epochs": 4, "coverage": 0.9}
    values = CONFIG | {"network": network, "search": search, "ensemble": ensemble}
    (folder / "config.yaml").write_text(yaml.safe_dump(values))


def flow(folder, *words, code=0, **variables):
    """Give a command where our test modules are found; returns what it says."""
    paths = [str(TESTS), str(BENCHMARKS), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}
    command = [sys.executable, "-m", "hydragnn_flow", *words]
    with bound_to(TWO_CORES):
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == code, done.stderr + done.stdout
    return done.stderr + done.stdout


def segments(run):
    return [json.loads(line) for line in (run / "segments.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_an_engine_of_the_users_is_searched_trained_and_predicted_with(tmp_path):
    """One of its configurations fails when it is tried, and only that trial ends."""
    space = {
        "Architecture.width": {"choices": [4, 8, 13]},
        "Training.Optimizer.learning_rate": {"float": [1e-3, 1e-2], "log": True},
    }
    enqueue = [{"Architecture.width": 13}, {"Architecture.width": 4}, {"Architecture.width": 8}]
    config_of(tmp_path, "own_engine:not_thirteen", {"width": 8}, space=space, enqueue=enqueue)
    flow(tmp_path, *RUN)
    trials = read_trials(tmp_path / "run")
    (failed,) = [trial for trial in trials if trial.state == "failed"]
    assert "RuntimeError in own_engine.py, line" in failed.reason
    assert "thirteen is unlucky" in failed.reason
    found = segments(tmp_path / "run")
    assert {line["number"] for line in found if line["kind"] == "trial"} == {1, 2}
    assert all(line["status"] == "ok" and line["predicted_seconds"] for line in found)
    wide, narrow = (
        {line["step_work"][0] for line in found if (line["kind"], line["number"]) == ("trial", n)}
        for n in (2, 1)
    )
    assert min(wide) > max(narrow)

    flow(tmp_path, *PREDICT)
    assert pd.read_csv(tmp_path / "predictions.csv")["energy_std"].gt(0).all()
    flow(tmp_path, "evaluate", "run", "run/store.gs")
    flow(tmp_path, "report", "run")

    ensemble = Ensemble.load(tmp_path / "run")
    assert all(isinstance(model.network, Neighbours) for model in ensemble.models)
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.1, seed=1)
    atoms.calc = EnsembleCalculator(ensemble)
    numeric = calculate_numerical_forces(atoms, 1e-3)
    assert abs(atoms.get_forces() - numeric).max() < 0.02 * abs(numeric).max()


@pytest.mark.slow
def test_an_engine_that_crashes_takes_no_driver_with_it(tmp_path):
    config_of(tmp_path, "own_engine:crashes", {})
    said = flow(tmp_path, *RUN, code=2)
    assert "does not get through a training step: its process was killed by SIGSEGV" in said
    assert not (tmp_path / "run" / "segments.jsonl").exists()


@pytest.mark.slow
def test_the_users_hydragnn_is_searched_trained_and_predicted_with(tmp_path, pytestconfig):
    checkout = pytestconfig.getoption("--hydragnn")
    if checkout is None:
        pytest.skip("needs a checkout of HydraGNN, named by --hydragnn=PATH")
    heads = {"node": {"num_headlayers": 1, "dim_headlayers": [8], "type": "mlp"}}
    keys = {"mpnn_type": "EGNN", "hidden_dim": 8, "num_conv_layers": 2, "output_heads": heads}
    keys["equivariant_attn_lmax"] = 1  # which our own networks do not have
    space = {
        "Architecture.mpnn_type": {"choices": ["EGNN", "SchNet"]},
        "Architecture.num_gaussians": {"choices": [8]},
        "Architecture.num_filters": {"choices": [8]},
    }
    config_of(tmp_path, "hydragnn_engine:build", keys, space=space)
    variables = {"HYDRAGNN_CHECKOUT": str(checkout.resolve())}
    flow(tmp_path, *RUN, **variables)
    found = segments(tmp_path / "run")
    assert {line["status"] for line in found} == {"ok"}
    flow(tmp_path, *PREDICT, **variables)

    # Its weights, as HydraGNN would save them, are those that another search begins with.
    folder = tmp_path / "run" / "ensemble" / "members" / "0"
    state = load_checkpoint(folder / "checkpoint.pt")["best"]
    prefix = "network.model."
    theirs = {k.replace(prefix, "module."): v for k, v in state.items() if k.startswith(prefix)}
    torch.save({"model_state_dict": theirs}, folder / "trained.pk")
    network = json.loads((folder / "config.json").read_text())["NeuralNetwork"]
    values = yaml.safe_load((tmp_path / "config.yaml").read_text())
    values |= {"network": network, "start_from": str(folder / "trained.pk")}
    values["search"]["space"] = {"Training.Optimizer.learning_rate": {"float": [1e-5, 1e-4]}}
    (tmp_path / "later.yaml").write_text(yaml.safe_dump(values))
    flow(tmp_path, "run", "later.yaml", "--run-dir", "later", **variables)
    begun = load_checkpoint(tmp_path / "later" / "start" / "weights.pt")["weights"]
    assert all(torch.equal(begun[k], v) for k, v in state.items() if k.startswith(prefix))
    assert {line["status"] for line in segments(tmp_path / "later")} == {"ok"}
