"""Labels and structures from the places that formats have for them."""

import json
from typing import Any

import numpy as np
import pytest
import source_cases as cases
from source_cases import UNITS, config, frames, read_all, read_train

from hydragnn_flow.data.sources.ase_files import count_frames, read_frames
from hydragnn_flow.data.sources.opening import open_source


def test_labels_from_anywhere_in_ase(tmp_path):
    """Targets from the comment line and from columns, scalars and vectors."""
    (tmp_path / "a.xyz").write_text(
        '3\nProperties=species:S:1:pos:R:3:spin:R:1:q:R:2 gap=0.5 mu="1 2 3" virial="1 2 3 4 5 6 '
        '7 8 9" pbc="F F F"\nH 0 0 0 0.1 1 2\nH 0 0 1 0.2 3 4\nH 0 0 2 0.3 5 6\n'
    )
    units: dict[str, Any] = {"gap": "eV", "mu": "D", "spin": "", "virial": "eV"}
    units["charge"] = {"unit": "e", "key": "q"}
    values = config(tmp_path, format="ase", train="a.xyz", targets=units)
    source = open_source(values, seed=0)
    (found,) = read_all(source)["train"]
    assert {name: label.tolist() for name, label in found.targets.items()} == {
        "gap": [0.5],
        "mu": [1.0, 2.0, 3.0],
        "spin": [[0.1], [0.2], [0.3]],
        "charge": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
        "virial": [1.0, 4.0, 7.0, 2.0, 5.0, 8.0, 3.0, 6.0, 9.0],
    }
    of_atoms = {name for name, found in source.found_targets.items() if found.level == "node"}
    assert of_atoms == {"spin", "charge"}


def test_labels_from_a_database(tmp_path):
    atoms = frames(3)[2]
    with cases.connect(tmp_path / "a.db") as database:
        database.write(atoms, gap=0.5, data={"spin": [1.0, 2.0, 3.0], "dos": [1.0, 2.0, 3.0]})
    units: dict[str, Any] = {"energy": "eV", "gap": "eV", "dos": "1/eV"}
    units["spin"] = {"unit": "μB", "level": "node"}
    (found,) = read_train(tmp_path, format="ase", train="a.db", targets=units)
    assert found.targets["energy"] == pytest.approx([atoms.calc.results["energy"]])
    assert found.targets["gap"].tolist() == [0.5]
    assert found.targets["dos"].tolist() == [1.0, 2.0, 3.0]
    assert found.targets["spin"].tolist() == [[1.0], [2.0], [3.0]]


def test_labels_from_json(tmp_path):
    entry = cases.record(frames(3)[2]) | {"charges": [1, 2, 3], "calc": {"final": {"gap": 0.5}}}
    entry["outputs"]["stress"] = np.eye(3).tolist()
    (tmp_path / "a.json").write_text(json.dumps([entry]))
    units: dict[str, Any] = {
        "forces": "eV/Å",
        "gap": {"unit": "eV", "key": "calc.final.gap"},
        "total": {"unit": "eV", "key": "outputs.energy"},
        "charges": {"unit": "e", "level": "node"},
        # of three atoms, so that rows of three look like those of atoms
        "stress": {"unit": "eV/Å³", "level": "graph"},
    }
    (found,) = read_train(tmp_path, format="json", train="a.json", targets=units)
    assert found.targets["forces"].tolist() == entry["outputs"]["forces"]
    assert found.targets["gap"].tolist() == [0.5]
    assert found.targets["total"].tolist() == [entry["outputs"]["energy"]]
    assert found.targets["charges"].tolist() == [[1.0], [2.0], [3.0]]
    assert found.targets["stress"].tolist() == [1.0, 0, 0, 0, 1.0, 0, 0, 0, 1.0]


