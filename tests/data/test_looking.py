"""A look at a directory finds its format, its files by role, and what could be learnt."""

import pytest
import torch
from ase.build import bulk
from ase.io import write
from hypothesis import given
from hypothesis import strategies as st
from source_cases import FORMATS, WITHOUT_FORCES, cif, frames, write_extxyz, write_path_table

from hydragnn_flow.config.sources import TargetConfig, good_names
from hydragnn_flow.data import atoms_to_graph, write_store
from hydragnn_flow.data.looking import find_labels, look
from hydragnn_flow.data.sources.structures import Found
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.errors import InputError


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_known(name, tmp_path):
    section, extension, write_file = FORMATS[name]
    (tmp_path / "README.md").write_text("who made these\n")
    (tmp_path / ".hidden").write_text("")
    write_file(tmp_path / f"my_training.{extension}", frames(7))
    write_file(tmp_path / f"my_test.{extension}", frames(3, seed=1))
    found = look(tmp_path)
    files = {"train": f"my_training.{extension}", "test": f"my_test.{extension}"}
    assert found.source == section | files
    assert found.sizes == {"train": 7, "test": 3} and found.looked_at == 7
    assert set(found.elements) == {"Cu", "Ni", "Au"} and found.atoms == (1, 13 / 7, 3)
    known = {label.name: (label.level, label.dim, label.key) for label in found.labels}
    assert known.pop("energy") == ("graph", 1, "energy")
    if name not in WITHOUT_FORCES:
        assert known.pop("forces") == ("node", 3, "forces")
    assert not known
    assert found.skipped == ["README.md"]


def test_a_store_keeps_its_splits(tmp_path):
    graphs = [
        atoms_to_graph(atoms, 4.0, None, i, {"energy": torch.ones(1).numpy()})
        for i, atoms in enumerate(frames(5))
    ]
    splits = {"trainset": graphs[:3], "valset": graphs[3:4], "testset": graphs[4:]}
    targets = {"energy": Target(level="graph", dim=1, unit="eV")}
    write_store(tmp_path / "some.gs", splits, targets=targets, cutoff=4.0)
    for directory in (tmp_path, tmp_path / "some.gs"):
        found = look(directory)
        assert found.source == {"format": "hydragnn", "file": "some.gs"}
        assert found.folder == tmp_path and found.sizes == {"train": 3, "val": 1, "test": 1}
        assert found.radius == 4.0 and not found.edges_are_cut
        assert [(label.name, label.unit) for label in found.labels] == [("energy", "eV")]


@pytest.mark.parametrize(
    ("size", "least", "most"), [(3.6, 5.0, 5.0), (0.36, 0.5, 0.8), (0.036, 0.05, 0.08)]
)
def test_the_radius_fits_structures_that_lie_densely(size, least, most, tmp_path):
    structures = [bulk("Cu", cubic=True, a=size * (1 + n / 100)) * (2, 1, 1) for n in range(5)]
    for n, atoms in enumerate(structures):
        atoms.info["gap"] = n / 10
    write_extxyz(tmp_path / "a.xyz", structures)
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
    ],
)
def test_roles_are_in_the_names(names, train, rest, tmp_path):
    for name in names:
        write_extxyz(tmp_path / name, frames(1))
    found = look(tmp_path)
    assert found.source == {"format": "ase", "train": train, **rest}
    assert found.skipped == [name for name in names if name == "more.xyz"]


CIF = cif(bulk("Cu")).replace('"', "'")
TABLE = f'cif,energy\n"{CIF}",1\n'
XYZ = "1\ngap=1.5\nCu 0 0 0\n"


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"README.md": "nothing"}, r"holds no data \(not used: README\.md\); give a directory"),
        (
            {"1.cif": CIF, "labels.csv": "id,gap\n1,0.5\n"},
            r"labels\.csv: column 'id' names '1', .* but '1\.cif' is; write its folder",
        ),
        ({"1.cif": CIF}, r"no labels that can be learnt \(cif\); add a CSV table with a column"),
        ({"graphs.pt": ""}, r"data\.source\.format pyg, whose keys .* docs/data\.md"),
        (
            {"train.csv": TABLE, "test.csv": TABLE.replace("cif", "structure", 1)},
            r"columns of different names \(cif, structure\); rename one",
        ),
        ({"train.csv": TABLE, "a.xyz": XYZ}, "holds extxyz: 1, csv: 1; give .* of one format"),
        (
            {"a.xyz": XYZ + "1\ncopper\nCu 0 0 0\n" + XYZ.replace("1.5", "2.5")},
            "'gap' is in 2 of 3 structures looked at; number 1 has none.* leave out",
        ),
        ({"a.xyz": "2\nPbc='F F F'\nCu 0 0 0\n"}, r"a\.xyz"),
    ],
)
def test_what_cannot_be_told_is_said_in_a_sentence(files, says, tmp_path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=says) as refused:
        look(tmp_path)
    assert "\n" not in str(refused.value)


def test_structures_that_a_table_names_are_no_second_format(tmp_path):
    write_path_table(tmp_path / "labels.csv", frames(4))
    write(tmp_path / "unlabelled.cif", bulk("Cu"))
    found = look(tmp_path)
    assert found.source == {"format": "csv", "train": "labels.csv", "structure": "cif"}
    assert found.sizes == {"train": 4}


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
            "strange": "nan" if i == 1 else "1",
            "shapes": [1.0] * (i + 1),
            "mag": [[0.1], [0.2], [0.3], [0.4]],
            "index_1": 2.5,
            "E [eV/atom]": "1e-3",
        }
        for i in range(4)
    ]
    labels, unusable = find_labels([Found(bulk("Cu", cubic=True), one) for one in values])
    found = [f"{label.name} {label.level} {label.unit}" for label in labels]
    assert found == ["gap graph eV", "mag node ", "target__1 graph ", "E graph eV/atom"]
    assert {key: why[:10] for key, why in unusable.items()} == {
        "some": "in 3 of 4 ",
        "strange": "in 3 of 4 ",
    }


@given(st.text(min_size=1))
def test_every_label_gets_a_name_that_a_target_may_have(key):
    for label in find_labels([Found(bulk("Cu"), {key: 1.5})])[0]:
        assert label.key == key
        good_names({label.name: TargetConfig(unit=label.unit)})
