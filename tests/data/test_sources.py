"""Structures as they were written, labels from all their places, real data, and alloys."""

import glob
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import source_cases as cases
from hypothesis import given
from hypothesis import strategies as st
from source_cases import UNITS, config, frames, read_all, read_train

from hydragnn_flow.config.sources import is_virial
from hydragnn_flow.data.sources.ase_files import count_frames, read_frames
from hydragnn_flow.data.sources.file_names import find_files, ranges
from hydragnn_flow.data.sources.opening import fingerprint, open_source
from hydragnn_flow.data.sources.single import from_cif
from hydragnn_flow.errors import InputError


@pytest.fixture(params=["emt_alloys", *cases.FORMATS])
def case(request, small_chunks, tmp_path):
    """A configuration in each format, and its structures where they are known."""
    if request.param == "emt_alloys":
        return config(format="emt_alloys", structures=8), {}
    return cases.write_case(request.param, tmp_path)


def test_every_structure_is_as_it_was_written(case):
    values, structures = case
    source = open_source(values, seed=0)
    assert source.found_targets == {}
    chunks = source.chunks()
    assert len(chunks) > len({chunk.file for chunk in chunks})
    read = read_all(source, chunks)
    assert {(name, t.level, t.dim, t.unit) for name, t in source.found_targets.items()} <= {
        ("energy", "graph", 1, "eV"),
        ("forces", "node", 3, "eV/Å"),
    }
    assert "energy" in source.found_targets
    for role, found in read.items():
        assert [structure.index for structure in found] == list(range(len(found)))
        for structure in found:
            assert structure.targets["energy"].shape == (1,)
            assert all(np.isfinite(label).all() for label in structure.targets.values())
            # A calculator left behind would be carried along with every structure.
            assert structure.atoms.calc is None
        for structure, atoms in zip(found, structures.get(role, []), strict=bool(structures)):
            assert structure.group == cases.group(atoms)
            got = structure.atoms
            assert got.get_chemical_symbols() == atoms.get_chemical_symbols()
            assert got.pbc.all()
            assert got.cell.cellpar() == pytest.approx(atoms.cell.cellpar(), abs=1e-5)
            distances = got.get_all_distances(mic=True)
            assert distances == pytest.approx(atoms.get_all_distances(mic=True), abs=1e-4)
            results = atoms.calc.results
            assert structure.targets["energy"] == pytest.approx([results["energy"]], abs=1e-7)
            if "forces" in structure.targets:
                assert structure.targets["forces"] == pytest.approx(results["forces"], abs=1e-7)
                assert got.positions == pytest.approx(atoms.positions, abs=1e-7)


def test_the_fingerprint_is_of_names_and_contents(case, tmp_path):
    values, structures = case
    before = fingerprint(values)
    assert before == fingerprint(values)
    assert before["files"] == (len(list(tmp_path.iterdir())) if structures else 0)
    moved = Path(shutil.copytree(tmp_path, tmp_path / "moved"))
    there = values.model_copy(update={"path": moved})
    assert fingerprint(there) == before
    for file in open_source(there, seed=0).files():
        content = file.read_bytes()
        at = max(0, content.rfind(b"of "))  # a group's name in a table, which stays a table
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert fingerprint(there)["crc32"] != before["crc32"]
        file.write_bytes(content)
    assert fingerprint(there) == before


def test_large_input_is_known_by_its_times(tmp_path, monkeypatch):
    monkeypatch.setattr("hydragnn_flow.data.sources.opening._CONTENT_UP_TO", 10)
    values, _ = cases.write_case("extxyz", tmp_path)
    before = fingerprint(values)
    file = tmp_path / "test.xyz"
    times = file.stat().st_mtime_ns
    file.write_bytes(file.read_bytes()[::-1])
    os.utime(file, ns=(times, times))
    assert fingerprint(values) == before
    os.utime(file, ns=(times, times + 1))
    assert fingerprint(values)["crc32"] != before["crc32"]


