"""A trained, calibrated ensemble: load it from a run directory and predict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.data import chemical_symbols
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import nn
from torch_geometric.data import Batch, Data

from hydragnn_flow.config.network import read_json
from hydragnn_flow.config.run import Aggregation
from hydragnn_flow.data import (
    GraphSplit,
    GraphStore,
    Manifest,
    Target,
    atoms_to_graph,
    batch_graphs,
)
from hydragnn_flow.ensemble.applicability import APPLICABILITY, Applicability
from hydragnn_flow.ensemble.checksums import verify_checksums
from hydragnn_flow.ensemble.conformal import needed_for_coverage
from hydragnn_flow.ensemble.labels import labels_of
from hydragnn_flow.ensemble.members import load_member, member_name
from hydragnn_flow.ensemble.predictions_table import Predictions, build_tables
from hydragnn_flow.ensemble.summary import SUMMARY, ensemble_folder, read_summary
from hydragnn_flow.ensemble.uncertainty import Calibration, Distribution, Floats, distribution
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import NOISE_SUFFIX
from hydragnn_flow.models.embedding import NodeEmbedding
from hydragnn_flow.training.predict import predict_batches, split_batches

MANIFEST = "manifest.json"
_BATCH = 64
_ROUNDING = 1e-6


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

    @classmethod
    def load(cls, path: str | Path, *, without: Collection[int] = ()) -> Ensemble:
        """Load the ensemble of a finished run, or an exported one, and verify its files.

        Parameters
        ----------
        path
            Directory of the run, or of the export.
        without
            Members to leave out, by number; their files are not read. The weights of the others
            are divided by their sum. The calibration was made with all members, so intervals of
            the others hold less exactly what they should.

        Raises
        ------
        InputError
            If the run has no ensemble yet, if its files are damaged, or if fewer than two members
            would be left.
        """
        folder = ensemble_folder(path)
        verify_checksums(folder, [member_name(member) for member in without])
        summary = read_summary(path)
        numbers, weights = _remaining(summary, folder, without)
        try:
            manifest = Manifest.model_validate(read_json(folder / MANIFEST))
        except ValidationError:
            raise InputError(
                f"{folder / MANIFEST}: is damaged; restore it from a copy of the run"
            ) from None
        return cls(
            tuple(load_member(folder, member, manifest)[0] for member in numbers),
            weights,
            {
                name: Calibration.from_dict(values)
                for name, values in summary["calibration"].items()
            },
            manifest,
            summary["coverage"],
            tuple(numbers),
            summary["aggregation"],
            Applicability.load(folder / APPLICABILITY),
        )

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
            if calibration.structures < needed:
                raise InputError(
                    f"coverage = {coverage:g}: needs {needed} structures to calibrate on, and "
                    f"{name} was calibrated on {calibration.structures}; give a lower one, or "
                    f"recalibrate the ensemble on more labelled structures"
                )
        return replace(self, coverage=coverage)

    def predict(
        self,
        structures: Atoms | Sequence[Atoms],
        *,
        members: bool = False,
        files: Sequence[str] | None = None,
    ) -> Predictions:
        """Predict structures.

        Parameters
        ----------
        structures
            ASE structures, periodic or not; elements the ensemble was trained on. A single one is
            taken as a list of one.
        members
            Whether to give every member's prediction too (`<target>_member_<k>`).
        files
            Where each structure comes from: a column `file`, and what to call it in errors.

        Returns
        -------
        Predictions
            `graph_id` is the position in ``structures``, `formula` the chemical formula.

        Raises
        ------
        InputError
            If a structure has an element the ensemble never saw, or if the graphs it was trained
            on had more than elements and neighbours within the cutoff.
        """
        if isinstance(structures, Atoms):
            structures = [structures]
        predictions = self.structure_predictions(structures, files)
        n_atoms = np.array([len(atoms) for atoms in structures], dtype=np.int64)
        about = {} if files is None else {"file": files}
        return build_tables(
            np.arange(len(structures), dtype=np.int64),
            n_atoms,
            self.manifest.targets,
            self.distributions(predictions, n_atoms),
            {},
            self.coverage,
            predictions if members else None,
            about={**about, "formula": [_formula(atoms) for atoms in structures]},
            numbers=self.numbers,
        )

    def structure_predictions(
        self, structures: Sequence[Atoms], files: Sequence[str] | None = None
    ) -> dict[str, Floats]:
        """Every member's predictions for structures: output -> ``[n_members, n, d]``.

        As for :meth:`predict`.
        """
        self.check_reads_structures()
        names = structure_names(len(structures), files)
        _check_elements(structures, names, self._known)
        if len(structures) == 0:
            raise InputError("there are no structures to predict; give at least one")

        def batches() -> Iterable[Batch]:
            for start in range(0, len(structures), _BATCH):
                some = range(start, min(start + _BATCH, len(structures)))
                yield batch_graphs([self._graph(structures[i], i, names[i]) for i in some])

        return self._members(batches)

    def refusal(self, atoms: Atoms) -> str | None:
        """Why a structure cannot be predicted; None if it can be."""
        strange = set(atoms.numbers.tolist()) - self._known
        if strange:
            return f"has {_symbols(strange)}, which the training data do not have; leave it out"
        try:
            self._graph(atoms, 0, "")
        except InputError as error:
            return str(error).removeprefix(": ")
        return None

    def batch_of(self, atoms: Atoms) -> Batch:
        """The graph of one structure, for the members to read.

        Raises
        ------
        InputError
            If the structure has an element the ensemble never saw, or cannot be a graph.
        """
        name = "the structure"
        _check_elements([atoms], [name], self._known)
        graph = self._graph(atoms, 0, name)
        # At a fifth of what PyG takes to join graphs.
        batch = torch.zeros(len(atoms), dtype=torch.int64)
        ptr = torch.tensor([0, len(atoms)])
        return Batch(_base_cls=Data, **graph.to_dict(), batch=batch, ptr=ptr)

    @property
    def _known(self) -> set[int]:
        """Elements of the training data."""
        return set(self.manifest.elements) - self.manifest.unseen

    def _graph(self, atoms: Atoms, number: int, name: str) -> Data:
        cutoff, counted = self.manifest.cutoff, self.manifest.truncation
        assert cutoff is not None  # every store this package writes has one
        # If all lists were whole in training, those of denser structures must be whole too.
        whole = counted is not None and not counted.atoms
        kept = None if whole else self.manifest.max_neighbours
        try:
            return atoms_to_graph(atoms, cutoff, kept, number)
        except InputError as error:
            raise InputError(f"{name}: {str(error).removeprefix(f'structure {number} ')}") from None

    def predict_store(
        self, store: GraphStore, split: str | None = None, *, members: bool = False
    ) -> Predictions:
        """Predict the graphs of a store.

        Parameters
        ----------
        store
            Made with the ensemble's cutoff and `max_neighbours`. Its labels, if it has any, are
            shown beside the predictions.
        split
            Name of the split to predict; all of them, in the order of the store, if not given.
        members
            Whether to give every member's prediction too.

        Returns
        -------
        Predictions
            `graph_id` is the store's; tables of several splits begin with a column `split`.

        Raises
        ------
        InputError
            If the store does not fit the ensemble, or has no such split or nothing in it.
        """
        splits, predictions = self.store_predictions(store, split)
        return self.tables(splits, predictions, store.manifest.targets, members=members)

    def store_predictions(
        self, store: GraphStore, split: str | None = None
    ) -> tuple[list[GraphSplit], dict[str, Floats]]:
        """The splits of a store that hold graphs, and every member's predictions for them in turn.

        As for :meth:`predict_store`; the predictions are output -> ``[n_members, n, d]``.
        """
        _check_fit(store, self.manifest)
        splits = [store[name] for name in (store.splits if split is None else [split])]
        splits = [one for one in splits if len(one) > 0]
        if not splits:
            raise InputError(f"{store.path}: {split or 'the store'} holds no structures to predict")
        found = [self.member_predictions(one) for one in splits]
        joined = {name: np.concatenate([one[name] for one in found], axis=1) for name in found[0]}
        return splits, joined

    def tables(
        self,
        splits: Sequence[GraphSplit],
        predictions: dict[str, Floats],
        labels: Collection[str],
        *,
        members: bool = False,
    ) -> Predictions:
        """Lay out predictions for splits of a store.

        Parameters
        ----------
        splits
            One behind the other.
        predictions
            Every member's: target -> ``[n_members, n, d]``.
        labels
            Targets that the splits know the true values of.
        members
            Whether to give every member's prediction too.
        """
        n_atoms = np.concatenate([split.n_atoms for split in splits])
        names = np.repeat([split.name for split in splits], [len(split) for split in splits])
        return build_tables(
            np.concatenate([split.graph_id for split in splits]),
            n_atoms,
            self.manifest.targets,
            self.distributions(predictions, n_atoms),
            self.references(splits, predictions, labels),
            self.coverage,
            predictions if members else None,
            names if len(splits) > 1 else None,
            numbers=self.numbers,
        )

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

    def member_predictions(self, split: GraphSplit) -> dict[str, Floats]:
        """Every member's predictions for a split: output -> ``[n_members, n, d]``."""
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
                members.get(name + NOISE_SUFFIX),
                self.aggregation == "median",
                coverage=self.coverage,
            )
            for name, calibration in self.calibrations.items()
        }

    def check_reads_structures(self) -> None:
        """Refuse structures where the members read what only graphs have.

        Raises
        ------
        InputError
            If they need node features or edges that structures do not have.
        """
        embeddings = [
            layer for m in self.models for layer in m.modules() if isinstance(layer, NodeEmbedding)
        ]
        if any(layer.element_column != 0 or layer.other_columns for layer in embeddings):
            raise InputError(
                f"the ensemble reads node features of {', '.join(self.manifest.node_features)} "
                f"that structures do not have; give a GraphStore prepared like its training data"
            )
        if self.manifest.provenance.get("own_edges"):
            raise InputError(
                f"the training data brought edges of their own, others than neighbours by "
                f"`radius` {self.manifest.cutoff:g} and `max_neighbours` "
                f"{self.manifest.max_neighbours}, and structures have none; give a GraphStore "
                f"prepared like those data, or train with the two values their edges are made with"
            )

    def _members(self, batches: Callable[[], Iterable[Batch]]) -> dict[str, Floats]:
        return join_members([predict_batches(model, batches()) for model in self.models])


