"""Reader of one structure from a CIF text, a file, or pymatgen's dict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hydragnn_flow.data.sources.ase_files import each_structure
from hydragnn_flow.data.sources.beyond_ase import cif_structures, element

if TYPE_CHECKING:
    import ase


def from_cif(text: str) -> ase.Atoms:
    """Return the only structure of a CIF text, with its symmetry operations applied.

    Raises
    ------
    Exception
        If ASE cannot read the text, any exception; ValueError for several structures and for sites
        that are shared or partly empty.
    """
    return _only(list(cif_structures(text)))


def from_file(path: Path) -> ase.Atoms:
    """Return the only structure of a file in any format of ASE.

    Raises
    ------
    Exception
        In the same cases as :func:`from_cif`.
    """
    return _only([found.atoms for found in each_structure(path)])


def from_dict(structure: Mapping[str, Any]) -> ase.Atoms:
    """Convert a structure of pymatgen, JARVIS or OPTIMADE, given as a dict, to ASE atoms.

    Raises
    ------
    KeyError, TypeError, ValueError
        If ``structure`` is no such dict, or sites are shared or partly empty.
    """
    import ase

    if "lattice_mat" in structure:  # JARVIS
        symbols = [element(symbol.strip()) for symbol in structure["elements"]]
        places = {
            "positions" if structure["cartesian"] else "scaled_positions": structure["coords"]
        }
        return ase.Atoms(symbols, cell=structure["lattice_mat"], pbc=True, **places)
    if "species_at_sites" in structure:  # OPTIMADE
        kinds = {kind["name"]: kind for kind in structure["species"]}
        some = [kinds[name] for name in structure["species_at_sites"]]
        for number, kind in enumerate(some):
            _check_occupancy(
                [*zip(kind["chemical_symbols"], kind["concentration"], strict=True)], number
            )
        return ase.Atoms(
            [element(kind["chemical_symbols"][0]) for kind in some],
            positions=structure["cartesian_site_positions"],
            cell=structure.get("lattice_vectors"),
            pbc=structure.get("dimension_types") or bool(structure.get("lattice_vectors")),
        )
    sites = structure["sites"]
    symbols = [_element(site["species"], number) for number, site in enumerate(sites)]
    lattice = structure.get("lattice")
    if lattice is None:  # a molecule
        return ase.Atoms(symbols, positions=[site["xyz"] for site in sites])
    cell = np.array(lattice["matrix"], dtype=np.float64)
    positions = [site["xyz"] if "xyz" in site else np.dot(site["abc"], cell) for site in sites]
    return ase.Atoms(symbols, positions=positions, cell=cell, pbc=lattice.get("pbc", True))


def _only(images: Sequence[ase.Atoms]) -> ase.Atoms:
    if len(images) != 1:
        raise ValueError(f"{len(images)} structures where there must be one")
    check_sites(images[0])
    return images[0]


def check_sites(atoms: ase.Atoms) -> None:
    """Check that no site of a structure, as ASE reads it from a CIF, is shared or partly empty.

    Raises
    ------
    ValueError
        If a site is shared or partly empty; the message names that site.
    """
    occupancy = atoms.info.get("occupancy")
    if isinstance(occupancy, dict):  # from a CIF; ASE gives a shared site its most common element
        for site, fractions in occupancy.items():
            _check_occupancy(
                [(symbol, float(fraction)) for symbol, fraction in fractions.items()], site
            )


def _element(species: Sequence[Mapping[str, Any]], site: int) -> str:
    _check_occupancy([(one["element"], float(one["occu"])) for one in species], site)
    return element(species[0]["element"])


def _check_occupancy(fractions: Sequence[tuple[str, float]], site: object) -> None:
    if len(fractions) != 1 or round(fractions[0][1], 2) != 1:
        occupied = (
            ", ".join(f"{symbol} {fraction:g}" for symbol, fraction in fractions) or "nothing"
        )
        raise ValueError(
            f"site {site} holds {occupied}: partial occupancies have no graph; "
            "choose an ordered structure"
        )
