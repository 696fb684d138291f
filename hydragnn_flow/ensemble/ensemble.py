"""A trained, calibrated ensemble: load it from a run directory and predict."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import nn
from torch_geometric.data import Batch, Data

from hydragnn_flow.config.network import read_json
from hydragnn_flow.config.run import Aggregation
from hydragnn_flow.config.targets import BRANCH
from hydragnn_flow.data import GraphSplit, GraphStore, Manifest, batch_graphs
from hydragnn_flow.ensemble.applicability import (
    APPLICABILITY,
    Applicability,
    deviations_of,
    joined_notes,
)
from hydragnn_flow.ensemble.calibration_file import load_by_data_set, load_calibrations
from hydragnn_flow.ensemble.checksums import verify_checksums
from hydragnn_flow.ensemble.conformal import needed_for_coverage
from hydragnn_flow.ensemble.inputs import (
    BUDGET,
    StructureGraphs,
    check_reads_structures,
    check_store,
    check_structures,
    graph_batches,
    structure_names,
    with_branch,
)
from hydragnn_flow.ensemble.labels import labels_of
from hydragnn_flow.ensemble.members import load_member, member_name, remaining_members
from hydragnn_flow.ensemble.mixed_calibration import (
    ByDataSet,
    MixedCalibration,
    calibration_of_rows,
    with_enough,
)
from hydragnn_flow.ensemble.predicting import Predictable, predict_chunks
from hydragnn_flow.ensemble.predictions_table import Predictions, joined
from hydragnn_flow.ensemble.summary import ensemble_folder, read_summary
from hydragnn_flow.ensemble.uncertainty import Calibration, Distribution, Floats, distribution
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import NOISE_SUFFIX
from hydragnn_flow.training.predict import join_members, predict_together, split_batches

MANIFEST = "manifest.json"


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
    """Manifest of the store the members were trained on."""
    coverage: float
    """Fraction of true values the intervals are to hold."""
    numbers: tuple[int, ...] | None = None
    """Number of each member, by which columns name it; from 0 on, if none is left out."""
    aggregation: Aggregation = "weighted"
    """How the members' predictions become one: ``median``, or their mean by ``weights``."""
    applicability: Applicability = field(default_factory=Applicability)
    """Ranges of the training data; by default nothing is known of them."""
    by_data_set: ByDataSet = field(default_factory=dict)
    """Calibrations of several data sets, which count in place of ``calibrations`` for theirs."""
    data_set: str | None = None
    """Data set, of several that the members were trained on, whose branch predicts structures that
    do not say to which they belong."""

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
            Members to leave out, by number; their files are not read. The weights of the others
            are divided by their sum. The calibration was made with all members, so intervals of
            the others hold less exactly what they should.
        data_set
            As of :meth:`of_data_set`.

        Raises
        ------
        InputError
            If the run has no ensemble yet, if its files are damaged, if fewer than two members
            would be left, or if there is no such data set.
        """
        folder = ensemble_folder(path)
        verify_checksums(folder, [member_name(member) for member in without])
        summary = read_summary(path)
        numbers, weights = remaining_members(summary, folder, without)
        try:
            manifest = Manifest.model_validate(read_json(folder / MANIFEST))
        except ValidationError:
            raise InputError(
                f"{folder / MANIFEST}: is damaged; restore it from a copy of the run"
            ) from None
        ensemble = cls(
            tuple(load_member(folder, member, manifest)[0] for member in numbers),
            weights,
            load_calibrations(folder, summary),
            manifest,
            summary["coverage"],
            tuple(numbers),
            summary["aggregation"],
            Applicability.load(folder / APPLICABILITY),
            load_by_data_set(folder, summary),
        )
        return ensemble if data_set is None else ensemble.of_data_set(data_set)

    def of_data_set(self, name: str) -> Ensemble:
        """The same ensemble, predicting structures as those of one of its data sets.

        Their energies are then at that data set's level of theory. Graphs of a store whose data
        sets are those of training say themselves to which they belong.

        Parameters
        ----------
        name
            One of `data.sources` of the run.

        Raises
        ------
        InputError
            If the ensemble was not trained on a data set of that name, with a branch for it.
        """
        known = self.manifest.data_sets
        if not self._has_branches or name not in known.values():
            told = f"its data sets are {', '.join(known.values())}" if known else "it has but one"
            raise InputError(
                f"the ensemble has no branch of a data set {name!r}; {told}"
                + ("" if known else ", so leave the name out")
            )
        return replace(self, data_set=name)

    def at(self, coverage: float) -> Ensemble:
        """The same ensemble with intervals that are to hold another fraction of true values.

        Raises
        ------
        InputError
            If it is no fraction, or needs more structures than the ensemble was calibrated on.
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
        """Predict structures.

        Parameters
        ----------
        structures
            ASE structures, periodic or not; a path of a file that ASE reads, of a directory of such
            files, of a GraphStore, or of a table (.csv) if the training data were one; or an open
            GraphStore. Labels that they have are shown beside the predictions, with the errors.
        split
            Name of the split of a GraphStore to predict; all of them, in the order of the store, if
            None.
        members
            Whether to give every member's prediction too (`<target>_member_<k>`).
        coverage
            Fraction of true values that the intervals are to hold, if another than that of the run.
        device
            Device of the networks, by torch's name.
        say
            Told which files of a directory were passed over, and why.

        Returns
        -------
        Predictions
            In the order of the input; `graph_id` is the position in it, or that of a store. A
            structure that cannot be predicted has a row with NaN, and the reason as its `note`.

        Raises
        ------
        InputError
            If there is nothing to predict, if the ensemble reads what structures do not have, or if
            it was calibrated on too few structures for the coverage.
        """
        ensemble = self if coverage is None else self.at(coverage)
        return joined(
            [
                chunk.tables
                for chunk in predict_chunks(
                    ensemble, structures, split=split, members=members, device=device, say=say
                )
            ]
        )

    def structure_predictions(
        self, structures: Sequence[Atoms], names: Sequence[str] | None = None
    ) -> tuple[dict[str, Floats], list[str]]:
        """Every member's predictions for structures, and what these have that is unlike the data.

        Parameters
        ----------
        structures
            ASE structures.
        names
            What to call each structure in errors.

        Returns
        -------
        dict
            Output -> ``[n_members, n, d]``.
        list
            Of each structure, as of :meth:`remarks`.

        Raises
        ------
        InputError
            If a structure has an element the ensemble never saw, or cannot be a graph.
        """
        self.check_reads_structures()
        predictions, refusals, remarks = self.predictions_where_possible(
            check_structures(structures)
        )
        names = structure_names(len(structures)) if names is None else names
        refused = [f"{name}: {why}" for name, why in zip(names, refusals, strict=True) if why]
        if refused:
            others = f" (and {len(refused) - 1} more are refused)" if len(refused) > 1 else ""
            raise InputError(f"{refused[0]}{others}")
        return predictions, remarks

    def predictions_where_possible(
        self, structures: Sequence[Atoms], refusals: Sequence[str | None] | None = None
    ) -> tuple[dict[str, Floats], list[str | None], list[str]]:
        """Every member's predictions, NaN for structures that have none; why they have none.

        Parameters
        ----------
        structures
            ASE structures.
        refusals
            Why structures are not to be predicted, where that is known.

        Returns
        -------
        dict
            Output -> ``[n_members, n, d]``, of the calibrated targets and their noise.
        list
            Reason for each structure; None for those that are predicted.
        list
            What the training data have nothing like, of :meth:`remarks`.
        """
        reasons = list(refusals or [None] * len(structures))

        def graphs() -> Iterator[Data]:
            for i, atoms in enumerate(structures):
                if reasons[i] is None:
                    try:
                        yield self.graphs.graph(atoms)
                    except InputError as error:
                        reasons[i] = str(error)

        said: list[str] = []
        found = self._members(self.noting(graph_batches(graphs(), BUDGET), said))
        predicted = np.array([reason is None for reason in reasons], dtype=bool)
        if not predicted.any():  # any structure shows what the outputs are
            found = self._members([self.batch_of(self.graphs.example)])
        of_atoms = np.repeat(predicted, [len(atoms) for atoms in structures])
        whole = {}
        for name, values in found.items():
            target = self.manifest.targets.get(name.removesuffix(NOISE_SUFFIX))
            if target is None:
                continue  # forces that nobody knows
            rows = predicted if target.level == "graph" else of_atoms
            whole[name] = np.full((len(values), len(rows), values.shape[2]), np.nan)
            whole[name][:, rows] = values[:, : rows.sum()]
        notes = np.full(len(structures), "", dtype=object)
        notes[predicted] = said
        n_atoms = np.array([len(atoms) for atoms in structures], dtype=np.int64)
        return whole, reasons, self.remarks(notes.tolist(), whole, n_atoms)

    def noting(self, batches: Iterable[Batch], notes: list[str]) -> Iterator[Batch]:
        """The batches, adding to ``notes`` what each structure has that training data have not."""
        for batch in batches:
            notes += self.applicability.notes(batch)
            yield batch

    def remarks(
        self, notes: Sequence[str], predictions: Mapping[str, Floats], n_atoms: NDArray[np.int64]
    ) -> list[str]:
        """Notes on structures, and where their members differ more than on calibration data.

        Parameters
        ----------
        notes
            As of :meth:`noting`.
        predictions
            Every member's: output -> ``[n_members, n, d]``.
        n_atoms
            Of each structure.
        """
        found = deviations_of(predictions, self.weights, self.manifest, n_atoms)
        deviations = self.applicability.deviation_notes(found, self.manifest)
        return joined_notes(notes, deviations) if deviations else list(notes)

    def refusal(self, atoms: Atoms) -> str | None:
        """Why a structure cannot be predicted; None if it can be."""
        try:
            self.graphs.graph(atoms)
        except InputError as error:
            return str(error)
        return None

    def batch_of(self, atoms: Atoms) -> Batch:
        """The graph of one structure, for the members to read.

        Raises
        ------
        InputError
            If the structure has an element the ensemble never saw, or cannot be a graph.
        """
        try:
            return batch_graphs([self.graphs.graph(atoms)])
        except InputError as error:
            raise InputError(f"the structure: {error}") from None

    def splits_of(self, store: GraphStore, split: str | None = None) -> list[GraphSplit]:
        """The splits of a store that hold graphs.

        Parameters
        ----------
        store
            Made with the ensemble's cutoff and `max_neighbours`.
        split
            Name of the one that is wanted; all in the order of the store if None.

        Raises
        ------
        InputError
            If the store does not fit the ensemble, or has no such split or nothing in it.
        """
        check_store(store, self.manifest)
        if self._has_branches and self.data_set is None and not self.knows_branches_of(store):
            known = self.manifest.data_sets.values()
            raise InputError(
                f"{store.path}: its graphs do not say to which of the ensemble's data sets, "
                f"{', '.join(known)}, they belong; say as which of them they are to be predicted, "
                f"by --data-set or Ensemble.of_data_set, or prepare the store from data sets of "
                f"these names and the key {BRANCH!r}"
            )
        splits = [store[name] for name in (store.splits if split is None else [split])]
        splits = [one for one in splits if len(one) > 0]
        if not splits:
            raise InputError(f"{store.path}: {split or 'the store'} holds no structures to predict")
        return splits

    def store_predictions(
        self, store: GraphStore, split: str | None = None
    ) -> tuple[list[GraphSplit], dict[str, Floats], list[str]]:
        """The splits of a store that hold graphs, and every member's predictions for them in turn.

        As for :meth:`splits_of`; the predictions are output -> ``[n_members, n, d]``. With them
        come the :meth:`remarks` on each structure.
        """
        splits, said = self.splits_of(store, split), list[str]()
        told = self.knows_branches_of(store)
        found = [
            self._members(
                self.with_branches(self.noting(split_batches(one, BUDGET), said), told=told)
            )
            for one in splits
        ]
        joined = {name: np.concatenate([one[name] for one in found], axis=1) for name in found[0]}
        n_atoms = np.concatenate([one.n_atoms for one in splits])
        return splits, joined, self.remarks(said, joined, n_atoms)

    def references(
        self, splits: Sequence[GraphSplit], predictions: dict[str, Floats], labels: Collection[str]
    ) -> dict[str, Floats]:
        """True values of the targets that are predicted and have labels, ``[n, d]``.

        Parameters are those of :meth:`tables`.
        """
        return {
            name: np.concatenate(
                [labels_of(split, name, predictions[name].shape[2]) for split in splits]
            )
            for name in self.calibrations
            if name in labels
        }

    def by_number(self, predictions: Mapping[str, Floats]) -> dict[str, dict[int, Floats]]:
        """Members' predictions by the members' numbers: output -> number -> ``[n, d]``."""
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
            Output -> ``[n_members, n, d]``.
        n_atoms
            Of each structure.
        numbers
            Atomic numbers of all structures; None if nodes are no atoms.
        data_sets
            Name of the data set of each structure, where there are several; by default it is
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
        of_nodes = self.manifest.targets[target].level == "node"
        of_rows = np.repeat(data_sets, n_atoms) if of_nodes else data_sets
        return calibration_of_rows(target, of_all, self.by_data_set, of_rows)

    def check_reads_structures(self) -> None:
        """Refuse structures where the members read what only graphs have.

        Raises
        ------
        InputError
            If they need node features or edges that structures do not have, or nobody says which
            of several branches is to predict them.
        """
        check_reads_structures(self.models, self.manifest)
        if self._has_branches and self.data_set is None:
            known = self.manifest.data_sets.values()
            raise InputError(
                f"the ensemble was trained on several data sets, {', '.join(known)}, each with "
                f"energies or labels of its own level; say as which of them structures are to be "
                f"predicted, by --data-set or Ensemble.of_data_set, or give graphs with the key "
                f"{BRANCH!r}"
            )

    def knows_branches_of(self, store: GraphStore) -> bool:
        """Whether graphs of a store say to which of the ensemble's data sets they belong.

        Numbers mean the same where the data sets have the same names in the same order, or none of
        them has a name.
        """
        found = store.manifest
        return BRANCH in found.keys and found.branch_names == self.manifest.branch_names

    def with_branches(self, batches: Iterable[Batch], *, told: bool) -> Iterator[Batch]:
        """The batches, each graph with the branch that predicts it.

        ``told`` says whether the graphs know it themselves; otherwise it is that of
        :attr:`data_set`.
        """
        branch = None if told else self._branch
        for batch in batches:
            yield batch if branch is None else with_branch(batch, branch, batch.num_graphs)

    @property
    def device(self) -> torch.device:
        """Device of the networks."""
        return next(self.models[0].parameters()).device

    @cached_property
    def graphs(self) -> StructureGraphs:
        """Maker of the graphs of structures."""
        return StructureGraphs(self.manifest, self._branch)

    @property
    def _branch(self) -> int | None:
        """Number of the branch of :attr:`data_set`."""
        numbers = {name: number for number, name in self.manifest.data_sets.items()}
        return None if self.data_set is None else numbers[self.data_set]

    @property
    def _has_branches(self) -> bool:
        return any(getattr(model, "n_branches", 1) > 1 for model in self.models)

    def _members(self, batches: Iterable[Batch]) -> dict[str, Floats]:
        return join_members(predict_together(self.models, batches, self.device))
