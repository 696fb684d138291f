"""A whole campaign with the engine ``hydragnn``, and each of its trials by HydraGNN's own script.

    cd benchmarks; python -m campaign_checks.hydragnn_engine --hydragnn PATH-OF-A-CHECKOUT

The campaign is that of `configs/quickstart.yaml` with networks of HydraGNN. HydraGNN's script
trains the configurations of its trials, on the same graphs and splits, for as many epochs as each
had.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import typer
import yaml
from peers.hydragnn_training import train
from results.code import REPOSITORY
from torch_geometric.data import Data

from hydragnn_flow import GraphStore, load_config
from hydragnn_flow.data import GraphSplit
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import SegmentResult

ENGINE = "peers.hydragnn_engine:build"
_BENCHMARKS = REPOSITORY / "benchmarks"
_SPLITS = ("trainset", "valset", "testset")
# What SchNet and PNAPlus of HydraGNN need beside the keys of the quickstart's network.
_KEYS = {"num_filters": 32, "num_radial": 6, "envelope_exponent": 5}


@dataclass(frozen=True)
class Trained:
    """A trial on both sides.

    Attributes
    ----------
    number, mpnn_type, epochs
        The trial, its type, and how many epochs it was trained.
    seconds
        CPU time of its segments [s], validation and checkpoints included.
    script_seconds
        CPU time of HydraGNN's ``train_validate_test`` [s].
    script_process_seconds
        CPU time of the process that ran it [s], which imports HydraGNN and reads the graphs.
    """

    number: int
    mpnn_type: str
    epochs: int
    seconds: float
    script_seconds: float
    script_process_seconds: float


@dataclass(frozen=True)
class Campaign:
    """A campaign that ran to its end.

    Attributes
    ----------
    wall_seconds
        From its beginning to its end.
    members
        Models of the ensemble.
    errors
        Mean absolute errors of the ensemble on the test split, in the data's units, of energies
        per atom.
    trials
        Those that were trained, on both sides.
    """

    wall_seconds: float
    members: int
    errors: dict[str, float]
    trials: list[Trained]


def measured(checkout: Path, folder: Path, trials: int = 12) -> Campaign:
    """Run the campaign and HydraGNN's script.

    Parameters
    ----------
    checkout
        Root of a checkout of HydraGNN.
    folder
        Where the run directory is to be; a campaign that was stopped there goes on.
    trials
        Number of trials.
    """
    config, run = folder / "hydragnn_engine.yaml", folder / "hydragnn_engine"
    config.write_text(yaml.safe_dump(_config(trials)), encoding="utf-8")
    paths = [str(_BENCHMARKS), os.environ.get("PYTHONPATH", "")]
    variables = {
        "PYTHONPATH": os.pathsep.join(paths),
        "HYDRAGNN_CHECKOUT": str(checkout.resolve()),
        "XDG_CACHE_HOME": str(folder / "cache"),  # without what was learned of other networks
    }
    environment = {**os.environ, **variables}
    command = [sys.executable, "-m", "hydragnn_flow", "run", str(config), "--run-dir", str(run)]
    subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
    directory, networks = RunDirectory(run), folder / "networks"
    networks.mkdir(exist_ok=True)
    os.environ |= variables  # the engine is imported here, too, to read the configuration
    checked = load_config(config)
    seconds: dict[int, float] = defaultdict(float)
    last: dict[int, SegmentResult] = {}
    for result in directory.results():
        if result.kind == "trial":
            seconds[result.number] += result.cpu_seconds
            last[result.number] = result
    trained = []
    for number, result in sorted(last.items()):
        section = checked.network_with(result.parameters).to_json()
        network, epochs = networks / f"{number}.json", result.to_epoch
        network.write_text(json.dumps(section), encoding="utf-8")
        of_loop, of_process = _by_script(checkout, directory.store, network, epochs)
        kind = section["Architecture"]["mpnn_type"]
        trained.append(Trained(number, kind, epochs, seconds[number], of_loop, of_process))
    summary = json.loads((run / "ensemble" / "ensemble.json").read_text(encoding="utf-8"))
    test = summary["test"]
    errors = {
        "energy per atom": float(test["energy"]["mae_per_atom_ensemble"]),
        "forces": float(test["forces"]["mae_ensemble"]),
    }
    return Campaign(summary["wall_seconds"], len(summary["members"]), errors, trained)


def _config(trials: int) -> dict[str, Any]:
    """The quickstart's campaign with HydraGNN's networks."""
    configs = REPOSITORY / "configs"
    config: dict[str, Any] = yaml.safe_load((configs / "quickstart.yaml").read_bytes())
    network = json.loads((configs / config["network"]).read_bytes())["NeuralNetwork"]
    network["engine"] = ENGINE
    network["Architecture"] |= _KEYS
    config["network"] = network
    config["search"]["trials"] = trials
    # Potentials of HydraGNN's PNA, which the quickstart has, see no positions.
    config["search"]["space"]["Architecture.mpnn_type"] = {"choices": ["SchNet", "EGNN", "PNAPlus"]}
    return config


def _by_script(checkout: Path, store: Path, network: Path, epochs: int) -> tuple[float, float]:
    """CPU time of HydraGNN's loop and of the process around it [s]."""
    words = ["--hydragnn", checkout, "--store", store, "--network", network, "--epochs", epochs]
    command = [sys.executable, "-m", "campaign_checks.hydragnn_engine", *map(str, words)]
    before = _cpu_of_children()
    done = subprocess.run(command, check=True, cwd=_BENCHMARKS, stdout=subprocess.PIPE)
    return float(done.stdout), _cpu_of_children() - before


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _script(checkout: Path, store: Path, network: Path, epochs: int) -> float:
    """Train a trial's network as HydraGNN's examples do; returns the CPU time of the loop [s]."""
    section = json.loads(network.read_text(encoding="utf-8"))
    section["Training"]["num_epoch"] = epochs
    section["Architecture"]["task_weights"] = [1.0]
    section["Variables_of_interest"] |= {
        "output_index": [0],
        "output_dim": [1],
        "denormalize_output": False,
    }
    with GraphStore.open(store) as opened:
        energies = opened.manifest.statistics.element_energies
        graphs = {name: _graphs(opened[name], energies) for name in _SPLITS}
    return train(checkout, graphs, section, math.inf, seed=0).seconds


