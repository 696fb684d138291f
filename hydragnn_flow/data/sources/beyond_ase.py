"""Reading of what ASE refuses, guesses or passes over: elements, decimal commas, convergence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from io import BufferedReader, StringIO
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hydragnn_flow.data.layouts import layouts
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    import ase

QM9 = re.compile(rb"gdb\s+\d+\s")
"""Start of a comment line in the raw files of QM9."""
BOM = "\ufeff"
"""Mark that some editors write before a UTF-8 text."""
LAMMPS = ("lammps-data", "lammps-dump-text", "lammps-dump-binary")
"""Formats of LAMMPS, as ASE names them, whose atoms have types instead of elements."""
_NOT_CONVERGED = {
    "abinit-out": rb"was not enough SCF cycles to converge",
    "aims-output": rb"(?i)self-consistency cycle (did not converge|not converged)",
    "castep-castep": rb"has not reached the groundstate",
    "exciting": rb"Reached self-consistent loops maximum",
    "gamess-us-out": rb"SCF IS UNCONVERGED",
    # Link 508 is the quadratic method, which takes over when the first has failed.
    "gaussian-out": rb"Convergence failure|Convergence criterion not met(?![\s\S]*l508\.exe)",
    "gpaw-out": rb"Did not converge",
    "nwchem-out": rb"Calculation failed to converge",
    "orca-output": rb"SCF NOT CONVERGED|(?i:not fully converged)",
}
# A frame of pw.x ends where the next begins, and counts if it has a result.
_OF_PWSCF = rb"(?P<start>Program PWSCF|ATOMIC_POSITIONS)|(?P<not>convergence NOT achieved)|(?P<end>"
_OF_PWSCF += rb"!    total energy|Forces acting on atoms|total   stress|Magnetic moment per site"
_OF_PWSCF += rb"|End of (band structure|self-consistent) calculation)"
_OF_VASP = {
    "vasp-out": rb"Iteration *\d+\( *(?P<loop>\d+)\)|NELM *= *(?P<most>\d+)|(?P<not>EDIFF was not)"
    rb"|(?P<end>FREE ENERGIE OF THE ION-ELECTRON SYSTEM)",
    "vasp-xml": rb'(?P<step></scstep>)|name="NELM"[^>]*> *(?P<most>\d+)|(?P<end></calculation>)',
}
_ONCE = {
    "cfg": rb"(?m)^Number of particles",
    "gromacs": rb"(?m)^\s*\d+\s*$",
    "mol": rb"(?m)^M +END",
    "sdf": rb"(?m)^\$\$\$\$",
}
_KEY_VALUE = re.compile(
    r"""(?<!\S)([^\s=]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|\{([^}]*)\}|\[([^]]*)\]|(\S+))"""
)
_COMMA = re.compile(r"[-+]?\d+,\d+([eEdD][-+]?\d+)?")
_PHYSICAL = re.compile("energy|stress|virial|force", re.IGNORECASE)
"""Keys whose values are never pairs of whole numbers."""


def plain_frame(frame: bytes) -> str:
    """Return a frame of an extended XYZ file, rewritten where ASE would not read it rightly.

    Deuterium and tritium become hydrogen, and a ``stress`` or ``virial`` of six numbers in Voigt's
    order (xx, yy, zz, yz, xz, xy) becomes a matrix.

    Raises
    ------
    ValueError
        If a number in the comment line has a decimal comma, which ASE takes for two numbers.
    """
    number, _, rest = frame.decode().partition("\n")
    comment, newline, atoms = rest.partition("\n")
    if QM9.match(comment.encode()):
        known = layouts()["QM9"].labels
        said = dict(zip(known, comment.split()[2:], strict=True))
        labels = " ".join(
            f"{name}={said[name]} {name}_unit={known[name].unit}"
            for name in sorted(said, key=lambda name: name != "gap")  # init proposes the first
        )
        comment = f"Properties=species:S:1:pos:R:3:mulliken:R:1 {labels}"
        atoms = atoms.replace("*^", "e")
    for found in _KEY_VALUE.finditer(comment):
        key, value = found[1], next(filter(None, found.groups()[1:]), "")
        is_list = found[0].endswith(("]", "}"))
        if not is_list and _PHYSICAL.search(key) and any(map(_COMMA.fullmatch, value.split())):
            raise ValueError(
                f"{key}={value} has a decimal comma; write a point, or blanks between numbers"
            )
        six = re.split(r"[\s,]+", value.strip())
        if key in ("stress", "virial") and len(six) == 6:
            nine = " ".join(six[n] for n in (0, 5, 4, 5, 1, 3, 4, 3, 2))
            comment = comment.replace(found[0], f'{key}="{nine}"')
    if not any(mark + blank in atoms for mark in "DTdt" for blank in " \t"):
        return f"{number}\n{comment}{newline}{atoms}"
    before = re.search(r"Properties\s*=\s*[\"'{[]?(.*?)species:S:1", comment)
    columns = sum(map(int, re.findall(r":(\d+)", before[1]))) if before else 0
    isotope = rf"(?m)^((?:[ \t]*\S+[ \t]+){{{columns}}}[ \t]*)[DTdt](?=\s|$)"
    atoms = re.sub(isotope, r"\1H", atoms)
    return f"{number}\n{comment}{newline}{atoms}"


def element(symbol: str) -> str:
    """Return the symbol of an element: that of hydrogen for deuterium and tritium.

    Raises
    ------
    ValueError
        If there is no such element.
    """
    from ase.data import atomic_numbers

    plain = {"D": "H", "T": "H"}.get(symbol, symbol)
    if not atomic_numbers.get(plain):
        raise ValueError(f"{symbol!r} is no chemical element")
    return plain


def cif_structures(text: str) -> Iterator[ase.Atoms]:
    """Yield the structures of a CIF text, with the symmetry operations applied.

    Unknown occupancies are 1, as CIF defines. Copies of one atom within 0.5 Å, which rounded
    coordinates of special positions leave, are merged at their mean.

    Raises
    ------
    Exception
        Any exception, if ASE cannot read the text.
    """
    from ase.io.cif import CIFBlock, parse_cif

    parsed: Any = parse_cif(StringIO(text.removeprefix(BOM)))  # ASE has no types
    for block in parsed:
        tags = dict(block)
        for key in ("_atom_site_type_symbol", "_atom_site_label"):
            if isinstance(tags.get(key), list):
                tags[key] = [_in_cif(str(name), key) for name in tags[key]]
                break
        if isinstance(parts := tags.get("_atom_site_occupancy"), list):
            tags["_atom_site_occupancy"] = [1 if part in ("?", ".") else part for part in parts]
        plain: Any = CIFBlock(block.name, tags)
        if plain.has_structure():
            yield _merged(plain.get_atoms())


def _in_cif(name: str, key: str) -> str:
    """Return a type symbol or label of a CIF as ASE reads it rightly: `FE2` without this is F."""
    from ase.data import atomic_numbers

    if re.match(r"[DT](?![A-Za-z])" if key == "_atom_site_type_symbol" else "D(?![A-Za-z])", name):
        return "H"
    capital = name[:2].capitalize()
    if not re.match("[A-Z]{2}", name) or capital not in atomic_numbers:
        return name
    if key == "_atom_site_label" and name[0] in atomic_numbers:
        raise ValueError(f"label {name} may be {capital} or {name[0]}; add _atom_site_type_symbol")
    return capital


def _merged(atoms: ase.Atoms) -> ase.Atoms:
    import ase.neighborlist

    find: Any = ase.neighborlist.neighbor_list
    sites = atoms.arrays.get("spacegroup_kinds")
    if sites is None or len(np.unique(sites)) == len(sites):
        return atoms
    i, j, vectors = find("ijD", atoms, 0.5)  # Å; no two atoms are as close
    copies = (sites[i] == sites[j]) & (i != j)
    if not copies.any():
        return atoms
    moved = np.zeros((len(atoms), 3))
    np.add.at(moved, i[copies], vectors[copies])
    atoms.positions += moved / (1 + np.bincount(i[copies], minlength=len(atoms)))[:, None]
    first = np.ones(len(atoms), dtype=bool)
    first[j[copies & (i < j)]] = False
    merged: ase.Atoms = atoms[first]
    return merged


def lammps_structures(file: Path, format: str, types: Sequence[str] | None) -> Iterator[ase.Atoms]:
    """Yield the structures of a file of LAMMPS, whose atoms have types instead of elements.

    Parameters
    ----------
    file
        Dump or data file.
    format
        ASE's name of its format, one of :data:`LAMMPS`.
    types
        Elements of the types 1, 2, …; None to take those that the file names, or has the masses of.

    Raises
    ------
    InputError
        If the element of an atom is not known.
    """
    from ase.data import atomic_masses, atomic_numbers
    from ase.io import iread

    of_type = dict(enumerate((atomic_numbers[one] for one in types or ()), 1))
    # In dumps a type becomes number 0 where ASE would take it for an atomic number.
    options: Any = {} if format == "lammps-data" else {"specorder": ["X"] * 10_000}
    for atoms in iread(str(file), ":", format, do_not_split_by_at_sign=True, **options):
        kinds = atoms.arrays.get("type")
        if types and kinds is not None:
            atoms.numbers = [of_type.get(kind, 0) for kind in kinds]
        elif format == "lammps-data" and "masses" not in atoms.arrays:
            if (atoms.numbers == kinds).all():
                atoms.numbers[:] = 0
        elif format == "lammps-data":  # ASE takes the element of the nearest mass
            off = np.abs(atoms.get_masses() - atomic_masses[atoms.numbers])
            isotope = (atoms.numbers == 1) & (off < 2.1)
            atoms.numbers[(off > 0.06) & ~isotope] = 0
        if not atoms.numbers.all():
            atom = int(np.argmin(atoms.numbers))
            raise InputError(
                f"{file}: the element of atom {atom}"
                f"{'' if kinds is None else f', of type {kinds[atom]},'} is not known; write "
                "elements into the file (dump_modify element), or name those of the types 1, 2, … "
                "as data.source.types: [Fe, O] of the format ase"
            )
        if atoms.calc is not None:
            del atoms.calc.results["energy"]  # a dump has none; ASE says 0
        yield atoms


def check_single(file: Path, format: str) -> None:
    """Check that a file has only one structure, if its format is one of which ASE reads the first.

    Raises
    ------
    InputError
        If the file has more structures than ASE would read.
    """
    if format in _ONCE and (n := sum(1 for _ in re.finditer(_ONCE[format], _content(file)))) > 1:
        raise InputError(
            f"{file} has {n} structures, of which ASE reads the first; convert it to extended XYZ"
        )


def _content(file: Path) -> Any:
    """Return the bytes of a file, mapped into memory unless it is compressed."""
    from ase.io.formats import open_with_compression

    with open_with_compression(str(file), "rb") as opened:
        if isinstance(opened, BufferedReader):
            return mmap(opened.fileno(), 0, access=ACCESS_READ)
        return opened.read()


def converged(file: Path, format: str) -> list[bool] | None:
    """Return for each structure in a file whether its SCF cycle has converged.

    A step of VASP has not if it took as many loops as `NELM` allows, or says so; one of pw.x if it
    says so. Files of other codes are taken as a whole.

    Parameters
    ----------
    file
        File of the structures.
    format
        ASE's name of its format.

    Returns
    -------
    list or None
        Flags of VASP's and pw.x's steps; False alone if another code says that a cycle has not
        converged; None if nothing is said.
    """
    if format in _NOT_CONVERGED:
        return [False] if re.search(_NOT_CONVERGED[format], _content(file)) else None
    flags: list[bool] = []
    if format == "espresso-out":
        frame: dict[str, bool] = {}
        for found in re.finditer(_OF_PWSCF + rb"|\Z", _content(file)):
            kind = found.lastgroup or "start"
            if kind == "start":
                flags += ["not" not in frame] if "end" in frame else []
                frame = {}
            frame[kind] = True
        return flags or [False]
    if format not in _OF_VASP:
        return None
    most, loops, failed = 0, 0, False
    for found in re.finditer(_OF_VASP[format], _content(file)):
        said = found.groupdict()
        if said["most"]:
            most = most or int(said["most"])  # a second one is not of the electrons
        elif said["end"]:
            flags.append(not failed and (loops != most or most < 2))
            loops, failed = 0, False
        elif said.get("not"):
            failed = True
        else:
            loops = int(said["loop"]) if "loop" in said else loops + 1
    return flags
