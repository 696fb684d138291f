"""Predictions for structures in files."""

from __future__ import annotations

from pathlib import Path

import ase.io
from ase import Atoms

from hydragnn_flow.data import GraphStore
from hydragnn_flow.data.store.manifest import MANIFEST
from hydragnn_flow.ensemble.ensemble import Ensemble
from hydragnn_flow.ensemble.tables import Predictions
from hydragnn_flow.errors import InputError


def predict_path(
    ensemble: Ensemble, path: Path, *, split: str | None = None, members: bool = False
) -> Predictions:
    """Predict all structures at a path.

    Parameters
    ----------
    ensemble
        A loaded ensemble.
    path
        A file ASE reads, a directory of such files (in the order of their names), or a GraphStore.
    split
        Of a GraphStore; all its splits where not given.
    members
        Whether to give every member's prediction too.

    Raises
    ------
    InputError
        If there is nothing readable at ``path``, or the ensemble cannot predict it.
    """
    if not path.exists():
        raise InputError(f"{path}: does not exist; correct the path of the structures")
    if (path / MANIFEST).is_file() or path.suffix == ".bp":
        return ensemble.predict_store(GraphStore.open(path, mode="random"), split, members=members)
    if split is not None:
        raise InputError(f"{path}: is no GraphStore and has no splits; leave --split out")
    files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path}: holds no files; give a file of structures")
    structures = [atoms for file in files for atoms in _read(file)]
    try:
        return ensemble.predict(structures, members=members)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _read(file: Path) -> list[Atoms]:
    try:
        found = ase.io.read(file, index=":")
    except Exception as error:
        # ASE's readers raise whatever their format's parser does.
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{file}: is not a file of structures ASE can read ({reason})") from None
    return list(found)
