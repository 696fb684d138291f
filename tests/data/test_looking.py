"""A look at a directory finds its format, its files by role, and what could be learnt."""

import re

import numpy as np
import pytest
from ase.build import bulk
from ase.io import write
from hypothesis import given
from hypothesis import strategies as st
from source_cases import (
    FORMATS,
    WITHOUT_FORCES,
    cif,
    config,
    frames,
    write_extxyz,
    write_path_table,
    write_table,
    write_vasprun,
)

from hydragnn_flow.config.sources import TargetConfig, good_names
from hydragnn_flow.data import atoms_to_graph, write_store
from hydragnn_flow.data.found_labels import find_labels
from hydragnn_flow.data.looking import look
from hydragnn_flow.data.sources.opening import open_source
from hydragnn_flow.data.sources.structures import Found
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.errors import InputError


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_known(name, tmp_path):
    section, extension, write_file = FORMATS[name]
    files = {"train": f"my_training.{extension}", "test": f"my_test.{extension}"}
    (tmp_path / "README.md").write_text("who made these\n")
    (tmp_path / ".hidden").write_text("")
    write_file(tmp_path / files["train"], frames(7))
    write_file(tmp_path / files["test"], frames(3, seed=1))
    found = look(tmp_path)
    assert found.source == section | files
    assert found.sizes == {"train": 7, "test": 3} and found.looked_at == 7
    assert set(found.elements) == {"Cu", "Ni", "Au"} and found.atoms == (1, 13 / 7, 3)
    forces = set() if name in WITHOUT_FORCES else {("forces", "node", 3, "forces")}
    known = {(label.name, label.level, label.dim, label.key) for label in found.labels}
    assert known == {("energy", "graph", 1, "energy")} | forces
    assert found.skipped == ["README.md"]


def test_a_store_keeps_its_splits(tmp_path):
    energy = {"energy": np.ones(1)}
    graphs = [atoms_to_graph(atoms, 4.0, None, i, energy) for i, atoms in enumerate(frames(5))]
    splits = {"trainset": graphs[:3], "valset": graphs[3:4], "testset": graphs[4:]}
    targets = {"energy": Target(level="graph", dim=1, unit="eV")}
    write_store(tmp_path / "some.gs", splits, targets=targets, cutoff=4.0)
    for directory in (tmp_path, tmp_path / "some.gs"):
        found = look(directory)
        assert found.source == {"format": "hydragnn", "file": "some.gs"}
        assert found.folder == tmp_path and found.sizes == {"train": 3, "val": 1, "test": 1}
        assert found.radius == 4.0 and not found.edges_are_cut
        assert [(label.name, label.unit) for label in found.labels] == [("energy", "eV")]


@pytest.mark.parametrize(("size", "least", "most"), [(3.6, 5.0, 5.0), (0.36, 0.5, 0.8)])
def test_the_radius_fits_structures_that_lie_densely(size, least, most, tmp_path):
    structures = [bulk("Cu", cubic=True, a=size * (1 + n / 100)) * (2, 1, 1) for n in range(5)]
    for n, atoms in enumerate(structures):
        atoms.info["gap"] = n / 10
        atoms.info |= {"config_weight": 2.0} if n % 2 else {}
    write_extxyz(tmp_path / "a.xyz", structures)
    section = {**look(tmp_path).source, "targets": {"gap": "eV"}}
    assert section["weight"] == "config_weight"
    source = open_source(config(tmp_path, **section), 0)
    read = [one for chunk in source.chunks() for one in source.read(chunk)]
    assert [one.keys["loss_weight"].item() for one in read] == [1.0, 2.0, 1.0, 2.0, 1.0]
    radius = look(tmp_path).radius
    assert least <= radius <= most
    graphs = [atoms_to_graph(atoms, radius, None) for atoms in structures]
    neighbours = [graph.edge_index.shape[1] / graph.num_nodes for graph in graphs]
    assert min(neighbours) >= 12 and max(neighbours) <= 130


