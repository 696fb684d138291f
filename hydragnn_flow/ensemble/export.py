"""Export of an ensemble as one directory that can be copied anywhere."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from hydragnn_flow.ensemble.calibration_file import FILE as CALIBRATION
from hydragnn_flow.ensemble.checksums import verify_checksums, write_checksums
from hydragnn_flow.ensemble.ensemble import Ensemble
from hydragnn_flow.ensemble.members import predicting_state
from hydragnn_flow.ensemble.summary import FOLDER, ensemble_folder, inside
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import copy_file, write_text
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint, save_checkpoint

CARD = "README.md"


def export_ensemble(run_directory: Path, out: Path, card: str) -> None:
    """Write all that an ensemble needs to predict to a new directory, whole or not at all.

    Checkpoints of members are reduced to the weights that predict, without optimizer state and
    other copies of the weights. All other files are copied as they are.

    Parameters
    ----------
    run_directory
        Directory of a finished run.
    out
        New directory of the export.
    card
        Text of the README.md in it.

    Raises
    ------
    InputError
        If the run has no ensemble yet or a damaged one, or if ``out`` cannot be made.
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
    """Raise an error, before anything is read, for an export that could not be made.

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
