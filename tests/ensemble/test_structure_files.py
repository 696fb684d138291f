"""Predictions for files and directories of structures: order, names, and what is skipped."""

import numpy as np
import pandas as pd
import pytest
from ase import Atoms
from ase.build import bulk
from ase.db import connect
from ase.io import write

from hydragnn_flow import cli
from hydragnn_flow.data.sources.ase_files import said_of
from hydragnn_flow.data.sources.file_names import find_files
from hydragnn_flow.ensemble.predictions.member_predictions import predict_all
from hydragnn_flow.ensemble.predictions.structure_files import Record
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
    assert list(tables.graphs)[:5] == ["graph_id", "file", "frame", "formula", "note"]
    assert tables.graphs["graph_id"].tolist() == list(range(6))
    assert tables.graphs["frame"].tolist() == FRAMES
    assert tables.graphs["file"].tolist() == FILES
    assert tables.graphs["formula"].tolist() == FORMULAS
    in_training = [file.name for file in find_files(".", folder, "data.source.train")]
    assert list(dict.fromkeys(FILES)) == [name for name in in_training if name in FILES]
    assert list(tables.nodes)[:5] == ["graph_id", "file", "frame", "formula", "node_index"]
    assert tables.nodes["file"].tolist() == np.repeat(FILES, [4, 4, 4, 4, 1, 1]).tolist()
    # The same numbers, by the same columns, as those of a list in Python.
    structures = [crystal(1), crystal(2), crystal(10), bulk("Cu"), bulk("Au")]
    listed = ensemble.predict(structures, members=True).graphs
    assert list(listed) == [name for name in tables.graphs if name not in ("file", "frame")]
    assert listed["formula"].tolist() == FORMULAS[1:]
    for name in list(listed)[3:]:
        np.testing.assert_allclose(tables.graphs[name][1:], listed[name], rtol=1e-4, atol=1e-5)


def test_files_that_are_passed_over_are_named(ensemble, folder):
    """Not all of many."""
    said: list[str] = []
    ensemble.predict(folder, say=said.append)
    assert said[:2] == [
        "skipped (not structure files): .DS_Store, ._run-1.cif, labels.csv",
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
    assert notes[("run-3.cif", 0)].startswith("has Al, which the training data do not have")
    assert notes[("twice.xyz", 0)].startswith("has the atoms 1 and 4 at one place")
    assert notes[("others.xyz", 1)].startswith("has Al")
    assert notes[("disordered.cif", 0)].startswith("site 0 holds Au 0.5")
    assert graphs["energy_mean"].isna().sum() == 4
    assert len(notes) == 4 and ("others.xyz", 0) not in notes
    assert (graphs["flagged"] == (graphs["note"] != "")).all()


def test_a_file_that_breaks_off_keeps_what_came_before_in_a_directory_alone(ensemble, folder):
    whole = (folder / "several.xyz").read_text()
    (folder / "torn.xyz").write_text(f"{whole}5\n\nCu 0 0 0\n")
    said: list[str] = []
    graphs = ensemble.predict(folder, say=said.append).graphs
    assert graphs["file"].tolist() == [*FILES, "torn.xyz", "torn.xyz"]
    assert "torn.xyz: structure 2 cannot be read: the file ends" in said[-2]
    with pytest.raises(InputError, match=r"torn\.xyz: structure 2 cannot be read"):
        ensemble.predict(folder / "torn.xyz")


def test_errors_name_the_file(ensemble, folder):
    with pytest.raises(InputError, match=r"labels\.csv is of no format ASE knows"):
        ensemble.predict(folder / "labels.csv")
    records = dict.fromkeys("ab", Record(said_of(bulk("Al"))))
    with pytest.raises(InputError, match=r"^a: has Al, .* \(and 1 more are refused\)"):
        predict_all(ensemble, records)


def test_a_database_keeps_its_ids(ensemble, tmp_path):
    with connect(tmp_path / "some.db") as database:
        for seed in range(3):
            database.write(crystal(seed))
        del database[2]
    graphs = ensemble.predict(tmp_path / "some.db").graphs
    assert graphs["id"].tolist() == ["1", "3"] and graphs["frame"].tolist() == [0, 1]


def test_the_command_writes_the_columns_and_says_what_it_skipped(
    run, folder, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out.csv"
    words = ["hydragnn-flow", "predict", str(run), str(folder), "-o", str(out)]
    words += ["-o", str(out.with_suffix(".extxyz"))]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr().out
    assert end.value.code == 0, said
    assert "labels.csv" in said and "truncated.cif holds no structures" in said
    assert "1 of 6 structures have no prediction; see `note`" in said
    assert [line for line in said.splitlines() if line.startswith(str(tmp_path / "out"))] == [
        str(tmp_path / name) for name in ("out.csv", "out_nodes.csv", "out.extxyz")
    ]
    for table in (pd.read_csv(out), pd.read_csv(out.with_name("out_nodes.csv"))):
        assert list(dict.fromkeys(table["file"])) == list(dict.fromkeys(FILES))
        assert list(table)[:4] == ["graph_id", "file", "frame", "formula"]
