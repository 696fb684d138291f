"""Data sets in the layouts that people have, each with a first configuration's targets."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import ase
import numpy as np
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write
from source_cases import cif, structure_dict, write_extxyz, write_outcar, write_vasprun


@cache
def crystals(n: int, pbc: bool = True, seed: int = 0) -> list[ase.Atoms]:
    """Rattled cells of the same four atoms, with EMT's energy, forces and stress."""
    made = []
    for i in range(n):
        random = np.random.default_rng([seed, i])
        atoms = bulk("Cu", cubic=True, a=3.9)
        atoms.symbols = ["Cu", "Au", "Cu", "Au"]
        atoms.set_cell(atoms.cell.array * random.uniform(0.97, 1.03, (3, 1)), scale_atoms=True)
        atoms.rattle(0.08, rng=random)
        atoms.pbc = pbc
        if not pbc:
            atoms.cell = None
        atoms.calc = EMT()
        some = ("energy", "forces", "stress") if pbc else ("energy", "forces")
        found = {name: atoms.calc.get_property(name, atoms) for name in some}
        found["energy"] = float(found["energy"])
        atoms.calc = SinglePointCalculator(atoms, **found)
        made.append(atoms)
    return made


def energies(some: Sequence[ase.Atoms]) -> list[float]:
    return [atoms.get_potential_energy() for atoms in some]


def stacked(some: Sequence[ase.Atoms]) -> tuple[Any, Any, Any]:
    forces = np.array([atoms.get_forces() for atoms in some])
    return np.array([atoms.positions for atoms in some]), np.array(energies(some)), forces


