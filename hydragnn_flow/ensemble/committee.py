"""Members of an ensemble that predict together: their files, networks and combination."""

from __future__ import annotations

import copy
import html
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from ase import Atoms
from numpy.typing import NDArray
from torch import nn
from torch_geometric.data import Batch

from hydragnn_flow.config.network import NETWORK, load_network
from hydragnn_flow.data import Manifest, batch_graphs
from hydragnn_flow.data.store.manifest import symbols
from hydragnn_flow.ensemble.applicability import (
    Applicability,
    deviations_of,
    joined_notes,
)
from hydragnn_flow.ensemble.predictions.inputs import StructureGraphs, check_reads_structures
from hydragnn_flow.ensemble.predictions.labels import Branches
from hydragnn_flow.ensemble.summary import ENSEMBLE, SUMMARY, member_folder, member_name
from hydragnn_flow.ensemble.uncertainty.distribution import (
    Calibration,
    Distribution,
    Floats,
    StructureFacts,
    distribution,
)
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import NOISE_SUFFIX
from hydragnn_flow.models.leverage import LEVERAGE
from hydragnn_flow.models.potential import Potential
from hydragnn_flow.plain_files import sound
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.distributed import usable_device
from hydragnn_flow.training.predict import KEY, SPLITS, predictions_in, restore_model


@dataclass(frozen=True, repr=False)
class Committee:
    """Trained networks that predict together, with weights, calibration and ranges of the data."""

    models: tuple[nn.Module, ...]
    weights: NDArray[np.float64]
    """Weights of the members ``[n_members]``, which add up to one."""
    calibrations: dict[str, Calibration]
    """Calibration of the error bars, by name of the target."""
    manifest: Manifest
    """Manifest of the store that the members were trained on."""
    coverage: float
    """Fraction of true values that prediction intervals are meant to contain."""
    numbers: tuple[int, ...] | None = None
    """Number of each member in the run, used in names of columns; None for 0, 1, 2, …"""
    applicability: Applicability = field(default_factory=Applicability)
    """Ranges of the training data, for notes on structures outside of them; unknown by default."""
    data_set: str | None = None
    """Data set whose branch (heads of one data set) predicts structures that name no data set; None
    if there is only one or none was chosen."""
    directory: Path | None = None
    """Directory that the ensemble was loaded from."""
    tested: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Test errors by target, as `errors` of `ensemble.json` has them; empty if unknown."""

    def __repr__(self) -> str:
        return f"{self._about}\n{self.members.to_string()}"

    def _repr_html_(self) -> str:
        about = html.escape(self._about).replace("\n", "<br>")
        return f"<p>{about}</p>{self.members.to_html(border=0)}"

    @property
    def _about(self) -> str:
        known = self.calibrations.keys() & self.manifest.targets.keys()
        units = {name: self.manifest.targets[name].unit for name in sorted(known)}
        targets = [f"{name} [{unit}]" if unit else name for name, unit in units.items()]
        origin = f" from {self.directory}" if self.directory else ""
        elements = " ".join(symbols(self.manifest.elements))
        errors = [
            f"\nmean absolute error of {name} on the test split: "
            f"{found['mae'][ENSEMBLE]['value']:.3g} {found['unit'] or ''}".rstrip()
            for name, found in self.tested.items()
            if found.get("spread") is not None  # as of classes
        ]
        return (
            f"Ensemble of {len(self.models)} networks{origin}: {', '.join(targets)}\n"
            f"elements {elements}; intervals aim at {100 * self.coverage:.3g} %{''.join(errors)}"
        )

    @property
    def members(self) -> pd.DataFrame:
        """Table of the members: number in the run (index), parameters of the network, weight."""
        sizes = [sum(p.numel() for p in model.parameters()) for model in self.models]
        index = pd.Index(self.numbers or range(len(sizes)), name="member")
        return pd.DataFrame({"parameters": sizes, "weight": self.weights}, index)

    def remarks(
        self, notes: Sequence[str], predictions: Mapping[str, Floats], structures: StructureFacts
    ) -> tuple[list[str], Floats]:
        """Return a note on each structure, and the members' disagreement about it, ``[n]``.

        The disagreement is computed by :meth:`.Applicability.disagreement`. Where it is above 1,
        the given note is extended.

        Parameters
        ----------
        notes
            Note on each structure: properties beyond their range in the training data.
        predictions
            Predictions of every member ``[n_members, n, d]`` by name of the output.
        structures
            Number of atoms and extrapolation of each structure.
        """
        found = deviations_of(predictions, self.weights, self.manifest, structures)
        deviations, disagreement = self.applicability.disagreement(found, self.manifest)
        return joined_notes(notes, deviations), disagreement

    def batch_of(self, atoms: Atoms) -> Batch:
        """Convert one structure to a graph, and return it as a batch that the members can read.

        Raises
        ------
        InputError
            If an element is not in the training data, or the structure cannot be a graph.
        """
        try:
            return batch_graphs([self.graphs.graph(atoms)])
        except InputError as error:
            raise InputError(f"the structure: {error}") from None

    def distributions(
        self,
        members: Mapping[str, Floats],
        structures: StructureFacts,
    ) -> dict[str, Distribution]:
        """Combine the members' predictions of each target to mean, error bars and interval.

        Weights and calibration are those of the ensemble.

        Parameters
        ----------
        members
            Predictions of the members ``[n_members, n, d]`` by name of the output.
        structures
            Number of atoms, data set and extrapolation of each structure. If no data sets are
            given, structures count as those of :attr:`data_set`.

        Returns
        -------
        dict
            Combined predictions by name of the target.
        """
        if structures.data_sets is None and self.data_set is not None:
            names = np.full(len(structures.n_atoms), self.data_set, dtype=object)
            structures = structures._replace(data_sets=names)
        return {
            name: distribution(
                members[name],
                self.weights,
                calibration,
                structures.rows_of(self.manifest.targets[name]),
                members.get(name + NOISE_SUFFIX),
                coverage=self.coverage,
            )
            for name, calibration in self.calibrations.items()
        }

    def check_reads_structures(self) -> None:
        """Raise an error if the members cannot predict ASE structures, but only graphs of a store.

        Raises
        ------
        InputError
            If a member needs node features or edges that structures do not have, or if there are
            several branches and :attr:`data_set` selects none of them.
        """
        check_reads_structures(self.models, self.manifest)
        self.branches.check_known()

    def on_device(self, device: str | torch.device) -> Self:
        """Return this ensemble if its networks are on ``device``, else a copy on ``device``."""
        there = usable_device(device)
        if there == self.device:
            return self
        return replace(self, models=tuple(copy.deepcopy(model).to(there) for model in self.models))

    @property
    def device(self) -> torch.device:
        """Device of the networks."""
        return next(self.models[0].parameters()).device

    @cached_property
    def graphs(self) -> StructureGraphs:
        """Converter of ASE structures to graphs that the members read."""
        of_energies = any(isinstance(model, Potential) for model in self.models)
        return StructureGraphs(self.manifest, self.branches.number, of_energies)

    @cached_property
    def branches(self) -> Branches:
        """Branches of the members' networks; a branch is the output heads for one data set."""
        several = any(getattr(model, "n_branches", 1) > 1 for model in self.models)
        return Branches(self.manifest, several, self.data_set)


