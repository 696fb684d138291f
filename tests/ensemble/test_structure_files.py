"""Predictions for files and directories of structures: order, names, and what is skipped."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.db import connect
from ase.io import write

from hydragnn_flow.data.sources.file_names import find_files
from hydragnn_flow.errors import InputError


def crystal(seed):
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.1, seed=seed)
    atoms.symbols[0] = "Au"
    return atoms


@pytest.fixture
def folder(tmp_path):
    """Three CIFs, a file of two structures, and what else lies about in such a directory."""
    folder = tmp_path / "new"
    folder.mkdir()
    for number in (10, 2, 1):
        write(folder / f"run-{number}.cif", crystal(number))
    write(folder / "several.xyz", [bulk("Cu"), bulk("Au")])
    (folder / "labels.csv").write_text("file,gap\nrun-1.cif,0.1\n")
    (folder / "atom_init.json").write_text('{"1": [0, 1], "2": [1, 0]}')  # CGCNN's
    (folder / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    (folder / "._run-1.cif").write_bytes(b"\0\5\26\7")
    (folder / "truncated.cif").write_text("data_x\n_cell_length_a 3\nloop_\n_atom_site_label\n")
    half = (folder / "run-1.cif").read_text().replace("1.0000", "0.5000")
    (folder / "disordered.cif").write_text(half)
    (folder / "subfolder").mkdir()
    return folder


FILES = ["disordered.cif", "run-1.cif", "run-2.cif", "run-10.cif", "several.xyz", "several.xyz"]
FRAMES = [0, 0, 0, 0, 0, 1]
FORMULAS = ["AuCu3", "AuCu3", "AuCu3", "AuCu3", "Cu", "Au"]


def test_a_directory_is_predicted_in_the_order_of_training(ensemble, folder):
    said: list[str] = []
    tables = ensemble.predict(folder, members=True, say=said.append)
    graphs, nodes = tables.graphs, tables.nodes
    assert list(graphs)[:5] == ["graph_id", "file", "frame", "formula", "note"]
    found = graphs[["graph_id", "file", "frame", "formula"]].to_numpy().tolist()
    assert found == [*map(list, zip(range(6), FILES, FRAMES, FORMULAS, strict=True))]
    in_training = [file.name for file in find_files(".", folder, "data.source.train")]
    assert list(dict.fromkeys(FILES)) == [name for name in in_training if name in FILES]
    assert list(nodes)[:5] == ["graph_id", "file", "frame", "formula", "node_index"]
    assert nodes["file"].tolist() == np.repeat(FILES, [4, 4, 4, 4, 1, 1]).tolist()
    listed = ensemble.predict([crystal(1), crystal(2), crystal(10), bulk("Cu"), bulk("Au")]).graphs
    np.testing.assert_allclose(graphs["energy_mean"][1:], listed["energy_mean"], rtol=1e-4)
    # Files that are passed over are named, but not all of many.
    assert said[:2] == [
        "skipped (not structure files): .DS_Store, ._run-1.cif, atom_init.json, labels.csv",
        "skipped (1 file that cannot be read):",
    ]
    assert "truncated.cif holds no structures" in said[2] and len(said) == 3
    for number in range(25):
        (folder / f"bad-{number}.cif").write_text("data_x\n")
    ensemble.predict(folder, say=said.append)
    assert said[4] == "skipped (26 files that cannot be read):"
    assert "bad-19.cif" in said[-2] and said[-1] == "and 6 more"


def test_a_directory_with_nothing_to_predict_is_refused(ensemble, folder):
    for file in folder.glob("*.*f*"):
        if not file.name.startswith((".", "trunc")):
            file.unlink()
    (folder / "several.xyz").unlink()
    said: list[str] = []
    with pytest.raises(InputError, match=r"new: holds no file of .*labels\.csv; .*truncated\.cif"):
        ensemble.predict(folder, say=said.append)
    with pytest.raises(InputError, match=r"subfolder: holds no file of structures .*no files"):
        ensemble.predict(folder / "subfolder", say=said.append)
    assert said == []


def test_structures_that_cannot_be_predicted_keep_their_rows(ensemble, folder):
    """One of thousands is no reason to predict none, and not to be forgotten either."""
    write(folder / "run-3.cif", bulk("Al", cubic=True))
    write(folder / "twice.xyz", crystal(0) + Atoms("Cu", [crystal(0).positions[1]]))
    write(folder / "others.xyz", [bulk("Cu"), bulk("Al")])
    (folder / "nowhere.cif").symlink_to(folder / "missing.cif")
    (folder / "other.cif").write_bytes(bytes(range(256)))
    said: list[str] = []
    graphs = ensemble.predict(folder, say=said.append).graphs
    assert "nowhere.cif" in said[0]
    assert said[1] == "skipped (2 files that cannot be read):"
    assert "other.cif cannot be read (its content is of another format)" in said[2]
    notes = {(row.file, row.frame): row.note for row in graphs.itertuples() if row.note}
    expected = {
        ("run-3.cif", 0): "has Al, which",
        ("twice.xyz", 0): "has the atoms 1 and 4 at one place",
        ("others.xyz", 1): "has Al",
        ("disordered.cif", 0): "site 0 holds Au 0.5",
    }
    assert notes.keys() == expected.keys()
    assert all(notes[place].startswith(says) for place, says in expected.items())
    assert graphs["energy_mean"].isna().sum() == 4
    assert (graphs["flagged"] == (graphs["note"] != "")).all()


def test_a_file_that_breaks_off_keeps_what_came_before_in_a_directory_alone(ensemble, folder):
    whole = (folder / "several.xyz").read_text()
    (folder / "torn.xyz").write_text(f"{whole}5\n\nCu 0 0 0\n")
    said: list[str] = []
    graphs = ensemble.predict(folder, say=said.append).graphs
    assert graphs["file"].tolist() == [*FILES, "torn.xyz", "torn.xyz"]
    assert "torn.xyz: structure 2 cannot be read: the file ends" in said[-2]
    for name, says in (("torn.xyz", "structure 2 cannot be read"), ("labels.csv", "no format")):
        with pytest.raises(InputError, match=f"{name}.* {says}"):
            ensemble.predict(folder / name)


def test_a_database_keeps_its_ids(ensemble, tmp_path):
    with connect(tmp_path / "some.db") as database:
        for seed in range(3):
            database.write(crystal(seed))
        del database[2]
    graphs = ensemble.predict(tmp_path / "some.db").graphs
    assert graphs["id"].tolist() == ["1", "3"] and graphs["frame"].tolist() == [0, 1]
