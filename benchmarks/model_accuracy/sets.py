"""Data sets, errors on their test splits, and networks that are compared on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from model_race.networks import network_of
from numpy.typing import NDArray

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import GraphSplit, prepare_store
from hydragnn_flow.training.predict import split_batches

CUTOFF = 5.0


class Measure(NamedTuple):
    """An error on the test split."""

    target: str
    unit: str
    factor: float
    """From the unit of the target to this one."""
    how: str
    """`rmse` or `mae`."""
    per_atom: bool
    """True if the target is divided by the number of atoms."""


@dataclass(frozen=True)
class Set:
    """A data set."""

    data: dict[str, Any]
    """The section `data` of a run configuration, without the path."""
    folder: str
    """Folder of its files, below the directory of the data sets."""
    measures: list[Measure]
    batch_size: int
    neighbours: int | None
    potential: bool
    periodic: bool


SETS = {
    name: Set(**{**content, "measures": [Measure(*one) for one in content["measures"]]})
    for name, content in yaml.safe_load(
        Path(__file__).with_name("sets.yaml").read_text(encoding="utf-8")
    ).items()
}


@dataclass(frozen=True)
class Contest:
    """A network of ours and HydraGNN's of the same settings, on one set."""

    set: str
    mpnn_type: str
    seconds: float
    """CPU time of each training [s]."""
    lengths: bool = False
    """True if both get edge lengths as `edge_features`; potentials compute their own."""
    one_hot: bool = False
    """True if HydraGNN gets a column for each element instead of the atomic number, as is better
    for it on a set of many elements."""

    @property
    def name(self) -> str:
        """Name for ``--only`` and the table."""
        return f"{self.set}:{self.mpnn_type}{'+lengths' if self.lengths else ''}"


# With both sides and three seeds 75 minutes of a core.
CONTESTS = (
    Contest("acac", "PAINN", 200),
    Contest("acac", "MACE", 200),
    Contest("perov_5", "PNA", 60, lengths=True, one_hot=True),
    Contest("Si", "PAINN", 120),
    Contest("acac", "EGNN", 60),
    Contest("perov_5", "PNA", 60, one_hot=True),
    Contest("Ge", "PAINN", 40),
)


def prepare(name: str, data: Path, path: Path) -> None:
    """Build the store of a set.

    Raises
    ------
    InputError
        Where its files are missing.
    """
    if not path.exists():
        chosen = SETS[name]
        config = DataConfig.model_validate({**chosen.data, "path": data / chosen.folder})
        prepare_store(config, CUTOFF, chosen.neighbours, 0, path)


def network(contest: Contest) -> dict[str, Any]:
    """The `NeuralNetwork` section of both sides."""
    chosen = SETS[contest.set]
    outputs = {chosen.measures[0].target: "node" if chosen.potential else "graph"}
    section = network_of(contest.mpnn_type, outputs, potential=chosen.potential)
    section["Architecture"]["max_neighbours"] = chosen.neighbours
    if contest.lengths:
        section["Architecture"]["edge_features"] = ["lengths"]
    section["Training"] |= {
        "num_epoch": 10_000,  # the CPU time ends it
        "batch_size": chosen.batch_size,
        "Scheduler": {"type": "ReduceLROnPlateau", "factor": 0.5, "patience": 5},
    }
    return section


def errors(
    name: str, split: GraphSplit, predictions: Mapping[str, NDArray[np.float64]]
) -> tuple[float, ...]:
    """Errors of predictions of a split, by target: one for each measure of the set."""
    found = []
    for measure in SETS[name].measures:
        residuals = predictions[measure.target] - labels(split, measure.target)
        if measure.per_atom:
            residuals = residuals / split.n_atoms[:, None]
        root = measure.how == "rmse"
        error = np.sqrt(np.mean(residuals**2)) if root else np.mean(np.abs(residuals))
        found.append(measure.factor * float(error))
    return tuple(found)


def labels(split: GraphSplit, target: str) -> NDArray[np.float64]:
    """Values of a target, [n_graphs, d] or [n_atoms, d]."""
    parts = [batch[target].double().numpy() for batch in split_batches(split)]
    values = np.concatenate(parts)
    return values if values.ndim == 2 else values[:, None]