def _remaining(
    summary: Mapping[str, Any], folder: Path, without: Collection[int]
) -> tuple[list[int], NDArray[np.float64]]:
    """Numbers and weights of the members that are not left out."""
    members = {row["member"]: float(row["weight"]) for row in summary["members"]}
    total = sum(members.values())
    if not abs(total - 1) < _ROUNDING:
        raise InputError(
            f"{folder / SUMMARY}: weights of the members add up to {total:g}, not to 1; take the "
            f"file from a copy, or, in the directory of a run, delete it and start the run again"
        )
    strange = sorted(set(without) - members.keys())
    if strange:
        raise InputError(
            f"{folder}: has no member {strange[0]} to leave out; its members are "
            f"{', '.join(map(str, members))}"
        )
    numbers = [member for member in members if member not in without]
    if len(numbers) < 2:
        raise InputError(
            f"{folder}: without {', '.join(map(str, sorted(without)))} fewer than two of its "
            f"{len(members)} members are left, which say nothing of their uncertainty; leave "
            f"fewer out"
        )
    weights = np.array([members[number] for number in numbers])
    return numbers, weights / weights.sum() if without else weights


def structure_names(n: int, files: Sequence[str] | None) -> list[str]:
    """Names of the structures: file, and number if the file has several."""
    if files is None:
        return [f"structure {i}" for i in range(n)]
    several, seen, names = Counter(files), Counter[str](), []
    for file in files:
        names.append(f"{file}: structure {seen[file]}" if several[file] > 1 else file)
        seen[file] += 1
    return names


