"""Configurations to prepare, and what prepares them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import GraphStore, prepare_store

XYZ = (
    "2\nenergy={energy} Properties=species:S:1:pos:R:3:forces:R:3 "
    'pbc="F F F"\nH 0 0 0 1 0 0\nH 0 0 {distance} -1 0 0\n'
)


MANY = 40


def generated(**changes: Any) -> DataConfig:
    source = {"format": "emt_alloys", "structures": 10, "atoms": [8, 16]}
    split = {"val": 0.2, "test": 0.1}
    return DataConfig.model_validate({"source": source | changes, "split": split})


def prepare(path: Path, config: DataConfig | None = None, **changes: Any) -> GraphStore:
    settings: dict[str, Any] = {"cutoff": 4.0, "max_neighbours": 12, "seed": 0} | changes
    return prepare_store(config or generated(), path=path, **settings)


def files(folder: Path, n_train: int = 10, n_test: int = 3) -> DataConfig:
    for name, n in (("train.xyz", n_train), ("test.xyz", n_test)):
        shortest = 0.7 if name == "train.xyz" else 1.7
        frames = [XYZ.format(energy=-i, distance=shortest + 0.01 * i) for i in range(n)]
        (folder / name).write_text("".join(frames))
    targets = {"energy": "eV", "forces": "eV/Å"}
    source = {"format": "ase", "train": "train.xyz", "test": "test.xyz", "targets": targets}
    return DataConfig.model_validate({"source": source, "path": folder, "split": {"val": 0.2}})