_REMEDY = "take it from a copy, or delete it and ensemble.json and start the run again"


def member_files(member: int) -> list[str]:
    """Return the paths of a member's network and checkpoint, relative to the ensemble's folder.

    ``member`` is the number of the member.
    """
    return [f"{member_name(member)}/{name}" for name in (NETWORK, FILE)]


def remaining_members(
    summary: Mapping[str, Any], folder: Path, without: Collection[int]
) -> tuple[list[int], NDArray[np.float64]]:
    """Return numbers and weights of the members that are kept; the weights add up to one.

    Parameters
    ----------
    summary
        Content of the file `ensemble.json`.
    folder
        Folder of the file `ensemble.json`.
    without
        Numbers of the members to leave out.

    Raises
    ------
    InputError
        If the weights do not add up to one, a member to leave out does not exist, or fewer than two
        members or no weight would be left.
    """
    members = {row["member"]: float(row["weight"]) for row in summary["members"]}
    total = sum(members.values())
    if not abs(total - 1) < 1e-6:
        raise InputError(
            f"{folder / SUMMARY}: weights of the members add up to {total:g}, not to 1; take the "
            f"file from a copy, or, in the directory of a run, delete it and start the run again"
        )
    numbers = [member for member in members if member not in without]
    weights = np.array([members[number] for number in numbers])
    if set(without) - members.keys() or len(numbers) < 2 or not weights.sum() > 0:
        told = ", ".join(map(str, sorted(without)))
        raise InputError(
            f"{folder}: member {told} cannot be left out; two of its members, "
            f"{', '.join(map(str, members))}, must be left, and one of them with a weight"
        )
    return numbers, weights / weights.sum() if without else weights


def load_member(
    folder: Path, member: int, manifest: Manifest
) -> tuple[nn.Module, dict[str, dict[str, Floats]]]:
    """Load the network of a member with its best weights, and predictions from its checkpoint.

    The rest of the checkpoint, several times as large, is freed before this returns.

    Parameters
    ----------
    folder
        Folder of the ensemble.
    member
        Number of the member.
    manifest
        Manifest of the store that the member was trained on.

    Returns
    -------
    model, predictions
        Network, and its predictions ``[n, d]`` by split, then by output, for the splits whose
        predictions are in the checkpoint; a checkpoint of an exported ensemble has none.

    Raises
    ------
    InputError
        If a file cannot be read, the files do not match, or a weight is not finite.
    """
    directory = member_folder(folder, member)
    file = directory / FILE
    network = load_network(directory / NETWORK)
    whole = load_checkpoint(file, remedy=_REMEDY)
    state = predicting_state(whole, file)
    with sound(file, _REMEDY):
        found = {split: predictions_in(whole, split) for split in SPLITS}
        for name, values in state["best"].items():
            if values.is_floating_point() and not torch.isfinite(values).all():
                raise InputError(
                    f"{file}: {name} has weights that are not finite; leave the member out with "
                    f"--without {member}, or {_REMEDY}"
                )
    try:
        model = restore_model(network, manifest, state["best"], state[KEY][LEVERAGE])
    except (KeyError, TypeError, RuntimeError):
        raise InputError(
            f"{file}: does not hold the weights of the network in {NETWORK}; {_REMEDY}"
        ) from None
    return model, {split: values for split, values in found.items() if values is not None}


def predicting_state(state: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return the entries of a checkpoint that a member predicts with: weights, progress, leverage.

    ``state`` is the content of the checkpoint ``file``.

    Raises
    ------
    InputError
        If the checkpoint lacks the weights or the progress of training.
    """
    try:
        kept = {KEY: {LEVERAGE: dict(state.get(KEY, {}).get(LEVERAGE, {}))}}
        return {"best": dict(state["best"]), "progress": dict(state["progress"]), **kept}
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{file}: holds no weights to predict with; {_REMEDY}") from None
