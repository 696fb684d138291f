"""Trained, calibrated ensemble that is loaded from a run directory and predicts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from numpy.typing import NDArray
from torch import nn
from torch_geometric.data import Batch

from hydragnn_flow.config.run import Aggregation
from hydragnn_flow.data import Manifest, batch_graphs
from hydragnn_flow.data.store.manifest import kept_manifest
from hydragnn_flow.ensemble.applicability import (
    APPLICABILITY,
    Applicability,
    deviations_of,
    joined_notes,
)
from hydragnn_flow.ensemble.branches import Branches
from hydragnn_flow.ensemble.calibration_file import load_calibrations
from hydragnn_flow.ensemble.checksums import CHECKSUMS, verify_checksums
from hydragnn_flow.ensemble.conformal import needed_for_coverage
from hydragnn_flow.ensemble.inputs import StructureGraphs, check_reads_structures
from hydragnn_flow.ensemble.member_predictions import lay_out, on_device, predict_members
from hydragnn_flow.ensemble.members import load_member, member_files, remaining_members
from hydragnn_flow.ensemble.predictions_table import Predictions, joined
from hydragnn_flow.ensemble.structure_files import Predictable, open_structures
from hydragnn_flow.ensemble.summary import SUMMARY, ensemble_folder, member_name, read_summary
from hydragnn_flow.ensemble.uncertainty import (
    ByDataSet,
    Calibration,
    Distribution,
    Floats,
    MixedCalibration,
    calibration_of_rows,
    distribution,
    with_enough,
)
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import NOISE_SUFFIX
from hydragnn_flow.plain_files import FROM_A_COPY

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Ensemble:
    """Ensemble of trained models that predict together, with calibrated error bars.

    Examples
    --------
    >>> ensemble = Ensemble.load("runs/quickstart")
    >>> predictions = ensemble.predict([atoms])
    >>> predictions.graphs[["energy_mean", "energy_std", "energy_lo", "energy_hi"]]
    """

    models: tuple[nn.Module, ...]
    weights: NDArray[np.float64]
    """Weights of the members ``[n_members]``, which add up to one."""
    calibrations: dict[str, Calibration]
    """Calibration of error bars by target."""
    manifest: Manifest
    """Manifest of the store the members were trained on."""
    coverage: float
    """Fraction of true values in the intervals."""
    numbers: tuple[int, ...] | None = None
    """Number of each member, which names its columns; counted from 0 if None."""
    aggregation: Aggregation = "weighted"
    """Combination of the members' predictions: ``median``, or their mean by ``weights``."""
    applicability: Applicability = field(default_factory=Applicability)
    """Ranges of the training data, for out-of-distribution notes; unknown by default."""
    by_data_set: ByDataSet = field(default_factory=dict)
    """Calibrations by data set and target, which replace ``calibrations`` for their data set."""
    data_set: str | None = None
    """Data set whose branch predicts structures that name none, if there are several."""
    directory: Path | None = None
    """Directory that the ensemble was loaded from."""

    @classmethod
    def load(
        cls, path: str | Path, *, without: Collection[int] = (), data_set: str | None = None
    ) -> Ensemble:
        """Load the ensemble of a finished run, or an exported one, and verify its files.

        Parameters
        ----------
        path
            Directory of the run, or of the export.
        without
            Numbers of members to leave out; their files are not read. The weights of the others are
            divided by their sum. The calibration was made with all members, so the coverage of
            intervals is less exact without some.
        data_set
            Name of a data set, see :meth:`of_data_set`.

        Raises
        ------
        InputError
            If the run has no ensemble yet, if its files are damaged, if fewer than two members
            would be left, or if there is no such data set.
        """
        folder = ensemble_folder(path)
        named = verify_checksums(folder, [member_name(member) for member in without])
        summary = read_summary(path)
        numbers, weights = remaining_members(summary, folder, without)
        files = {SUMMARY, MANIFEST, APPLICABILITY}.union(*map(member_files, numbers))
        if unnamed := files.difference(named):
            raise InputError(f"{folder / CHECKSUMS}: has none of {min(unnamed)}; {FROM_A_COPY}")
        manifest = kept_manifest(folder / MANIFEST)
        calibrations, by_data_set = load_calibrations(folder, summary)
        ensemble = cls(
            tuple(load_member(folder, member, manifest)[0] for member in numbers),
            weights,
            calibrations,
            manifest,
            summary["coverage"],
            tuple(numbers),
            summary.get("aggregation", "weighted"),
            Applicability.load(folder / APPLICABILITY),
            by_data_set,
            directory=Path(path),
        )
        return ensemble if data_set is None else ensemble.of_data_set(data_set)

    def of_data_set(self, name: str) -> Ensemble:
        """Return the same ensemble, predicting structures as those of one of its data sets.

        Energies are then at that data set's level of theory. Graphs of a store with the same data
        sets as in training carry their data set.

        Parameters
        ----------
        name
            Name of one of `data.sources` of the run.

        Raises
        ------
        InputError
            If the ensemble has no branch for a data set of that name.
        """
        self.branches.check_has(name)
        return replace(self, data_set=name)

    def at(self, coverage: float) -> Ensemble:
        """Return the same ensemble with intervals for another fraction of true values.

        Raises
        ------
        InputError
            If the fraction is not between 0 and 1, or needs more structures than the ensemble was
            calibrated on.
        """
        if not 0 < coverage < 1:
            raise InputError(f"coverage = {coverage:g}: must lie between 0 and 1; give 0.9, say")
        needed = needed_for_coverage(coverage)
        for name, calibration in self.calibrations.items():
            if calibration.least_structures < needed:
                raise InputError(
                    f"coverage = {coverage:g}: needs {needed} structures to calibrate on, and some "
                    f"intervals of {name} rely on {calibration.least_structures}; give a lower "
                    f"one, or recalibrate the ensemble on more labelled structures"
                )
        return replace(self, coverage=coverage, by_data_set=with_enough(self.by_data_set, coverage))

    def predict(
        self,
        structures: Predictable,
        *,
        split: str | None = None,
        members: bool = False,
        coverage: float | None = None,
        device: str | torch.device = "cpu",
        say: Callable[[str], None] = print,
    ) -> Predictions:
        """Predict structures with calibrated error bars.

        Parameters
        ----------
        structures
            ASE structures, periodic or not; a path of a file that ASE reads, of a directory of such
            files, of a GraphStore, or of a table (.csv) if the training data were one; or an open
            GraphStore. Their labels are shown with the predictions, and errors too.
        split
            Name of the split of a GraphStore to predict; if None, all of them, in the order of the
            store.
        members
            True to add every member's prediction (`<target>_member_<k>`).
        coverage
            Fraction of true values in the intervals, if not that of the run.
        device
            Device of the networks, by torch's name.
        say
            Function that receives remarks on files of a directory that were skipped.

        Returns
        -------
        Predictions
            Tables in the order of the input; `graph_id` is the position in it, or that of a store.
            A structure that cannot be predicted has a row with NaN, and the reason as its `note`.

        Raises
        ------
        InputError
            If there is nothing to predict, if the ensemble reads inputs that structures do not
            have, or if it was calibrated on too few structures for the coverage.
        """
        ensemble = on_device(self if coverage is None else self.at(coverage), device)
        opened = open_structures(ensemble, structures, split)
        found = predict_members(ensemble, opened, say=say)
        return joined([lay_out(ensemble, some, members).tables for some in found])

    def remarks(
        self, notes: Sequence[str], predictions: Mapping[str, Floats], n_atoms: NDArray[np.int64]
    ) -> list[str]:
        """Return notes on structures, extended where members differ more than in calibration.

        Parameters
        ----------
        notes
            Note on each structure: properties that the training data do not have.
        predictions
            Predictions of every member ``[n_members, n, d]`` by output.
        n_atoms
            Number of atoms of each structure.
        """
        found = deviations_of(predictions, self.weights, self.manifest, n_atoms)
        deviations = self.applicability.deviation_notes(found, self.manifest)
        return joined_notes(notes, deviations) if deviations else list(notes)

    def refusal(self, atoms: Atoms) -> str | None:
        """Return the reason why a structure cannot be predicted; None if it can be."""
        try:
            self.graphs.graph(atoms)
        except InputError as error:
            return str(error)
        return None

    def batch_of(self, atoms: Atoms) -> Batch:
        """Return the graph of one structure as a batch for the members.

        Raises
        ------
        InputError
            If an element is not in the training data, or the structure cannot be a graph.
        """
        try:
            return batch_graphs([self.graphs.graph(atoms)])
        except InputError as error:
            raise InputError(f"the structure: {error}") from None

    def by_number(self, predictions: Mapping[str, Floats]) -> dict[str, dict[int, Floats]]:
        """Return members' predictions ``[n, d]`` by output and member number."""
        numbers = self.numbers or range(len(self.models))
        return {
            name: dict(zip(numbers, values, strict=True)) for name, values in predictions.items()
        }

    def distributions(
        self,
        members: dict[str, Floats],
        n_atoms: NDArray[np.int64],
        numbers: NDArray[np.int64] | None,
        data_sets: NDArray[np.object_] | None = None,
    ) -> dict[str, Distribution]:
        """Combine members' predictions with the ensemble's weights and calibration.

        Parameters
        ----------
        members
            Predictions of the members ``[n_members, n, d]`` by output.
        n_atoms
            Number of atoms of each structure.
        numbers
            Atomic numbers of all structures; None if nodes are not atoms.
        data_sets
            Name of the data set of each structure, if there are several; by default
            :attr:`data_set`.
        """
        if data_sets is None and self.data_set is not None:
            data_sets = np.full(len(n_atoms), self.data_set, dtype=object)
        atoms = n_atoms.astype(float)[:, None]
        return {
            name: distribution(
                members[name],
                self.weights,
                self._calibration(name, calibration, n_atoms, data_sets),
                atoms if self.manifest.targets[name].level == "graph" else None,
                members.get(name + NOISE_SUFFIX),
                self.aggregation == "median",
                coverage=self.coverage,
                numbers=None if self.manifest.targets[name].level == "graph" else numbers,
            )
            for name, calibration in self.calibrations.items()
        }

    def _calibration(
        self,
        target: str,
        of_all: Calibration,
        n_atoms: NDArray[np.int64],
        data_sets: NDArray[np.object_] | None,
    ) -> Calibration | MixedCalibration:
        if data_sets is None or not self.by_data_set:
            return of_all
        of_rows = self.manifest.targets[target].rows_of(data_sets, n_atoms)
        return calibration_of_rows(target, of_all, self.by_data_set, of_rows)

    def check_reads_structures(self) -> None:
        """Raise an error if the members need more than plain structures.

        Raises
        ------
        InputError
            If they need node features or edges that structures do not have, or it is open which of
            several branches is to predict.
        """
        check_reads_structures(self.models, self.manifest)
        self.branches.check_structures()

    @property
    def device(self) -> torch.device:
        """Device of the networks."""
        return next(self.models[0].parameters()).device

    @cached_property
    def graphs(self) -> StructureGraphs:
        """Converter of structures to graphs."""
        return StructureGraphs(self.manifest, self.branches.number)

    @cached_property
    def branches(self) -> Branches:
        """Branches of the networks, and the data set of each."""
        several = any(getattr(model, "n_branches", 1) > 1 for model in self.models)
        return Branches(self.manifest, several, self.data_set)
