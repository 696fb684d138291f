"""The same labelled structures in every format that can hold them."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import ase
import numpy as np
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from ase.db import connect
from ase.io import write

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data.sources.base import Chunk, Record, Source
from hydragnn_flow.data.sources.opening import open_source

UNITS = {"energy": "eV", "forces": "eV/Å"}


def frames(n: int, seed: int = 0) -> list[ase.Atoms]:
    """Periodic structures of 1, 2, 3, 1, … atoms, each with a random energy and random forces."""
    made = []
    for i in range(n):
        rng = np.random.default_rng([seed, i])
        atoms = bulk("Cu", "sc", a=3.0) * (1 + i % 3, 1, 1)
        atoms.symbols = rng.choice(["Cu", "Ni", "Au"], size=len(atoms))
        atoms.cell[:] += rng.normal(scale=0.1, size=(3, 3))
        atoms.positions[:] = (0.2 + atoms.get_scaled_positions()) @ atoms.cell.array
        atoms.calc = SinglePointCalculator(
            atoms, energy=float(rng.normal()), forces=rng.normal(size=(len(atoms), 3))
        )
        made.append(atoms)
    return made


def structure_dict(atoms: ase.Atoms) -> dict[str, Any]:
    sites = [
        {
            "species": [{"element": atom.symbol, "occu": 1}],
            "abc": abc,
            "xyz": atom.position.tolist(),
        }
        for atom, abc in zip(atoms, atoms.get_scaled_positions(wrap=False).tolist(), strict=True)
    ]
    lattice = {"matrix": atoms.cell.array.tolist()}
    return {"@class": "Structure", "lattice": lattice, "sites": sites}


def record(atoms: ase.Atoms) -> dict[str, Any]:
    results = atoms.calc.results
    outputs = {"energy": results["energy"], "forces": results["forces"].tolist()}
    return {"structure": structure_dict(atoms), "outputs": outputs, "group": group(atoms)}


def group(atoms: ase.Atoms) -> str:
    """A group for every structure: those of one size."""
    return f"of {len(atoms)}"


def cif(atoms: ase.Atoms) -> str:
    text = BytesIO()
    write(text, atoms, format="cif")
    return text.getvalue().decode()


def write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def write_extxyz(path: Path, structures: Sequence[ase.Atoms]) -> None:
    for atoms in structures:
        atoms.info["group"] = group(atoms)
    write(path, structures, format="extxyz")


def write_traj(path: Path, structures: Sequence[ase.Atoms]) -> None:
    for atoms in structures:
        atoms.info["group"] = group(atoms)
    write(path, structures, format="traj")


def write_database(path: Path, structures: Sequence[ase.Atoms]) -> None:
    with connect(path) as database:
        database.write(ase.Atoms("H"))
        for atoms in structures:
            database.write(atoms, group=group(atoms))
        del database[1]  # rows do not count from one without gaps


def write_cif_table(path: Path, structures: Sequence[ase.Atoms]) -> None:
    rows = [[cif(atoms), atoms.calc.results["energy"], group(atoms)] for atoms in structures]
    write_table(path, ["cif", "energy", "group"], rows)


def write_path_table(path: Path, structures: Sequence[ase.Atoms]) -> None:
    rows = []
    for i, atoms in enumerate(structures):
        name = f"{path.stem} {i}.{'cif' if i % 2 else 'xyz'}"
        write(path.parent / name, atoms)
        rows.append([name, atoms.calc.results["energy"], group(atoms)])
    write_table(path, ["cif", "energy", "group"], rows)


def write_records(path: Path, structures: Sequence[ase.Atoms]) -> None:
    path.write_text(json.dumps([record(atoms) for atoms in structures]), encoding="utf-8")


def write_split_table(path: Path, structures: Sequence[ase.Atoms]) -> None:
    rows = [
        [structure_dict(atoms), atoms.calc.results["energy"], group(atoms)] for atoms in structures
    ]
    columns = ["structure", "energy", "group"]
    table = {"columns": columns, "index": list(range(len(rows))), "data": rows}
    path.write_bytes(gzip.compress(json.dumps(table).encode()))


def write_vasprun(path: Path, structures: Sequence[ase.Atoms]) -> None:
    """The least of a vasprun.xml that ASE reads; all structures have the atoms of the first."""

    def rows(name: str, values: Any) -> str:
        lines = "".join(f"<v>{' '.join(map(repr, row))}</v>" for row in values.tolist())
        return f'<varray name="{name}">{lines}</varray>'

    steps = ""
    for n, atoms in enumerate(structures):
        basis, positions = atoms.cell.array, atoms.get_scaled_positions(wrap=False)
        here = f"<crystal>{rows('basis', basis)}</crystal>{rows('positions', positions)}"
        steps += "" if n else f'<structure name="initialpos">{here}</structure>'
        energies = "".join(
            f'<i name="{name}">{atoms.calc.results["energy"]!r}</i>'
            for name in ("e_fr_energy", "e_0_energy")
        )
        steps += (
            f"<calculation><scstep><energy>{energies}</energy></scstep><structure>{here}"
            f"</structure>{rows('forces', atoms.calc.results['forces'])}"
            f"<energy>{energies}</energy></calculation>\n"
        )
    atoms = "".join(f"<rc><c>{symbol}</c><c>1</c></rc>" for symbol in structures[0].symbols)
    path.write_text(
        '<modeling><kpoints><varray name="kpointlist"/><varray name="weights"/></kpoints>'
        f'<parameters/><atominfo><array name="atoms"><set>{atoms}</set></array></atominfo>'
        f"{steps}</modeling>\n",
        encoding="utf-8",
    )


def write_outcar(path: Path, structures: Sequence[ase.Atoms]) -> None:
    """The least of an OUTCAR that ASE reads; all structures have the atoms of the first."""
    symbols = structures[0].get_chemical_symbols()
    lines = [f" POTCAR:    PAW_PBE {symbol} 01Jan2000" for symbol in symbols * 2]
    lines += ["   ISPIN  =      1", f"   ions per type =  {' 1' * len(symbols)}"]
    lines += ["   k-points           NKPTS =      1   number of bands    NBANDS=      1"]
    lines += [" k-points in reciprocal lattice and weights:", "   0.0 0.0 0.0    1.0"]
    for step, atoms in enumerate(structures, 1):
        energy, forces = atoms.calc.results["energy"], atoms.calc.results["forces"]
        lines.append(f"---- Iteration {step}(   1)  ----")
        lines.append("      direct lattice vectors                 reciprocal lattice vectors")
        lines += [" ".join(map(repr, [*row, 0.0, 0.0, 0.0])) for row in atoms.cell.tolist()]
        lines += [" POSITION                                       TOTAL-FORCE (eV/Angst)", "---"]
        lines += [" ".join(map(repr, row)) for row in np.hstack([atoms.positions, forces]).tolist()]
        lines += ["  FREE ENERGIE OF THE ION-ELECTRON SYSTEM (eV)", "  ---"]
        lines += [f"  free  energy   TOTEN  = {energy!r} eV", ""]
        lines += [f"  energy  without entropy=  0.0  energy(sigma->0) = {energy!r}"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


Writer = Callable[[Path, Sequence[ase.Atoms]], None]
FORMATS: dict[str, tuple[dict[str, Any], str, Writer]] = {
    "extxyz": ({"format": "ase"}, "xyz", write_extxyz),
    "traj": ({"format": "ase"}, "traj", write_traj),
    "db": ({"format": "ase"}, "db", write_database),
    "db in JSON": ({"format": "ase"}, "json", write_database),
    "csv of CIF": ({"format": "csv", "structure": "cif"}, "csv", write_cif_table),
    "csv of paths": ({"format": "csv", "structure": "cif"}, "csv", write_path_table),
    "json": ({"format": "json"}, "json", write_records),
    "json table": ({"format": "json"}, "json.gz", write_split_table),
}
"""Rest of the source's section, extension of its files, and what writes one."""
WITHOUT_FORCES = ("csv of CIF", "csv of paths", "json table")


