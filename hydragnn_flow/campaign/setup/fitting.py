"""Fit of an ensemble to structures in memory, as in a notebook: a whole campaign in one call."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.io.extxyz import output_column_format

from hydragnn_flow.campaign.setup.first_config import first_config
from hydragnn_flow.campaign.setup.start import load_config, run_campaign
from hydragnn_flow.config.sources import Level
from hydragnn_flow.data.looking import Finding, look
from hydragnn_flow.data.sources.labels import is_missing
from hydragnn_flow.ensemble import Ensemble
from hydragnn_flow.ensemble.predictions.inputs import check_structures, current
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import Site, load_site
from hydragnn_flow.files import write_text
from hydragnn_flow.plain_files import read_yaml
from hydragnn_flow.run_directory import CONFIG

_header: Any = output_column_format  # ASE has no types
_TAKEN = {"species", "pos", "positions", "numbers", "lattice", "pbc", "properties"}
"""Names, in small letters, that extended XYZ has for other things than labels."""

Targets = str | Sequence[str] | Mapping[str, Sequence[Any]]


def fit(
    structures: Sequence[Atoms],
    targets: Targets | None = None,
    directory: str | Path = "runs/fit",
    *,
    units: Mapping[str, str] | None = None,
    site: Site | None = None,
    trials: int | None = None,
    members: int | None = None,
    epochs: int | None = None,
) -> Ensemble:
    """Search networks for structures in memory, and train, calibrate and return their ensemble.

    The structures, and a first configuration as `hydragnn-flow init` writes it, are kept beside the
    run directory, as ``<directory>.extxyz``, ``.yaml`` and ``.json``. The same call continues a
    campaign that was stopped, and returns the ensemble of a finished one.

    Parameters
    ----------
    structures
        At least 40 ASE structures, or pymatgen ones.
    targets
        Labels to learn: one property, or an energy with forces and stress. Either names of labels
        that the structures have (in `Atoms.info`, `Atoms.arrays` or results of a calculation), or
        values by name, one for each structure: a number, or an array ``[n_atoms]`` or
        ``[n_atoms, k]`` for a property of atoms; None where there is no label. By default an energy
        is learnt, with forces and stress if there are any, or else the first property.
    directory
        Run directory.
    units
        Units of targets by name, such as ``{"gap": "eV"}``. ASE's results have its units.
    site
        Site that runs the campaign; by default this machine.
    trials, members
        Number of networks that are tried, and that predict together; by default as from
        `hydragnn-flow init`.
    epochs
        Passes through the training split of a whole trial; a member has twice as many.

    Raises
    ------
    InputError
        If structures or targets cannot be learnt, or the directory was used for others; see also
        :func:`.run_campaign`.

    Examples
    --------
    >>> ensemble = fit(structures, {"gap": gaps}, units={"gap": "eV"})
    >>> ensemble.predict(others).graphs[["gap_mean", "gap_std"]]
    """
    directory = Path(directory)
    file = directory.with_name(f"{directory.name}.extxyz")
    text = "".join(_labelled(check_structures(structures), targets))
    begun = directory.exists() and file.exists()
    if begun and not _are_same(file.read_text(encoding="utf-8"), text):
        raise InputError(f"{file}: holds other structures or labels; name another directory")
    directory.parent.mkdir(parents=True, exist_ok=True)
    if not begun:
        write_text(file, text)
    finding = _with_units(look(file), units or {})
    site = site or load_site("local")
    if begun and (directory / CONFIG).exists():  # maybe on another machine, by which defaults go
        kept = read_yaml(directory / CONFIG)
        trials = kept["search"]["trials"] if trials is None else trials
        members = kept["ensemble"]["size"] if members is None else members
    gcds = len(site.node.gcds)
    sizes = {"trials": trials, "members": members, "epochs": epochs}
    config = first_config(finding, directory.name, directory.parent, gcds, **sizes)
    learnt, known = ([label.key for label in some] for some in (config.targets, finding.labels))
    for name in _names(targets):
        if name not in learnt:
            together = f"it is not learnt together with {', '.join(learnt)}; fit it alone"
            other = "ASE has another meaning for this name, or it is a counter; rename it"
            why = finding.unusable.get(name, together if name in known else other)
            raise InputError(f"targets: {name}: {why}")
    config.write(directory.parent)
    run_campaign(load_config(config.files(directory.parent)[0]), site, directory)
    return Ensemble.load(directory)


def _are_same(one: str, other: str) -> bool:
    """Return whether texts agree but for the digits after the eighth, which ASE leaves out."""

    def agree(a: str, b: str) -> bool:
        try:
            return a == b or math.isclose(float(a), float(b), rel_tol=0.0, abs_tol=1e-8)
        except ValueError:
            return False

    words = [re.split(r'[\s"=]+', text) for text in (one, other)]
    return len(words[0]) == len(words[1]) and all(map(agree, *words))


def _names(targets: Targets | None) -> Sequence[str]:
    return [targets] if isinstance(targets, str) else [*(targets or ())]


def _labelled(structures: Sequence[Atoms], targets: Targets | None) -> list[str]:
    """Return extended XYZ of structures with their targets and no other labels."""
    is_named = targets is None or isinstance(targets, str | Mapping | list | tuple)
    if not is_named or not all(isinstance(name, str) for name in _names(targets)):
        raise InputError("targets: give values with their name, such as {'gap': gaps}")
    names = _names(targets)
    for name in names:
        if not re.fullmatch(r"[A-Za-z]\w*", name) or name.lower() in _TAKEN:
            raise InputError(f"targets: {name!r} is no name of a label; use letters, digits and _")
    if targets is not None and not names:
        raise InputError("targets: there are none; give names or values, or leave it out")
    if isinstance(targets, Mapping):
        columns = {name: [*map(_plain, values)] for name, values in targets.items()}
        for name, values in columns.items():
            if len(values) != len(structures):
                raise InputError(
                    f"targets: {name} has {len(values):,} values for {len(structures):,} "
                    "structures; give one for each, None where there is none"
                )
        # By position: a column of a data frame may have another index.
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        of_atoms = [name for name in names if _are_of_atoms(name, columns[name], structures)]
        levels: list[Mapping[str, Level]] = [dict.fromkeys(of_atoms, "node")] * len(rows)
    else:
        found = [current(atoms) for atoms in structures]
        rows, levels = [dict(one.values) for one in found], [one.levels for one in found]
    for name in names:
        if all(is_missing(row.get(name)) for row in rows):
            raise InputError(f"targets: no structure has {name!r}; correct the name")
    chosen = [
        {k: v for k, v in row.items() if (k in names if targets is not None else _is_label(k, v))}
        for row in rows
    ]
    if not any(chosen):
        raise InputError("structures: have no labels; give them as targets")
    try:
        return [*map(_with_labels, structures, chosen, levels)]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"targets: cannot be written ({error}); correct their shapes") from None


def _plain(value: Any) -> Any:
    """Return a value of numpy or torch as numbers and lists of Python."""
    return value.tolist() if hasattr(value, "tolist") else value


def _are_of_atoms(name: str, values: Sequence[Any], structures: Sequence[Atoms]) -> bool:
    if name in ("energy", "stress"):  # six numbers of six atoms
        return False
    pairs = zip(values, structures, strict=True)
    return all(is_missing(v) or (np.ndim(v) and len(v) == len(atoms)) for v, atoms in pairs)


def _is_label(name: Any, value: Any) -> bool:
    """Return whether extended XYZ can hold a value under its name."""
    is_free = isinstance(name, str) and name.lower() not in _TAKEN
    return is_free and not (isinstance(value, str) and "\n" in value)


def _with_labels(atoms: Atoms, values: Mapping[str, Any], levels: Mapping[str, Level]) -> str:
    bare: Any = Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc)
    for name, value in values.items():
        if is_missing(value):
            continue
        if levels.get(name) == "node" or name == "forces":
            bare.set_array(name, np.asarray(value))
        else:
            bare.info[name] = np.asarray(value) if np.ndim(value) else value
    columns = {"symbols": np.array(bare.get_chemical_symbols()), **bare.arrays}
    del columns["numbers"]
    header, _, _, line = _header(bare, [*columns], columns)
    flat = (column for some in columns.values() for column in np.atleast_2d(some.T))
    rows = zip(*flat, strict=True)
    line = line.replace("%16.8f", "%.17g")  # what ASE writes is rounded
    return f"{len(bare)}\n{header}\n{''.join(line % row for row in rows)}"


def _with_units(finding: Finding, units: Mapping[str, str]) -> Finding:
    keys = {label.key for label in finding.labels}
    if unknown := units.keys() - keys:
        raise InputError(f"units: there is no label {min(unknown)!r}; correct the name")
    labels = [replace(one, unit=units.get(one.key, one.unit)) for one in finding.labels]
    return replace(finding, labels=labels)