@given(n=st.integers(0, 10_000), least=st.integers(1, 300), most=st.integers(1, 70))
def test_ranges_cover_everything_once(n, least, most):
    cuts = ranges(n, least, most)
    assert [i for start, stop in cuts for i in range(start, stop)] == list(range(n))
    assert len(cuts) <= most
    assert all(stop - start >= least for start, stop in cuts[:-1])


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("run-2/b", ["run-2/b"]),
        ("run-2", ["run-2/a", "run-2/b"]),
        ("run-*/a", ["run-2/a", "run-10/a"]),
        ("**/*", ["run-2/a", "run-2/b", "run-2/deep/c", "run-10/a", "we[i]rd@1"]),
        ("{folder}/run-*/a", ["run-2/a", "run-10/a"]),
        ("we[i]rd@1", ["we[i]rd@1"]),
    ],
)
def test_files_of_a_name_a_pattern_and_a_directory(tmp_path, name, files):
    folder = tmp_path / "data[1]"
    for file in ("run-10/a", "run-2/a", "run-2/b", "run-2/.hidden", "run-2/deep/c", "we[i]rd@1"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    found = find_files(name.format(folder=glob.escape(str(folder))), folder, "key")
    assert [str(file.relative_to(folder)) for file in found] == files


FIRST_FORCE = [1.47339228, 1.13796366, 0.06391102]
HEATS = {"heat_all": "eV/atom", "gap": {"unit": "eV", "key": "dir_gap"}}
REAL: dict[str, tuple[dict[str, Any], list[int], str, dict[str, Any]]] = {
    "mlearn": (
        {"format": "json", "train": "Si_training.json", "test": "Si_test.json", "targets": UNITS},
        [214, 25],
        "Si63",
        {"energy": [-295.49753016]},
    ),
    "acac": (
        {"format": "ase", "train": "train_300K.xyz", "test": "test_MD_300K.xyz", "targets": UNITS},
        [500, 650],
        "C5H8O2",
        {"energy": [-9391.45554428476], "forces": FIRST_FORCE},
    ),
    "perov_5": (
        {"format": "csv", "train": "val.csv", "test": "test.csv", "targets": HEATS},
        [3787, 3785],
        "CdCuN3",
        {"heat_all": [2.76], "gap": [0.0]},
    ),
}


@pytest.mark.parametrize("folder", REAL)
def test_known_labels(shared_data, folder):
    """Of the first structures, which are read with the last ones; all are counted."""
    section, counts, formula, labels = REAL[folder]
    section |= {"structure": "cif"} if folder == "perov_5" else {"group": None}
    source = open_source(config(shared_data / folder, **section), seed=0)
    of_roles = [[c for c in source.chunks() if c.role == role] for role in ("train", "test")]
    assert [chunks[-1].first + chunks[-1].stop for chunks in of_roles] == counts
    found = read_all(source, [end for chunks in of_roles for end in (chunks[0], chunks[-1])])
    first = found["train"][0]
    assert first.atoms.get_chemical_formula() == formula
    assert first.atoms.pbc.all() == (folder != "acac")
    for name, label in labels.items():
        assert first.targets[name].ravel()[: len(label)] == pytest.approx(label, abs=1e-8)
    if folder == "perov_5":
        assert first.atoms.cell.lengths() == pytest.approx([4.27928426] * 3)
        assert first.atoms.positions[0, 0] == pytest.approx(0.00159044 * 4.27928426)
        everything = found["train"] + found["test"]
        assert {len(structure.atoms) for structure in everything} == {5}
        assert len({symbol for s in everything for symbol in s.atoms.symbols}) > 50


def test_labels_from_anywhere_in_ase(tmp_path):
    """Targets from the comment line and from columns, scalars and vectors."""
    (tmp_path / "a.xyz").write_text(
        '3\nProperties=species:S:1:pos:R:3:spin:R:1:q:R:2 gap=0.5 mu="1 2 3" virial="1 2 3 4 5 6 '
        '7 8 9" pbc="F F F"\nH 0 0 0 0.1 1 2\nH 0 0 1 0.2 3 4\nH 0 0 2 0.3 5 6\n'
    )
    units = {
        "gap": "eV",
        "mu": "D",
        "spin": "",
        "virial": "eV",
        "charge": {"unit": "e", "key": "q"},
    }
    source = open_source(config(tmp_path, format="ase", train="a.xyz", targets=units), seed=0)
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
    spin = {"unit": "μB", "level": "node"}
    dos = {"unit": "1/eV", "level": "graph"}
    units = {"energy": "eV", "gap": "eV", "dos": dos, "spin": spin}
    (found,) = read_train(tmp_path, format="ase", train="a.db", targets=units)
    assert found.targets["energy"] == pytest.approx([atoms.calc.results["energy"]])
    assert found.targets["gap"].tolist() == [0.5]
    assert found.targets["dos"].tolist() == [1.0, 2.0, 3.0]
    assert found.targets["spin"].tolist() == [[1.0], [2.0], [3.0]]


def test_a_stress_is_computed_from_a_virial_and_levels_from_names(tmp_path):
    atoms = frames(3)[2]
    virial = np.diag([1.0, 2.0, 3.0])
    entry = cases.record(atoms) | {"REF_virial": virial.tolist(), "magmoms": [1.0, 2.0, 3.0]}
    (tmp_path / "a.json").write_text(json.dumps([entry | {"dipole": [1.0, 2.0, 3.0]}]))
    units = {"stress": {"unit": "eV/Å³", "key": "REF_virial"}}
    units |= {"magmoms": "μB", "dipole": "D"}
    (found,) = read_train(tmp_path, format="json", train="a.json", targets=units)
    assert found.targets["stress"] == pytest.approx(-virial.ravel() / atoms.get_volume())
    assert found.targets["magmoms"].shape == (3, 1)
    assert found.targets["dipole"].shape == (3,)
    assert not is_virial("stress", "virial_stress")  # mlearn's, which is a stress
    for unit in ("eV", "kB", "N/m^2", "GPa"):
        with pytest.raises(ValueError, match="stress is computed from a virial, 'REF_virial'"):
            config(
                format="json", train="a.json", targets={"stress": units["stress"] | {"unit": unit}}
            )


def test_labels_from_json(tmp_path):
    entry = cases.record(frames(3)[2]) | {"charges": [1, 2, 3], "calc": {"final": {"gap": 0.5}}}
    entry["outputs"]["stress"] = np.eye(3).tolist()
    (tmp_path / "a.json").write_text(json.dumps([entry]))
    units = {
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


def test_steps_whose_scf_has_not_converged_are_left_out(tmp_path, caplog):
    steps = [atoms for atoms in frames(12) if len(atoms) == 1]
    for atoms in steps:
        atoms.symbols = "Cu"
    energies = [atoms.calc.results["energy"] for atoms in steps]
    cases.write_vasprun(tmp_path / "vasprun.xml", steps)
    text = (tmp_path / "vasprun.xml").read_text().replace("\n", "")
    assert text.count("</calculation>") == 4
    limit = '<incar><i name="NELM"> 2 </i></incar>'
    first, *calculations = text.replace("<kpoints>", f"{limit}<kpoints>").split("<calculation>")
    calculations[2] = "<scstep></scstep>" + calculations[2]  # two loops of two
    (tmp_path / "vasprun.xml").write_text("<calculation>".join([first, *calculations]))
    cases.write_outcar(tmp_path / "OUTCAR", steps)
    text = (tmp_path / "OUTCAR").read_text().replace("Iteration 3(   1)", "Iteration 3(  60)")
    text = text.replace("   ISPIN", "   NELM   =     60;   NELMIN=  2\n   ISPIN")
    unreached = "---- aborting loop EDIFF was not reached (unconverged) ----\n"
    text = text.replace("---- Iteration 4", f"{unreached}---- Iteration 4")
    (tmp_path / "OUTCAR").write_text(text)
    (tmp_path / "other").mkdir()
    bad = text.replace("(   1)", "(  60)")
    (tmp_path / "other" / "OUTCAR").write_text(bad)
    found = read_train(tmp_path, format="ase", train="vasprun.xml", targets=UNITS)
    assert [one.targets["energy"].item() for one in found] == [*energies[:2], energies[3]]
    assert [one.origin[-11:] for one in found] == [f"structure {n}" for n in (0, 1, 3)]
    found = read_train(tmp_path, format="ase", train="**/OUTCAR", targets=UNITS)
    assert [one.targets["energy"].item() for one in found] == energies[:2]
    assert "not converged: 6 structures (files: 2), most" in caplog.text
    assert f"{tmp_path}/other/OUTCAR (4 of 4)" in caplog.text
    with pytest.raises(InputError, match=r"OUTCAR \(data\.source\.train\) has no structure whose"):
        read_train(tmp_path, format="ase", train="other/OUTCAR", targets=UNITS)


def test_what_ase_does_not_know_in_extxyz(tmp_path):
    props = "Properties=pos:R:3:species:S:1:fixed:L:1"
    (tmp_path / "a.xyz").write_text(
        f'\ufeff3\n{props} stress="1 2 3 4 5 6" nm=5,5 kpts=2,2,2 name=2,4-D\n'
        "0 0 0 D T\n0 0 1 T F\n0 0 2 Dy T\n",
        encoding="utf-8",
    )
    (atoms,) = read_frames(tmp_path / "a.xyz", 0, None)
    assert str(atoms.symbols) == "H2Dy"
    assert atoms.calc.results["stress"].tolist() == [1, 2, 3, 4, 5, 6]
    assert atoms.arrays["fixed"].tolist() == [True, False, True]


CELL = "".join(f"_cell_length_{c} 9\n" for c in "abc")
CELL += "".join(f"_cell_angle_{c} {a}\n" for c, a in (("alpha", 90), ("beta", 90), ("gamma", 120)))
SITES = "".join(
    f"_atom_site_{c}\n" for c in ("label", "fract_x", "fract_y", "fract_z", "occupancy")
)


@pytest.mark.parametrize(
    ("sites", "formula"),
    [
        ("Zn .333 .667 0 ?\nO .33 .67 .375 .", "Zn2O2"),
        ("Zn .3333 .6667 0 1", "Zn2"),
        ("D1 0 0 0 .996\nD2 0 0 .2 1.00(1)\nDy 0 0 .3 1", "H4Dy2"),
        ("ZN1 0 0 0 1", "Zn2"),
        ("Zn 0 0 0 .98", None),
        ("FE1 0 0 0 1", None),  # iron or fluorine
    ],
)
def test_sites_of_a_cif(sites, formula):
    text = f"\ufeffdata_x\n{CELL}_symmetry_Int_Tables_number 186\nloop_\n{SITES}{sites}\n"
    if formula is None:
        with pytest.raises(ValueError, match=r"partial occupancies|may be Fe or F; add"):
            from_cif(text)
    else:
        atoms = from_cif(text)
        assert str(atoms.symbols) == formula
        special = atoms.get_scaled_positions()[:2, :2] % (1 / 3)
        assert np.minimum(special, 1 / 3 - special).max() < 1e-3


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


def alloys(seed=0, **changes):
    return read_all(open_source(config(format="emt_alloys", **changes), seed))["train"]


def test_generated_structures_follow_the_seed():
    five, three = alloys(structures=5), alloys(structures=3)
    other = alloys(1, structures=3)
    for one, two, another in zip(five, three, other, strict=False):
        assert one.atoms == two.atoms != another.atoms
        assert one.targets["energy"] == two.targets["energy"]


def test_generated_structures_are_as_asked():
    train = alloys(structures=40, atoms=(12, 48))
    sizes = {len(structure.atoms) for structure in train}
    assert sizes <= {12, 16, 24, 32, 36, 48}
    assert len(sizes) >= 4
    species = [set(structure.atoms.symbols) for structure in train]
    assert set.union(*species) == {"Cu", "Ni", "Pd", "Ag", "Pt", "Au"}
    assert min(map(len, species)) <= 2
    assert max(map(len, species)) >= 5
    assert set(alloys(structures=3, elements=["Al"])[0].atoms.symbols) == {"Al"}
    with pytest.raises(InputError, match=r"data\.source\.atoms"):
        alloys(structures=3, atoms=(9, 11))  # of which no supercell has as many
    for structure in train[:10]:  # strained and rattled
        assert np.abs(structure.targets["forces"]).max() > 0.01
        assert 0.01 < np.abs(structure.atoms.cell.angles() - 90).max() < 15