def _graphs(split: GraphSplit, energies: dict[int, float]) -> list[Data]:
    """The graphs with the keys that HydraGNN reads, energies above those of the elements."""
    offsets = torch.zeros(119, dtype=torch.float64)
    for element, energy in energies.items():
        offsets[element] = energy
    made = []
    for index in range(len(split)):
        graph = split[index]
        energy = graph.energy.double() - offsets[graph.x[:, 0].long()].sum()
        made.append(
            Data(
                x=graph.x[:, :1].float(),
                pos=graph.pos.float(),
                edge_index=graph.edge_index,
                edge_shifts=graph.edge_shifts.float(),
                y=energy.float().reshape(1),
                y_loc=torch.tensor([[0, 1]]),
                energy=energy.reshape(1),
                forces=graph.forces.float(),
            )
        )
    return made


def main(
    hydragnn: Annotated[Path, typer.Option(help="Checkout of HydraGNN.", exists=True)],
    trials: Annotated[int, typer.Option(help="Number of trials.")] = 12,
    folder: Annotated[Path | None, typer.Option(help="Where to keep the run.")] = None,
    store: Annotated[Path | None, typer.Option(hidden=True)] = None,
    network: Annotated[Path | None, typer.Option(hidden=True)] = None,
    epochs: Annotated[int, typer.Option(hidden=True)] = 0,
) -> None:
    """Print what the campaign and HydraGNN's script took."""
    if store is not None and network is not None:
        print(_script(hydragnn, store, network, epochs))
        return
    with TemporaryDirectory() as passing:
        place = folder or Path(passing)
        place.mkdir(parents=True, exist_ok=True)
        campaign = measured(hydragnn, place.resolve(), trials)
    for trained in campaign.trials:
        print(asdict(trained))
    print(f"{campaign.members} members, {campaign.wall_seconds:.0f} s, {campaign.errors}")
    for name in ("seconds", "script_seconds", "script_process_seconds"):
        mean = np.mean([getattr(trained, name) for trained in campaign.trials])
        print(f"{name} per trial: {mean:.1f}")


if __name__ == "__main__":
    typer.run(main)