@pytest.mark.parametrize(
    ("names", "train", "rest"),
    [
        (["b.xyz"], "b.xyz", {}),
        (["train.xyz", "more.xyz"], "train.xyz", {}),
        (["b-2.xyz", "b-10.xyz"], "*.xyz", {}),
        (["a_train.xyz", "b_train.xyz", "valid.xyz"], "*train*.xyz", {"val": "valid.xyz"}),
        (["val.xyz", "test.xyz"], "val.xyz", {"test": "test.xyz"}),
        (["a.xyz", "Test-1.xyz", "Test-2.xyz"], "a.xyz", {"test": "*Test*.xyz"}),
        (["contest.xyz"], "contest.xyz", {}),
        (["md-pos-1.xyz", "md-frc-1.xyz"], "md-pos-1.xyz", {}),
    ],
)
def test_roles_are_in_the_names(names, train, rest, tmp_path):
    for name in names:
        write_extxyz(tmp_path / name, frames(1))
    found = look(tmp_path)
    assert found.source == {"format": "ase", "train": train, **rest}
    assert found.skipped == [name for name in names if name in ("more.xyz", "md-frc-1.xyz")]


CIF = cif(bulk("Cu")).replace('"', "'")
TABLE, OTHER = (f'{name},energy\n"{CIF}",1\n' for name in ("cif", "structure"))
XYZ = "1\ngap=1.5\nCu 0 0 0\n"


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"README.md": "nothing"}, r"holds no data \(not used: README\.md\); give a directory"),
        ({"1.cif": CIF}, r"no labels that can be learnt \(cif\); add a CSV table with a column"),
        ({"graphs.pt": ""}, r"data\.source\.format pyg, whose keys .* docs/data\.md"),
        ({"train.csv": TABLE, "test.csv": OTHER}, r"names \(cif, structure\); rename one"),
        ({"train.csv": TABLE, "a.xyz": XYZ}, "holds extxyz: 1, csv: 1; give .* of one format"),
        (
            {"a.xyz": XYZ + "1\ncopper\nCu 0 0 0\n" * 2},
            "'gap' is in 1 of 3 structures looked at; number 1 has none.* leave out",
        ),
        ({"a.xyz": "2\nPbc='F F F'\nCu 0 0 0\n"}, r"a\.xyz"),
        (
            {"1.cif": CIF, "l.csv": "file;gap\n1.cif;0,5\n"},
            "'gap' is in 0 of 1 .* comma .*semicolons may stay",
        ),
        ({"1.cif": CIF, "l.csv": "file,gap\n1.CIF,0.5\n"}, r"'1\.CIF', .* but '1\.cif' is; write"),
        ({"1.cif": CIF, "l.xlsx": "PK"}, r"l\.xlsx: a spreadsheet is not read; save it as CSV"),
        ({"a.npz": "PK"}, "format voronoi, whose keys"),
        ({"a.h5": "PK"}, r"a\.h5 cannot be read"),
        (
            {"a.xyz": XYZ.replace("gap", 'config_weight="1 2" gap')},
            r"number 0 of .* the weight \[1 2\], which is no .*; correct config_weight",
        ),
        ({"type.raw": "0"}, r"type_map\.raw is missing; write the elements"),
        (
            {"1.cif": CIF, "l.csv": "file,gap\n1.cif,1\n3.cif,2\n4.cif,2\n"},
            r"names '3\.cif', '4\.cif', not there as files, .*rows",
        ),
        ({"1.xyz": "1\n\nCu 0 0 0\n", "l.csv": "a,b\n1.XYZ,2\n"}, r"not used: l\.csv \(column 'a'"),
        (
            {"a.xyz": XYZ.replace("gap", "length_unit=bohr gap")},
            "'length_unit' says 'bohr'",
        ),
        (
            {"a.xyz": "".join(XYZ.replace("gap", f"energy-unit={u} energy") for u in ("eV", "Ha"))},
            "'energy-unit' is 'eV' in some structures and 'Ha' in others",
        ),
    ],
)
def test_what_cannot_be_told_is_said_in_a_sentence(files, says, tmp_path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=says) as refused:
        look(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("names", "source"),
    [
        (["run-1/a.xyz", "run-2/a.xyz"], {"train": "*/a.xyz"}),
        (["a/run-1/x.xyz", "run-2/y.xyz"], {"train": "**/*.xyz"}),
        (["run [1]/a.xyz", "run [1]/b.xyz"], {"train": "run [[]1]/*.xyz"}),
        (["train/1.xyz", "train/2.xyz", "Val/3.xyz"], {"train": "train/*.xyz", "val": "Val/3.xyz"}),
        (["s/train/1/a.xyz", "s/train/2/b.xyz"], {"train": "s/train/*/*.xyz"}),
        (["a.xyz", "old/b.xyz"], {"train": "a.xyz"}),
    ],
)
def test_files_in_folders_of_runs_or_splits_are_found(names, source, tmp_path):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_extxyz(tmp_path / name, frames(1))
        (tmp_path / name).with_name("slurm-1.out").write_text("srun: queued\n")
    assert look(tmp_path).source == {"format": "ase", **source}


