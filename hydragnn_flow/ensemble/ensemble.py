"""A trained, calibrated ensemble: load it from a run directory and predict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ase import Atoms
from numpy.typing import NDArray
from torch import nn
from torch_geometric.data import Batch

from hydragnn_flow.config.network import read_json
from hydragnn_flow.data import GraphSplit, Manifest, atoms_to_graph, batch_graphs
from hydragnn_flow.ensemble.tables import Predictions, build_tables
from hydragnn_flow.ensemble.uncertainty import Calibration, Distribution, Floats, distribution
from hydragnn_flow.errors import InputError
from hydragnn_flow.training.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.predict import predict_batches, restore_model, split_batches

FOLDER = "ensemble"
SUMMARY = "ensemble.json"
MANIFEST = "manifest.json"
VERSION = 1
_BATCH = 64


@dataclass(frozen=True)
class Ensemble:
    """Several trained models that predict together.

    Examples
    --------
    >>> ensemble = Ensemble.load("runs/quickstart")
    >>> predictions = ensemble.predict([atoms])
    >>> predictions.graphs[["energy_mean", "energy_std", "energy_lo", "energy_hi"]]
    """

    models: tuple[nn.Module, ...]
    weights: NDArray[np.float64]
    """``[n_members]``, adding up to one."""
    calibrations: dict[str, Calibration]
    """Per target."""
    manifest: Manifest
    """Of the store the members were trained on."""
    level: float
    """Share of true values the intervals are to hold."""

    @classmethod
    def load(cls, run_directory: str | Path) -> Ensemble:
        """Load the ensemble of a finished run.

        Raises
        ------
        InputError
            If the run has no ensemble yet, or its files are damaged.
        """
        folder = Path(run_directory) / FOLDER
        if not (folder / SUMMARY).exists():
            raise InputError(
                f"{run_directory}: holds no finished ensemble; run the campaign to its end first"
            )
        summary = read_json(folder / SUMMARY)
        if summary.get("version") != VERSION:
            raise InputError(
                f"{folder / SUMMARY}: has version {summary.get('version')}, this package reads "
                f"{VERSION}"
            )
        manifest = Manifest.model_validate(read_json(folder / MANIFEST))
        return cls(
            tuple(load_member(folder, m["member"], manifest) for m in summary["members"]),
            np.array([m["weight"] for m in summary["members"]]),
            {name: Calibration(**values) for name, values in summary["calibration"].items()},
            manifest,
            summary["level"],
        )

    def predict(self, structures: Sequence[Atoms], *, members: bool = False) -> Predictions:
        """Predict structures.

        Parameters
        ----------
        structures
            ASE structures, periodic or not; elements the ensemble was trained on.
        members
            Whether to give every member's prediction too (`<target>_member_<k>`).

        Returns
        -------
        Predictions
            `graph_id` is the position in ``structures``.

        Raises
        ------
        InputError
            If a structure has an element the ensemble never saw.
        """
        known = set(self.manifest.elements)
        for i, atoms in enumerate(structures):
            unknown = sorted(set(atoms.numbers.tolist()) - known)
            if unknown:
                raise InputError(
                    f"structure {i}: has elements with atomic numbers {unknown}, which are not in "
                    f"the training data; leave the structure out"
                )
        manifest = self.manifest
        cutoff = manifest.cutoff
        assert cutoff is not None  # every store this package writes has one

        def batches() -> Iterable[Batch]:
            for start in range(0, len(structures), _BATCH):
                part = structures[start : start + _BATCH]
                yield batch_graphs(
                    [
                        atoms_to_graph(atoms, cutoff, manifest.max_neighbours, start + i)
                        for i, atoms in enumerate(part)
                    ]
                )

        n_atoms = np.array([len(atoms) for atoms in structures], dtype=np.int64)
        if len(structures) == 0:
            raise InputError("there are no structures to predict; give at least one")
        return self._tables(
            self._members(batches),
            np.arange(len(structures), dtype=np.int64),
            n_atoms,
            references={},
            members=members,
        )

    def predict_split(self, split: GraphSplit, *, members: bool = False) -> Predictions:
        """Predict all graphs of a store's split, with their labels beside the predictions."""
        return self._tables(
            self.member_predictions(split),
            split.graph_id,
            split.n_atoms,
            references={name: split.target(name) for name in self.calibrations},
            members=members,
        )

    def member_predictions(self, split: GraphSplit) -> dict[str, Floats]:
        """Every member's predictions for a split: target -> ``[n_members, n, d]``."""
        return self._members(lambda: split_batches(split, _BATCH))

    def distributions(
        self, members: dict[str, Floats], n_atoms: NDArray[np.int64]
    ) -> dict[str, Distribution]:
        """Combine members' predictions with the ensemble's weights and calibration."""
        atoms = n_atoms.astype(float)[:, None]
        return {
            name: distribution(
                members[name],
                self.weights,
                calibration,
                atoms if self.manifest.targets[name].level == "graph" else None,
            )
            for name, calibration in self.calibrations.items()
        }

    def _members(self, batches: Callable[[], Iterable[Batch]]) -> dict[str, Floats]:
        predictions = [predict_batches(model, batches()) for model in self.models]
        return {name: np.stack([p[name] for p in predictions]) for name in predictions[0]}

    def _tables(
        self,
        predictions: dict[str, Floats],
        graph_id: NDArray[np.int64],
        n_atoms: NDArray[np.int64],
        references: dict[str, Floats],
        members: bool,
    ) -> Predictions:
        return build_tables(
            graph_id,
            n_atoms,
            self.manifest.targets,
            self.distributions(predictions, n_atoms),
            references,
            self.level,
            predictions if members else None,
        )


def load_member(folder: Path, member: int, manifest: Manifest) -> nn.Module:
    """Load the best weights of a member from the ensemble's folder."""
    directory = member_folder(folder, member)
    network = read_json(directory / "config.json")["NeuralNetwork"]
    return restore_model(network, manifest, load_checkpoint(directory / FILE)["best"])


def member_folder(folder: Path, member: int) -> Path:
    """Where a member keeps its files."""
    return folder / "members" / str(member)