@pytest.mark.parametrize(
    ("name", "write_file"), [("vasprun.xml", cases.write_vasprun), ("OUTCAR", cases.write_outcar)]
)
def test_all_steps_of_a_vasp_run(tmp_path, name, write_file):
    steps = [atoms for atoms in frames(9) if len(atoms) == 2]
    for atoms in steps:
        atoms.symbols = ["Cu", "Au"]
    for folder, some in (("run-2", steps[:2]), ("run-10", steps[2:])):
        (tmp_path / folder).mkdir()
        write_file(tmp_path / folder / name, some)
    values = config(tmp_path, format="ase", train=f"run-*/{name}", targets=UNITS)
    chunks = open_source(values, seed=0).chunks()
    assert [(chunk.start, chunk.stop, chunk.first) for chunk in chunks] == [(0, 2, 0), (0, 1, 2)]
    for got, atoms in zip(read_all(open_source(values, 0), chunks)["train"], steps, strict=True):
        assert got.atoms.get_chemical_symbols() == ["Cu", "Au"]
        assert got.atoms.positions == pytest.approx(atoms.positions)
        assert got.targets["energy"] == pytest.approx([atoms.calc.results["energy"]])
        assert got.targets["forces"] == pytest.approx(atoms.calc.results["forces"])


def test_extxyz_with_cells_below_the_atoms_and_empty_lines_at_the_end(tmp_path):
    frame = "1\ncopper\nCu 0 0 0\nVEC1 4 0 0\nVEC2 0 4 0\nVEC3 0 0 4\n"
    file = tmp_path / "a.xyz"
    file.write_text(frame * 3 + "\n \n")
    assert count_frames(file) == 3
    found = list(read_frames(file, 1, 3))
    assert [atoms.cell.lengths().tolist() for atoms in found] == [[4.0] * 3] * 2


def test_a_name_that_ase_would_take_for_an_index(tmp_path):
    cases.write_case("traj", tmp_path)
    (tmp_path / "part-9.traj").rename(tmp_path / "chunk@1.traj")
    found = read_train(tmp_path, format="ase", train="chunk@1.traj", targets=UNITS)
    assert len(found) == 4


def test_a_cif_of_an_asymmetric_unit_is_completed(tmp_path):
    sites = "Na 0.0 0.0 0.0 1.0\nCl 0.5 0.5 0.5 1.0\n"
    text = (
        "data_salt\n_cell_length_a 5.6\n_cell_length_b 5.6\n_cell_length_c 5.6\n_cell_angle_alpha "
        "90\n_cell_angle_beta 90\n_cell_angle_gamma 90\n_space_group_IT_number 225\nloop_\n"
        "_atom_site_type_symbol\n_atom_site_fract_x\n_atom_site_fract_y\n_atom_site_fract_z\n"
        f"_atom_site_occupancy\n{sites}"
    )
    cases.write_table(tmp_path / "a.csv", ["cif", "gap"], [[text, 8.5]])
    section = {"format": "csv", "structure": "cif", "targets": {"gap": "eV"}}
    (found,) = read_train(tmp_path, train="a.csv", **section)
    assert found.atoms.get_chemical_formula() == "Cl4Na4"


def test_a_molecule_and_fractional_coordinates_from_json(tmp_path):
    atoms = frames(3)[2]
    crystal_dict = cases.structure_dict(atoms)
    for site in crystal_dict["sites"]:
        del site["xyz"]
    molecule = {"sites": cases.structure_dict(atoms)["sites"]}
    slab = cases.structure_dict(atoms)
    slab["lattice"]["pbc"] = [True, True, False]
    entries = [{"structure": one, "gap": 1} for one in (crystal_dict, molecule, slab)]
    (tmp_path / "a.json").write_text(json.dumps(entries))
    found = read_train(tmp_path, format="json", train="a.json", targets={"gap": "eV"})
    periodic = [one.atoms.pbc.tolist() for one in found]
    assert periodic == [[True] * 3, [False] * 3, [True, True, False]]
    for one in found:
        assert one.atoms.positions == pytest.approx(atoms.positions)
