"""The JSON files of the mlearn benchmark (Zuo et al., J. Phys. Chem. A 124, 731 (2020))."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ase
import numpy as np

from hydragnn_flow.data.sources.labelled import Labelled
from hydragnn_flow.errors import InputError

UNITS = {"energy": "eV", "forces": "eV/Å"}


def read_mlearn(path: Path) -> list[Labelled]:
    """Read a list of pymatgen-style structures with DFT outputs.

    Raises
    ------
    InputError
        Naming the file, and the structure where one cannot be read.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); give a file of the mlearn set") from error
    if not isinstance(entries, list):
        raise InputError(f"{path} is not a list of structures; give a file of the mlearn set")
    structures = []
    for index, entry in enumerate(entries):
        try:
            structures.append(_labelled(entry, str(path), index))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InputError(
                f"{path}: structure {index} cannot be read ({error!r}); correct or remove it"
            ) from error
    return structures


def _labelled(entry: dict[str, Any], origin: str, index: int) -> Labelled:
    structure, outputs = entry["structure"], entry["outputs"]
    sites = structure["sites"]
    for site in sites:
        if len(site["species"]) != 1 or site["species"][0]["occu"] != 1:
            raise ValueError("a site is shared by several elements or partly empty")
    atoms = ase.Atoms(
        [site["species"][0]["element"] for site in sites],
        positions=[site["xyz"] for site in sites],
        cell=structure["lattice"]["matrix"],
        pbc=True,
    )
    targets = {}
    # JSON's null, like a missing key, is a missing label: said by whoever checks the labels.
    if outputs.get("energy") is not None:
        targets["energy"] = np.array([outputs["energy"]], dtype=np.float64)
    if outputs.get("forces") is not None:
        targets["forces"] = np.array(outputs["forces"], dtype=np.float64)
    return Labelled(atoms, targets, origin, index)