def config(path: Path | None = None, **source: Any) -> DataConfig:
    """A configuration that gives shares to the splits without files."""
    split = {role: 0.1 for role in ("val", "test") if source.get(role) is None}
    return DataConfig.model_validate({"source": source, "path": path, "split": split})


def write_section(name: str, folder: Path) -> tuple[dict[str, Any], dict[str, list[ase.Atoms]]]:
    """Files in a format: nine structures in three files to train, four to test."""
    section, extension, write_file = FORMATS[name]
    inputs = {"train": frames(9), "test": frames(4, seed=1)}
    for i, (start, stop) in enumerate([(0, 4), (4, 5), (5, 9)]):
        write_file(folder / f"part-{9 + i}.{extension}", inputs["train"][start:stop])
    write_file(folder / f"test.{extension}", inputs["test"])
    targets = {"energy": "eV"} if name in WITHOUT_FORCES else UNITS
    train, test = f"part-*.{extension}", f"test.{extension}"
    return {"train": train, "test": test, "targets": targets, "group": "group", **section}, inputs


def write_case(name: str, folder: Path) -> tuple[DataConfig, dict[str, list[ase.Atoms]]]:
    """A configuration that reads them."""
    section, inputs = write_section(name, folder)
    return config(folder, **section), inputs


def read_all(source: Source, chunks: Sequence[Chunk] | None = None) -> dict[str, list[Record]]:
    """The structures of each role."""
    read: dict[str, list[Record]] = {}
    for chunk in source.chunks() if chunks is None else chunks:
        for structure in source.read(chunk):
            read.setdefault(chunk.role, []).append(structure)
    return read


def read_train(path: Path | None, **source: Any) -> list[Record]:
    return read_all(open_source(config(path, **source), seed=0))["train"]
