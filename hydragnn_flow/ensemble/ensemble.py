"""Trained, calibrated ensemble that is loaded from a run directory, predicts and is exported."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from hydragnn_flow.data.store.manifest import kept_manifest
from hydragnn_flow.ensemble.applicability import APPLICABILITY, Applicability
from hydragnn_flow.ensemble.committee import (
    Committee,
    load_member,
    member_files,
    predicting_state,
    remaining_members,
)
from hydragnn_flow.ensemble.hub import PREFIX, fetched
from hydragnn_flow.ensemble.predictions.member_predictions import lay_out, predict_members
from hydragnn_flow.ensemble.predictions.structure_files import Predictable, open_structures
from hydragnn_flow.ensemble.predictions.table import Predictions, joined
from hydragnn_flow.ensemble.summary import (
    CHECKSUMS,
    FOLDER,
    SUMMARY,
    ensemble_folder,
    inside,
    member_name,
    read_summary,
    verify_checksums,
    write_checksums,
)
from hydragnn_flow.ensemble.uncertainty.calibration import FILE as CALIBRATION
from hydragnn_flow.ensemble.uncertainty.calibration import load_calibrations
from hydragnn_flow.ensemble.uncertainty.deviation import needed_for_coverage
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import copy_file, write_text
from hydragnn_flow.plain_files import FROM_A_COPY
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint, save_checkpoint

MANIFEST = "manifest.json"


@dataclass(frozen=True, repr=False)
class Ensemble(Committee):
    """Ensemble of trained models that predict together, with calibrated error bars.

    Examples
    --------
    >>> ensemble = Ensemble.load("runs/quickstart")
    >>> predictions = ensemble.predict([atoms])
    >>> predictions.graphs[["energy_mean", "energy_std", "energy_lo", "energy_hi"]]
    """

    @classmethod
    def load(
        cls, path: str | Path, *, without: Collection[int] = (), data_set: str | None = None
    ) -> Ensemble:
        """Load the ensemble of a finished run, or an exported one, and verify its files.

        Parameters
        ----------
        path
            Directory of the run, or of the export; or ``hf://OWNER/NAME``, an export on the
            Hugging Face hub, also ``hf://OWNER/NAME@REVISION``.
        without
            Numbers of members to leave out; their files are not read. The weights of the other
            members are divided by their sum. The calibration was made with all members, so the
            coverage of intervals is less exact if members are left out.
        data_set
            Name of the data set whose branch predicts structures, as in :meth:`of_data_set`; None
            if there is only one data set, or if the graphs of a store name their data sets.

        Raises
        ------
        InputError
            If the run has no ensemble yet, if its files are damaged, if fewer than two members
            would be left, or if there is no such data set.
        """
        if str(path).startswith(PREFIX):
            path = fetched(str(path))
        folder = ensemble_folder(path)
        named = verify_checksums(folder, [member_name(member) for member in without])
        summary = read_summary(path)
        numbers, weights = remaining_members(summary, folder, without)
        files = {SUMMARY, MANIFEST, APPLICABILITY}.union(*map(member_files, numbers))
        if unnamed := files.difference(named):
            raise InputError(f"{folder / CHECKSUMS}: has none of {min(unnamed)}; {FROM_A_COPY}")
        manifest = kept_manifest(folder / MANIFEST)
        ensemble = cls(
            tuple(load_member(folder, member, manifest)[0] for member in numbers),
            weights,
            load_calibrations(folder, summary),
            manifest,
            summary["coverage"],
            tuple(numbers),
            Applicability.load(folder / APPLICABILITY),
            directory=Path(path),
            tested={} if without else summary.get("errors", {}),
        )
        return ensemble if data_set is None else ensemble.of_data_set(data_set)

    def of_data_set(self, name: str) -> Ensemble:
        """Return a copy of the ensemble that predicts structures with the branch of one data set.

        A branch is the heads for one data set, so energies are at the level of theory of that data
        set. Graphs of a store that has the data sets of the training are still predicted by the
        branch that each graph names.

        Parameters
        ----------
        name
            Name of a data set in `data.sources` of the run.

        Raises
        ------
        InputError
            If the ensemble has no branch for a data set of that name.
        """
        self.branches.check_has(name)
        return replace(self, data_set=name, tested={})

    def at(self, coverage: float) -> Ensemble:
        """Return a copy whose prediction intervals aim at a fraction ``coverage`` of true values.

        Raises
        ------
        InputError
            If the coverage is not between 0 and 1, or needs more structures than the ensemble was
            calibrated on.
        """
        if not 0 < coverage < 1:
            raise InputError(f"coverage = {coverage:g}: must lie between 0 and 1; give 0.9, say")
        needed = needed_for_coverage(coverage)
        of = None if self.data_set is None else np.array([self.data_set], object)
        for name, calibration in self.calibrations.items():
            if (structures := calibration.least_structures(of)) < needed:
                raise InputError(
                    f"coverage = {coverage:g}: needs {needed} structures to calibrate on, and some "
                    f"intervals of {name} rely on {structures}; give a lower one, "
                    f"or recalibrate the ensemble on more labelled structures"
                )
        calibrations = {name: one.with_enough(coverage) for name, one in self.calibrations.items()}
        return replace(self, coverage=coverage, calibrations=calibrations)

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
        """Predict all targets of structures, with calibrated error bars, and return tables.

        Parameters
        ----------
        structures
            ASE structures, periodic or not; a path of a file that ASE reads, of a directory of such
            files, of a GraphStore, or of a table (.csv) if the training data were a table; or an
            open GraphStore. If structures have labels, the tables contain the labels and the errors
            of the predictions.
        split
            Name of the split of a GraphStore to predict; None for all splits, in the order of the
            store.
        members
            True to add every member's prediction (`<target>_member_<k>`).
        coverage
            Fraction of true values in the intervals; None for the coverage of the run.
        device
            Device of the networks, by torch's name.
        say
            Function that receives remarks on files of a directory that were skipped.

        Returns
        -------
        Predictions
            Tables in the order of the input. `graph_id` is the index of a structure in the input;
            graphs of a store keep the `graph_id` that the store has. A structure that cannot be
            predicted has a row with NaN, and the reason as its `note`.

        Raises
        ------
        InputError
            If there is nothing to predict, if the ensemble reads inputs that structures do not
            have, or if it was calibrated on too few structures for the coverage.
        """
        ensemble = (self if coverage is None else self.at(coverage)).on_device(device)
        opened = open_structures(ensemble, structures, split)
        found = predict_members(ensemble, opened, say=say)
        return joined([lay_out(ensemble, some, members).tables for some in found])


CARD = "README.md"


def export_ensemble(run_directory: Path, out: Path, card: str) -> None:
    """Copy all files that an ensemble predicts with to a new directory, whole or not at all.

    Checkpoints of members are reduced to the weights that predict, without optimizer state and
    other copies of the weights. All other files are copied unchanged.

    Parameters
    ----------
    run_directory
        Directory of a finished run.
    out
        New directory of the export.
    card
        Text of the model card, which is written as README.md.

    Raises
    ------
    InputError
        If the run has no ensemble yet or its ensemble is damaged, or if ``out`` cannot be made.
    """
    check_export(run_directory, out)
    folder = ensemble_folder(run_directory)
    Ensemble.load(run_directory)  # raises an error where it could not predict
    names = verify_checksums(folder)
    # On the same disk, so that the rename is atomic, and hidden until it is whole.
    temporary = out.with_name(f".{out.name}.{uuid.uuid4().hex}.tmp")
    try:
        for name in names:
            source, target = inside(run_directory, folder / name), temporary / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.name == FILE:
                save_checkpoint(target, predicting_state(load_checkpoint(source), source))
            else:
                copy_file(source, target)
        if (folder / CALIBRATION).exists():  # replaceable, so it has its own checksum
            copy_file(inside(run_directory, folder / CALIBRATION), temporary / CALIBRATION)
        write_text(temporary / CARD, card)
        write_checksums(temporary, [*names, CARD])
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_export(run_directory: Path, out: Path) -> None:
    """Raise an error if a run's ensemble could not be exported to ``out``; files are not read.

    Raises
    ------
    InputError
        If ``out`` exists or lies in no directory that can be written, or if ``run_directory`` has
        no ensemble yet or is an export itself.
    """
    if ensemble_folder(run_directory) != run_directory / FOLDER:
        raise InputError(f"{run_directory}: is an exported ensemble already; copy the directory")
    if os.path.lexists(out):
        raise InputError(f"{out}: exists already; name a directory that does not")
    if not out.parent.is_dir():
        raise InputError(f"{out}: there is no directory {out.parent}; make it first")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise InputError(f"{out}: nothing may be written in {out.parent}; choose another place")