def _check_elements(structures: Sequence[Atoms], names: Sequence[str], known: set[int]) -> None:
    """Refuse structures with elements that no member knows."""
    unknown = [
        (name, strange)
        for name, atoms in zip(names, structures, strict=True)
        if (strange := set(atoms.numbers.tolist()) - known)
    ]
    if unknown:
        name, strange = unknown[0]
        others = "" if len(unknown) == 1 else f" (and {len(unknown) - 1} more have such elements)"
        raise InputError(
            f"{name}: has {_symbols(strange)}, which the training data do not have{others}; leave "
            f"it out"
        )


def _formula(atoms: Atoms) -> str:
    return str(atoms.symbols.formula.format("hill"))


def join_members(predictions: Sequence[Mapping[str, Floats]]) -> dict[str, Floats]:
    """Predictions of all members: output -> ``[n_members, n, d]``.

    Members of different trials may differ in whether they predict a noise.
    """
    common = [name for name in predictions[0] if all(name in p for p in predictions)]
    return {name: np.stack([p[name] for p in predictions]) for name in common}


def _check_fit(store: GraphStore, trained_on: Manifest) -> None:
    """Refuse a store whose graphs are not like those the members learnt from."""
    found = store.manifest
    file = store.path / MANIFEST if (store.path / MANIFEST).exists() else store.path
    for key, nothing in (("cutoff", "unknown"), ("max_neighbours", "none"), ("node_features", "")):
        theirs, ours = getattr(found, key), getattr(trained_on, key)
        if theirs != ours:
            said = [nothing if value is None else str(value) for value in (theirs, ours)]
            raise InputError(
                f"{file}: {key} is {said[0]}, but {said[1]} in the data the ensemble was trained "
                f"on; prepare the store like those, or give its structures in a file ASE reads"
            )
    cut, whole = found.truncation, trained_on.truncation
    if cut is not None and cut.atoms and whole is not None and not whole.atoms:
        raise InputError(
            f"{file}: {cut.sentence(found.cutoff or 0.0, found.max_neighbours)}, and nothing in "
            f"the data the ensemble was trained on; give its structures in a file ASE reads"
        )
    unknown = set(found.elements) - set(trained_on.elements)
    if unknown:
        raise InputError(
            f"{file}: elements has {_symbols(unknown)}, which the training data do not have; make "
            f"a store without these structures"
        )
    for name in found.targets.keys() & trained_on.targets.keys():
        theirs, ours = found.targets[name], trained_on.targets[name]
        if not theirs.unit or not ours.unit:
            theirs = theirs.model_copy(update={"unit": ours.unit})
        if theirs != ours:
            raise InputError(
                f"{file}: targets.{name} is {_described(theirs)}, but {_described(ours)} in the "
                f"data the ensemble was trained on; convert the labels, or leave them out"
            )


def _described(target: Target) -> str:
    return f"{target.dim} per {target.level} in {target.unit or 'unknown units'}"


def _symbols(numbers: Iterable[int]) -> str:
    known = range(len(chemical_symbols))
    return ", ".join(chemical_symbols[z] if z in known else str(z) for z in sorted(numbers))