def in_folders(name: str, write_file: Any, *others: str) -> Callable[[Path, Any], None]:
    def write_all(folder: Path, some: Sequence[ase.Atoms]) -> None:
        for run in range(len(some) // 4):
            (folder / f"run-{run}").mkdir()
            write_file(folder / f"run-{run}" / name, some[4 * run : 4 * run + 4])
            write(folder / f"run-{run}" / "POSCAR", some[4 * run], format="vasp")
            for other in ("slurm-123.out", "INCAR", *others):
                (folder / f"run-{run}" / other).write_text("srun: 4 cores\n")

    return write_all


def write_pwscf(path: Path, some: Sequence[ase.Atoms], unconverged: Sequence[int] = ()) -> None:
    """The least of an output of pw.x that ASE reads."""
    rydberg, bohr = 13.605691930242388, 0.529177210903
    rows = ["Program PWSCF v.7.2", "celldm(1)= 1.0", "number of atoms/cell = 4"]
    rows += ["number of atomic types = 2", "crystal axes:"]
    for n, row in enumerate(some[0].cell.array / bohr, 1):
        rows.append(f"a({n}) = ( {row[0]} {row[1]} {row[2]} )")
    rows.append("positions (alat units)")
    for n, atom in enumerate(some[0]):
        x, y, z = atom.position / bohr
        rows.append(f"{n} {atom.symbol} tau( {n}) = ( {x} {y} {z} )")
    for n, atoms in enumerate(some):
        if n:
            rows += ["CELL_PARAMETERS (angstrom)", *(" ".join(map(str, r)) for r in atoms.cell)]
            rows += ["", "ATOMIC_POSITIONS (angstrom)"]
            rows += [f"{atom.symbol} {' '.join(map(str, atom.position))}" for atom in atoms]
        failed = n in unconverged
        rows.append("convergence NOT achieved after 100 iterations" if failed else "converged")
        rows.append(
            f"{' ' if failed else '!'}    total energy = {energies([atoms])[0] / rydberg} Ry"
        )
        rows += ["Forces acting on atoms (cartesian axes, Ry/au):", ""]
        for i, force in enumerate(atoms.get_forces() / rydberg * bohr, 1):
            rows.append(f"atom {i} type 1 force = {force[0]} {force[1]} {force[2]}")
    path.write_text("\n".join([*rows, "JOB DONE."]) + "\n", encoding="utf-8")


def write_splits(names: Sequence[str]) -> Callable[[Path, Any], None]:
    def write_all(folder: Path, some: Sequence[ase.Atoms]) -> None:
        for name, part in zip(names, (some[24:], some[:12], some[12:24]), strict=True):
            (folder / name).parent.mkdir(exist_ok=True)
            write_extxyz(folder / name, part)

    return write_all


def write_cgcnn(folder: Path, some: Sequence[ase.Atoms]) -> None:
    rows = [f"{i},{energy}" for i, energy in enumerate(energies(some))]
    (folder / "id_prop.csv").write_text("\n".join(rows) + "\n")
    (folder / "atom_init.json").write_text('{"1": [0, 1], "2": [1, 0]}')
    for i, atoms in enumerate(some):
        (folder / f"{i}.cif").write_text(cif(atoms))


def write_alignn(folder: Path, some: Sequence[ase.Atoms]) -> None:
    rows = [f"POSCAR-{i}.vasp,{energy}" for i, energy in enumerate(energies(some))]
    (folder / "id_prop.csv").write_text("\n".join(rows) + "\n")
    for i, atoms in enumerate(some):
        write(folder / f"POSCAR-{i}.vasp", atoms, format="vasp")


def text_table(mark: str, encoding: str, name: str) -> Callable[[Path, Any], None]:
    def write_all(folder: Path, some: Sequence[ase.Atoms]) -> None:
        rows = [mark.join(["Datei", "Lücke [eV]"])]
        (folder / "c").mkdir()
        for i, energy in enumerate(energies(some)):
            (folder / "c" / f"{i}.cif").write_text(cif(some[i]))
            rows.append(mark.join([name.format(i), str(energy)]))
        (folder / "table.csv").write_text("\n".join(rows) + "\n", encoding=encoding)

    return write_all


def write_json(name: str, of: Callable[[Sequence[ase.Atoms]], Any]) -> Callable[[Path, Any], None]:
    def write_all(folder: Path, some: Sequence[ase.Atoms]) -> None:
        made = of(some)
        text = made if isinstance(made, str) else json.dumps(made)
        raw = text.encode()
        (folder / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)

    return write_all


def mptrj(some: Sequence[ase.Atoms]) -> Any:
    frames: dict[str, Any] = {}
    for i, atoms in enumerate(some):
        frames.setdefault(f"mp-{i // 4}", {})[f"mp-{i // 4}-0-{i % 4}"] = {
            "structure": structure_dict(atoms),
            "uncorrected_total_energy": energies([atoms])[0],
            "corrected_total_energy": energies([atoms])[0] - 1,
            "energy_per_atom": energies([atoms])[0] / 4,
            "force": atoms.get_forces().tolist(),
            "stress": (atoms.get_stress(voigt=False) * -1602.176634).tolist(),
            "magmom": None,
            "mp_id": f"mp-{i // 4}",
        }
    return frames


def jarvis(some: Sequence[ase.Atoms]) -> Any:
    return [
        {
            "jid": f"JVASP-{i}",
            "spg_number": 12,
            "formation_energy_peratom": energy,
            "hse_gap": "na" if i else 1.2,
            "atoms": {
                "lattice_mat": atoms.cell.tolist(),
                "coords": atoms.get_scaled_positions().tolist(),
                "elements": [f"{symbol} " for symbol in atoms.symbols],
                "cartesian": False,
                "props": [""] * 4,
            },
        }
        for i, (atoms, energy) in enumerate(zip(some, energies(some), strict=True))
    ]


def optimade(some: Sequence[ase.Atoms]) -> Any:
    kinds = [
        {"name": name, "chemical_symbols": [name], "concentration": [1.0]} for name in ("Cu", "Au")
    ]
    data = [
        {
            "id": f"{i}",
            "type": "structures",
            "attributes": {
                "nelements": 2,
                "species": kinds,
                "species_at_sites": list(atoms.symbols),
                "cartesian_site_positions": atoms.positions.tolist(),
                "lattice_vectors": atoms.cell.tolist(),
                "dimension_types": [1, 1, 1],
                "nperiodic_dimensions": 3,
                "_mp_band_gap": energy,
            },
        }
        for i, (atoms, energy) in enumerate(zip(some, energies(some), strict=True))
    ]
    return {"meta": {"api_version": "1.1.0"}, "links": {"next": None}, "data": data}


def matbench(some: Sequence[ase.Atoms]) -> Any:
    rows = [[structure_dict(atoms), atoms.get_potential_energy()] for atoms in some]
    return {"columns": ["structure", "e_form"], "index": list(range(len(some))), "data": rows}


def records(some: Sequence[ase.Atoms]) -> list[Any]:
    return [
        {"structure": structure_dict(atoms), "gap (eV)": atoms.get_potential_energy()}
        for atoms in some
    ]


def write_qm9(folder: Path, some: Sequence[ase.Atoms]) -> None:
    for i, atoms in enumerate(some, 1):
        gap = atoms.get_potential_energy()
        said = [157.7, 157.7, 157.7, 0.1, 13.2, -0.4, 0.1, gap, 35.4, 0.04, -40.5, -40.4, -40.4]
        lines = [str(len(atoms)), "\t".join([f"gdb {i}", *map(str, said), "-40.5", "6.5", ""])]
        for atom in atoms:
            x, y, z = atom.position
            lines.append(f"{atom.symbol}\t{x:.12f}\t{y:.12f}\t{z:.12f}\t-1.5*^-6")
        lines += ["1341.307\t1341.3284", "C\tC", "InChI=1S/CH4/h1H4\tInChI=1S/CH4/h1H4"]
        (folder / f"dsgdb9nsd_{i:06d}.xyz").write_text("\n".join(lines) + "\n")


def write_npz(positions: str, numbers: str, *keys: str, **more: Any) -> Callable[[Path, Any], None]:
    def write_all(folder: Path, some: Sequence[ase.Atoms]) -> None:
        arrays = dict(zip((positions, *keys), stacked(some), strict=True))
        arrays[keys[0]] = arrays[keys[0]][:, None]
        np.savez(folder / "a.npz", **arrays, **{numbers: some[0].numbers}, **more)

    return write_all


def write_hdf5(names: Sequence[str], scale: float, path: str) -> Callable[[Path, Any], None]:
    def write_all(folder: Path, some: Sequence[ase.Atoms]) -> None:
        import h5py

        with h5py.File(folder / f"a.{'hdf5' if scale != 1 else 'h5'}", "w") as file:
            for part in range(3):
                group = file.create_group(path.format(part))
                coordinates, energy, forces = stacked(some[part::3])
                symbols = np.array(list(some[0].symbols), dtype="S2")
                group[names[0]] = symbols if names[0] == "species" else some[0].numbers
                group[names[1]] = coordinates / scale
                group[names[2]] = energy
                if len(names) > 3:
                    group[names[3]] = forces if scale == 1 else -forces * scale
                group.create_dataset("smiles", data=b"CC")

    return write_all


def write_aselmdb(folder: Path, some: Sequence[ase.Atoms]) -> None:
    from ase.db import connect

    with connect(folder / "a.aselmdb", type="aselmdb") as database:
        for atoms in some:
            database.write(atoms, data={"source": "here"})


def write_mace(folder: Path, some: Sequence[ase.Atoms]) -> None:
    for atoms in some:
        atoms.info = {"REF_energy": energies([atoms])[0], "config_type": "Default"}
        atoms.info["REF_stress"] = atoms.get_stress(voigt=False)
        atoms.arrays["REF_forces"] = atoms.get_forces()
        atoms.calc = None
    write(folder / "a.xyz", some, format="extxyz")


def write_deepmd(folder: Path, some: Sequence[ase.Atoms]) -> None:
    for part in range(2):
        here = folder / f"system-{part}" / "set.000"
        here.mkdir(parents=True)
        here.with_name("type_map.raw").write_text("Au\nCu\n")
        here.with_name("type.raw").write_text("1\n0\n1\n0\n")
        coordinates, energy, forces = stacked(mine := some[part::2])
        volumes = np.array([atoms.cell.volume for atoms in mine])[:, None, None]
        stress = np.array([atoms.get_stress(voigt=False) for atoms in mine])
        arrays = {"coord": coordinates, "energy": energy, "force": forces}
        arrays |= {"virial": -stress * volumes, "box": np.array([a.cell.array for a in mine])}
        for name, values in arrays.items():
            flat = values.reshape(len(mine), -1)
            np.save(here / f"{name}.npy", flat[:, 0] if name == "energy" else flat)


class Case(NamedTuple):
    """Layout, and what `init` should find in it."""

    write: Callable[[Path, Sequence[ase.Atoms]], Any]
    targets: str
    """Names and units."""
    periodic: bool = True
    needs: str = ""
    """Package that is not installed everywhere."""


EV, SLOPES = "energy eV, forces eV/Å", "energy eV, forces eV/Å, stress eV/Å³"
KCAL, HARTREE = "energy kcal/mol, forces kcal/mol/Å", "energy hartree, forces hartree/Å"
ANI = ("atomic_numbers", "coordinates", "wb97x_dz.energy", "wb97x_dz.forces")
SPICE = ("atomic_numbers", "conformations", "dft_total_energy", "dft_total_gradient")
CASES: dict[str, Case] = {
    "CGCNN": Case(write_cgcnn, "target "),
    "ALIGNN": Case(write_alignn, "target "),
    "; Latin-1": Case(text_table(";", "latin-1", "c/{}.cif"), "L_cke eV"),
    "tabs UTF-16": Case(text_table("\t", "utf-16", "c\\{}.cif"), "L_cke eV"),
    "UTF-16 without mark": Case(text_table(";", "utf-16-be", "c/{}"), "L_cke eV"),
    "BOM": Case(text_table(",", "utf-8-sig", "c/{}"), "L_cke eV"),
    "vasprun.xml": Case(in_folders("vasprun.xml", write_vasprun, "OUTCAR"), EV),
    "OUTCAR": Case(in_folders("OUTCAR", write_outcar), EV),
    "pw.x": Case(in_folders("pw.out", write_pwscf), EV),
    "folders": Case(write_splits(["train/a.xyz", "val/b.xyz", "test/c.xyz"]), SLOPES),
    "files": Case(write_splits(["train.extxyz", "val.extxyz", "test.extxyz"]), SLOPES),
    "MPtrj": Case(write_json("MPtrj.json", mptrj), SLOPES),
    "JARVIS": Case(write_json("jdft.json", jarvis), "formation_energy_peratom eV/atom"),
    "OPTIMADE": Case(write_json("structures.json", optimade), "mp_band_gap "),
    "matbench": Case(write_json("matbench.json.gz", matbench), "e_form "),
    "lines": Case(
        write_json("a.jsonl", lambda s: "\n".join(map(json.dumps, records(s)))), "gap eV"
    ),
    "QM9": Case(write_qm9, "gap hartree", periodic=False),
    "MD17": Case(write_npz("R", "z", "E", "F", theory="PBE"), KCAL, periodic=False),
    "sGDML": Case(write_npz("R", "z", "E", "F", e_unit="eV", r_unit="Ang"), EV, periodic=False),
    "rMD17": Case(write_npz("coords", "nuclear_charges", "energies", "forces"), KCAL, False),
    "SPICE": Case(write_hdf5(SPICE, 0.529177210903, "{}"), HARTREE, False, "h5py"),
    "ANI-1x": Case(write_hdf5(ANI, 1.0, "C2H{}"), HARTREE, False, "h5py"),
    "ANI-1": Case(
        write_hdf5(("species", "coordinates", "energies"), 1.0, "gdb/s-{}"),
        *("energy hartree", False, "h5py"),
    ),
    "aselmdb": Case(write_aselmdb, SLOPES, needs="ase_db_backends"),
    "MACE": Case(write_mace, SLOPES),
    "DeePMD": Case(write_deepmd, SLOPES),
}