def test_logs_inputs_and_second_copies_of_a_calculation_are_no_data(tmp_path):
    for run in ("1", "2"):
        (tmp_path / run).mkdir()
        write_vasprun(tmp_path / run / "vasprun.xml", frames(1))
        write(tmp_path / run / "POSCAR", bulk("Cu"), format="vasp")
        for name in ("OUTCAR", "INCAR", "vasp.out", "weights.h5"):
            (tmp_path / run / name).write_text("running on 4 cores\n")
    found = look(tmp_path)
    assert found.source == {"format": "ase", "train": "*/vasprun.xml"} and found.sizes == {
        "train": 2
    }
    assert set(found.skipped) == {
        f"{n} (2)" for n in ("POSCAR", "OUTCAR", "INCAR", "vasp.out", "weights.h5")
    }


def test_structures_that_a_table_names_are_no_second_format(tmp_path):
    write_path_table(tmp_path / "labels.csv", frames(4))
    write(tmp_path / "unlabelled.cif", bulk("Cu"))
    found = look(tmp_path)
    assert found.source == {"format": "csv", "train": "labels.csv", "structure": "cif"}
    assert found.sizes == {"train": 4}


def test_all_files_that_are_met_and_cannot_be_read_are_named(tmp_path):
    for number, atoms in enumerate(frames(20)):
        (tmp_path / f"{number}.cif").write_text("damaged" if number > 7 else cif(atoms))
    write_table(tmp_path / "a.csv", ["name", "gap"], [[f"{n}.cif", n * 0.1] for n in range(20)])
    with pytest.raises(
        InputError, match=r"12 structures .*/8\.cif, .*/17\.cif and 2 more; the"
    ) as e:
        look(tmp_path)
    assert str(e.value).endswith(f"with its row ({tmp_path}/a.csv: structure 8)")


