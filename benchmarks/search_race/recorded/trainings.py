"""The trainings themselves; each takes a few seconds of CPU time."""

from __future__ import annotations

import csv
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_race.recorded.tasks import TASKS

Params = Mapping[str, Any]
Training = tuple[list[float | None], float]
"""Validation loss of each epoch, None where there is no finite one, and CPU time [s]."""
Trainer = Callable[[Params, int], Training]
"""Trains a configuration with a seed."""

_CONFIGS = Path(__file__).parents[3] / "configs"
_RADIUS, _NEIGHBOURS = 4.0, 12


def trainer(task: str, work: Path, data: Path | None) -> Trainer:
    """Trainer of the configurations of a task.

    Parameters
    ----------
    task
        Its name.
    work
        Directory for what is prepared once.
    data
        Directory that holds `perov_5`; only tasks on perovskites need it.
    """
    makers: dict[str, Callable[[Path, Path | None], Trainer]] = {
        "alloys": _alloys,
        "perovskites": _perovskites,
        "boosting": _boosting,
    }
    return makers[task](work, data)


def _alloys(work: Path, data: Path | None) -> Trainer:
    source = {"format": "emt_alloys", "structures": 80, "atoms": [8, 12]}
    store = _store(work / "alloys.gs", {"source": source, "split": {"val": 0.3, "test": 0.1}}, None)
    base = json.loads((_CONFIGS / "potential.json").read_text(encoding="utf-8"))["NeuralNetwork"]

    def train(params: Params, seed: int) -> Training:
        network = _network(base, params)
        network["Architecture"]["max_neighbours"] = None
        width = network["Architecture"].pop("dim_headlayers")
        head = network["Architecture"]["output_heads"]["node"]
        head["num_headlayers"] = network["Architecture"].pop("num_headlayers")
        head["dim_headlayers"] = [width] * head["num_headlayers"]
        return _segment(network, store, TASKS["alloys"].epochs, seed)

    return train


def _perovskites(work: Path, data: Path | None) -> Trainer:
    folder = work / "perovskites"
    folder.mkdir(parents=True, exist_ok=True)
    rows = _perovskite_rows(data)
    with (folder / "val.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([rows[0], *rows[1::20]])
    source = {
        "format": "csv",
        "train": "val.csv",
        "structure": "cif",
        "targets": {"heat_all": "eV/atom"},
    }
    section = {"source": source, "path": folder, "split": {"val": 0.25, "test": 0.05}}
    store = _store(work / "perovskites.gs", section, _NEIGHBOURS)
    base = json.loads((_CONFIGS / "property.json").read_text(encoding="utf-8"))["NeuralNetwork"]
    del base["Architecture"]["edge_features"]  # the recorded networks did without

    def train(params: Params, seed: int) -> Training:
        network = _network(base, params)
        architecture = network["Architecture"]
        architecture["max_neighbours"] = _NEIGHBOURS
        head = architecture["output_heads"]["graph"]
        for key in ("num_sharedlayers", "dim_sharedlayers", "num_headlayers"):
            head[key] = architecture.pop(key)
        head["dim_headlayers"] = [head["dim_sharedlayers"]] * head["num_headlayers"]
        return _segment(network, store, TASKS["perovskites"].epochs, seed)

    return train


def _network(base: dict[str, Any], params: Params) -> dict[str, Any]:
    """HydraGNN's section with the values of a trial, those of the training where they belong."""
    network: dict[str, Any] = json.loads(json.dumps(base))
    architecture, training = network["Architecture"], network["Training"]
    # Some types want these named, whether or not they are searched.
    architecture |= {"radius": _RADIUS, "num_radial": 6, "envelope_exponent": 5, "num_filters": 32}
    optimizer = training["Optimizer"]
    for name, value in params.items():
        if name == "batch_size":
            training[name] = value
        elif name == "optimizer":
            optimizer["type"] = value
        elif name.endswith("learning_rate"):
            optimizer["learning_rate"] = value
        elif name == "weight_decay":
            optimizer[name] = value
        else:
            architecture[name] = value
    return network


def _store(path: Path, section: dict[str, Any], neighbours: int | None) -> Path:
    from hydragnn_flow.config.data import DataConfig
    from hydragnn_flow.data import prepare_store

    if not path.exists():
        prepare_store(DataConfig.model_validate(section), _RADIUS, neighbours, 0, path)
    return path


def _segment(network: dict[str, Any], store: Path, epochs: int, seed: int) -> Training:
    from hydragnn_flow.config import load_network
    from hydragnn_flow.segment import SegmentSpec
    from hydragnn_flow.training.runner import run_segment

    with TemporaryDirectory() as folder:
        spec = SegmentSpec(
            kind="trial",
            number=0,
            directory=folder,
            store=str(store),
            network=load_network(network),
            until_epoch=epochs,
            rung=0,
            seed=seed,
        )
        result = run_segment(spec)
    if result.status not in ("ok", "diverged"):
        raise RuntimeError(f"{result.status}: {result.reason}")
    losses: list[float | None] = [None] * epochs
    for epoch, _, loss, _ in result.history:
        losses[int(epoch) - 1] = loss if math.isfinite(loss) else None
    return losses, result.cpu_seconds


def _boosting(work: Path, data: Path | None) -> Trainer:
    from sklearn.ensemble import HistGradientBoostingRegressor

    x, y = _perovskite_table(data)
    epochs = TASKS["boosting"].epochs
    fit, judge = slice(0, 1000), slice(1000, 2500)

    def train(params: Params, seed: int) -> Training:
        start = time.process_time()
        order = np.random.default_rng(seed).permutation(len(y))
        model = HistGradientBoostingRegressor(
            **params, max_iter=epochs, early_stopping=False, random_state=seed
        ).fit(x[order[fit]], y[order[fit]])
        staged = model.staged_predict(x[order[judge]])
        losses: list[float | None] = [
            float(np.mean(np.abs(predicted - y[order[judge]]))) for predicted in staged
        ]
        losses += losses[-1:] * (epochs - len(losses))
        return losses, time.process_time() - start

    return train


def _perovskite_rows(data: Path | None) -> list[list[str]]:
    if data is None:
        raise SystemExit("tasks on perovskites need --data, the directory that holds perov_5")
    with (data / "perov_5" / "val.csv").open(newline="") as file:
        return list(csv.reader(file))


def _perovskite_table(data: Path | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Composition features of each structure, and its formation energy [eV/atom]."""
    from ase.data import atomic_masses, chemical_symbols, covalent_radii

    header, *rows = _perovskite_rows(data)
    cif, target = header.index("cif"), header.index("heat_all")
    features = []
    for row in rows:
        species = [
            line.split()[0]
            for line in row[cif].splitlines()
            if line.split() and line.split()[0] in chemical_symbols and len(line.split()) >= 6
        ]
        numbers = np.array([chemical_symbols.index(symbol) for symbol in species])
        if len(numbers) != 5:
            raise RuntimeError(f"expected five atoms, found {species}")
        properties = np.stack([numbers, covalent_radii[numbers], atomic_masses[numbers]])
        features.append(np.concatenate([properties.reshape(-1), properties.mean(1)]))
    return np.array(features), np.array([float(row[target]) for row in rows])
