"""Where structures come from: one function per format, all giving :class:`Labelled`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hydragnn_flow.config.data import DataConfig, GeneratedSource, MlearnSource
from hydragnn_flow.data.sources import emt_alloys, mlearn
from hydragnn_flow.data.sources.emt_alloys import generate_emt_alloys
from hydragnn_flow.data.sources.extxyz import read_extxyz
from hydragnn_flow.data.sources.labelled import Labelled, Progress, check_labels
from hydragnn_flow.data.sources.mlearn import read_mlearn
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.errors import InputError

__all__ = ["Labelled", "Progress", "SourceData", "input_files", "read_source"]


@dataclass(frozen=True)
class SourceData:
    """All structures of a source, checked."""

    train: list[Labelled]
    """To train and validate on, and to test on where there is no ``test``."""
    test: list[Labelled]
    """The source's own test set; empty where it has none."""
    targets: dict[str, Target]


def read_source(config: DataConfig, seed: int, progress: Progress | None = None) -> SourceData:
    """Read or generate the structures a configuration names.

    Raises
    ------
    InputError
        Naming the file, and the structure where one is at fault.
    """
    source = config.source
    if isinstance(source, GeneratedSource):
        units: Mapping[str, str] = emt_alloys.UNITS
        files = {"train": generate_emt_alloys(source, seed, progress)}
    elif isinstance(source, MlearnSource):
        units = mlearn.UNITS
        files = {role: read_mlearn(path) for role, path in input_files(config).items()}
    else:
        units = source.targets
        files = {role: read_extxyz(path, units) for role, path in input_files(config).items()}
    for role, structures in files.items():
        if not structures:
            raise InputError(
                f"{input_files(config)[role]} holds no structures (data.source.{role}); "
                "give a file that does"
            )
    train, test = files["train"], files.get("test", [])
    return SourceData(train, test, check_labels([*train, *test], units))


def input_files(config: DataConfig) -> dict[str, Path]:
    """The files a source reads, by their role ``train`` or ``test``; none where it generates.

    Raises
    ------
    InputError
        Where a file does not exist.
    """
    source = config.source
    if isinstance(source, GeneratedSource):
        return {}
    names = {"train": source.train, "test": source.test}
    found = {}
    for role, name in names.items():
        if name is None:
            continue
        path = Path(name) if config.path is None else config.path / name
        if not path.is_file() or not os.access(path, os.R_OK):
            raise InputError(
                f"{path} (data.source.{role}) is not a file that can be read; "
                "correct the name or give the directory it is in with --data"
            )
        found[role] = path
    return found