def test_what_is_no_label():
    """Counters, names, what some structures lack, NaN; other shapes in other structures."""
    values = [
        {
            "number_of_it": str(i),
            "material_id": "7",
            "config_type": "slab",
            "valid": True,
            "gap (eV)": str(i / 7),
            "some": None if i == 2 else 1.0,
            "rare": None if i else 1.0,
            "strange": "nan" if i == 1 else "1",
            "shapes": [1.0] * (i % 3 + 1),
            "mag": [[0.1], [0.2], [0.3], [0.4]],
            "index_1": 2.5,
            "E [eV/atom]": "1e-3",
        }
        for i in range(4)
    ]
    labels, unusable = find_labels([Found(bulk("Cu", cubic=True), one) for one in values])
    found = [f"{label.name} {label.level} {label.unit}" for label in labels]
    wanted = ["gap graph eV", "some graph ", "strange graph ", "mag node "]
    assert found == [*wanted, "target__1 graph ", "E graph eV/atom"]
    assert [one.lacking[:9] for one in labels] == ["", "in 3 of 4", "in 3 of 4", "", "", ""]
    assert {key: why[:10] for key, why in unusable.items()} == {"rare": "in 1 of 4 "}


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        ("mp number", [1007, 1003, 1044, 1021]),
        ("spaceGroup number", [225, 225, 194, 12]),
        ("Space Group", [225.0, 225.0, 194.0, 12.0]),
        ("i", [3, 7, 9, 4]),
        ("md_step", [10, 20, 30, 40]),
        ("frames of two files", [5, 6, 7, 0, 1, 2, 3]),
        ("config_weight", [0.1, 1.0, 0.3, 2.0]),
        ("time", [0.0, 0.5, 1.0, 1.5]),
    ],
)
def test_counters_and_identifiers_are_no_labels(keys, values):
    assert find_labels([Found(bulk("Cu"), {keys: value}) for value in values]) == ([], {})


@pytest.mark.parametrize(
    ("key", "values", "classes"),
    [
        ("metal", [True, False, True, True], ("false", "true")),
        ("metal", ["1.0", "0.0", "1.0", "0.0"], ("0", "1")),
        ("is stable", ["Yes", "No", "Yes", "No"], ("no", "yes")),
        ("phase", ["hcp", "fcc", "fcc", "hcp"], ("fcc", "hcp")),
        ("phase", ["hcp", "fcc", "fcc", "bcc"], None),
        ("phase", ["fcc", "fcc", "hcp", None], None),
        ("formula", ["CuAu", "CuAg", "CuAg", "CuAu"], None),
        ("metal", [0, 2, 2, 0], ()),
        ("metal", [0, None, 1, "n/a"], ("0", "1")),
        ("metal", [None, False, True], ("false", "true")),
        ("metal", [0, None, 1, None, None], None),
    ],
)
def test_few_words_and_flags_are_classes(key, values, classes):
    labels, _ = find_labels([Found(bulk("Cu"), {key: value}) for value in values])
    assert [label.classes for label in labels] == ([] if classes is None else [classes])
    assert all(bool(label.lacking) == (None in values) for label in labels)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"energy": "0.59D+00"}, "in 0 of 2 .* Fortran's exponent .write e"),
        ({"gap": "0,59"}, "in 0 of 2 .* a decimal comma .write a point"),
        ({"energy": [0, 597]}, "2 for each structure, not one number of the"),
        ({"REF_forces": [1.0, 2.0]}, "2 for each structure, not three numbers of"),
        ({"energy": float("nan")}, "in 0 of 2 .* NaN"),
    ],
)
def test_why_a_wanted_label_cannot_be_learnt(values, says):
    labels, unusable = find_labels([Found(bulk("Cu"), values)] * 2)
    assert not labels and re.search(says, unusable[min(values)])


@pytest.mark.parametrize(
    ("said", "units"),
    [
        ({}, ["eV", "eV/Å"]),
        ({"energy-unit": "hartree"}, ["hartree", ""]),
        ({"energy_unit": "eV"}, ["eV", "eV/Å"]),
        ({"units": {"energy": "Ry", "forces": "Ry/bohr"}}, ["Ry", "Ry/bohr"]),
        ({"units": "Ha"}, ["", ""]),
        ({"forceUnits": "eV/Å", "unit_cell": "primitive"}, ["eV", "eV/Å"]),
    ],
)
def test_the_units_of_a_file_are_those_it_names(said, units):
    one = Found(bulk("Cu"), {"energy": 1.5, "forces": [[1.0, 2.0, 3.0]], **said})
    assert [label.unit for label in find_labels([one])[0]] == units


@given(st.text(min_size=1))
def test_every_label_gets_a_name_that_a_target_may_have(key):
    for label in find_labels([Found(bulk("Cu"), {key: 1.5})])[0]:
        assert label.key == key
        good_names({label.name: TargetConfig(unit=label.unit)})
