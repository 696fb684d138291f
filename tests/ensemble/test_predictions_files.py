"""Tables and files of predictions: columns, units, formats; whole, and the same on every path."""

import os
import signal
import weakref
from io import StringIO
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pandas as pd
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from ase.spacegroup import crystal as in_spacegroup
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.data.sources.ase_files import each_structure
from hydragnn_flow.ensemble.predictions import member_predictions, structure_files
from hydragnn_flow.ensemble.predictions.files import PredictionFiles, write_predictions
from hydragnn_flow.ensemble.predictions.table import Chunk, Predictions, extended_xyz
from hydragnn_flow.errors import InputError


def crystal(seed, **said):
    atoms = bulk("Cu", cubic=True) if seed % 2 else bulk("Au")
    atoms.rattle(0.1, seed=seed)
    atoms.info |= said
    return atoms


def small_chunks(monkeypatch, size):
    monkeypatch.setattr(member_predictions, "CHUNK", size)


STRANGE = Atoms("Al"), Atoms(), Atoms("Cu2", [[0, 0, 0], [0, 0, np.nan]])


@settings(max_examples=4)
@given(st.lists(st.integers(-3, 5), min_size=1, max_size=7), st.integers(1, 4), st.booleans())
def test_order_ids_and_numbers_survive_all_paths(ensemble, tmp_path_factory, kinds, size, labelled):
    """A list, a file, a directory, and each format written, with structures of every kind."""
    folder = tmp_path_factory.mktemp("paths")
    structures = []
    for number, kind in enumerate(kinds):
        atoms = crystal(kind) if kind >= 0 else STRANGE[kind].copy()
        atoms.info["id"] = f"s-{number}"
        if labelled and kind > 2:
            atoms.info["energy"] = float(kind)
        structures.append(atoms)
    ase.io.write(folder / "all.traj", structures)
    several = folder / "several"
    several.mkdir()
    for number, atoms in enumerate(structures):
        ase.io.write(several / f"s-{number}.traj", atoms)
    with pytest.MonkeyPatch.context() as patch:
        small_chunks(patch, size)
        expected = ensemble.predict(structures, members=True)
        others = [ensemble.predict(path, members=True) for path in (folder / "all.traj", several)]
        outs = [folder / "out.csv", folder / "out.parquet", folder / "out.extxyz"]
        done = write_predictions(ensemble, several, outs, members=True)
    assert [path.name for path in done.files] == [
        *("out.csv", "out_nodes.csv", "out.parquet", "out_nodes.parquet", "out.extxyz")
    ]
    assert (done.structures, done.without) == (len(kinds), sum(kind < 0 for kind in kinds))
    graphs = expected.graphs
    assert graphs["id"].tolist() == [f"s-{number}" for number in range(len(kinds))]
    assert ("energy_error" in graphs) == (labelled and max(kinds) > 2)
    for found in others:
        for one, other in ((graphs, found.graphs), (expected.nodes, found.nodes)):
            pd.testing.assert_frame_equal(one, other.drop(columns=["file", "frame"]))
    written = others[1]
    for name, table in (("out", written.graphs), ("out_nodes", written.nodes)):
        stored = pd.read_parquet(folder / f"{name}.parquet")
        pd.testing.assert_frame_equal(stored, table, check_dtype=False)
        assert stored.attrs == table.attrs
        read = pd.read_csv(folder / f"{name}.csv")
        assert list(read) == list(table)
        numbers = table.select_dtypes("number").columns
        np.testing.assert_array_equal(read[numbers], table[numbers])
    frames = ase.io.read(folder / "out.extxyz", ":")
    for name in ("id", "file", "frame"):
        assert [atoms.info[name] for atoms in frames] == written.graphs[name].tolist()
    for atoms, structure, energy in zip(frames, structures, graphs["energy_mean"], strict=True):
        assert atoms.numbers.tolist() == structure.numbers.tolist()
        np.testing.assert_allclose(atoms.info["energy_mean"], energy, rtol=1e-8)
        assert atoms.arrays["forces_mean"].shape == (len(atoms), 3)


def chunks(ensemble, then=lambda: None):
    """Predictions of a structure, after which something may happen."""
    yield Chunk(ensemble.predict(crystal(1)), [crystal(1)])
    then()


def test_a_failure_leaves_what_was_there(tmp_path, ensemble):
    out, xyz = tmp_path / "out.csv", tmp_path / "out.extxyz"
    out.write_text("old")
    with pytest.raises(ZeroDivisionError), PredictionFiles([out, xyz]) as files:
        files.fill(chunks(ensemble, lambda: 1 / 0))
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]
    assert out.read_text() == "old"


def test_what_a_killed_process_left_is_cleared_by_the_next(tmp_path, ensemble):
    outs = [tmp_path / "out.csv", tmp_path / "out.extxyz"]
    killed = os.fork()
    if not killed:
        try:
            with PredictionFiles(outs) as files:
                files.fill(chunks(ensemble, lambda: os.kill(os.getpid(), signal.SIGKILL)))
        finally:
            os._exit(1)
    os.waitpid(killed, 0)
    left = {path.name: sum(1 for _ in path.iterdir()) for path in tmp_path.iterdir()}
    assert left == {".out.csv.writing": 4, ".out.extxyz.writing": 1}
    with PredictionFiles(outs) as files:
        with (
            pytest.raises(InputError, match=r"out\.csv: another process is writing it"),
            PredictionFiles(outs[:1]),
        ):
            raise AssertionError("two write the same file")
        files.fill(chunks(ensemble))
    written = ["out.csv", "out.extxyz", "out_nodes.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == written
    assert len(pd.read_csv(outs[0])) == len(ase.io.read(outs[1], ":")) == 1


@pytest.mark.parametrize(
    ("outs", "says"),
    [
        (["out.txt"], r"out\.txt: must end in \.csv or"),
        (["none/out.csv"], r"none/out\.csv: there is no directory"),
        (["x.csv", "x_nodes.csv"], r"x_nodes\.csv: .*the table of atoms beside another"),
        (["x_nodes.csv", "x.csv"], r"x_nodes\.csv: .*the table of atoms beside another"),
        (["a.extxyz"], r"a\.extxyz: holds the structures"),
        (["same.extxyz"], r"same\.extxyz: holds the structures"),
        (["b.csv"], r"b_nodes\.csv: holds the structures"),
    ],
)
def test_files_that_cannot_be_written_are_refused(tmp_path, ensemble, outs, says):
    """Structures are not replaced by what is computed for them, nor one table by another."""
    file = tmp_path / "a.extxyz"
    ase.io.write(file, crystal(1))
    for name in ("same.extxyz", "b_nodes.csv"):
        (tmp_path / name).symlink_to(file)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match=says):
        write_predictions(ensemble, file, [tmp_path / out for out in outs])
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_is_written_in_the_directory_of_the_input_is_not_read(tmp_path, ensemble, monkeypatch):
    ase.io.write(tmp_path / "a.xyz", crystal(1))
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    outs = [Path("predicted.extxyz"), Path("predicted.csv")]
    for _ in range(2):
        assert write_predictions(ensemble, ".", outs, say=said.append).structures == 1
    (line,) = said
    assert line.endswith(": predicted.csv, predicted.extxyz, predicted_nodes.csv")


def test_structures_are_let_go_once_they_are_written(tmp_path, ensemble, monkeypatch):
    """Memory does not grow with their number."""
    small_chunks(monkeypatch, 4)
    ase.io.write(tmp_path / "many.extxyz", [crystal(seed) for seed in range(20)])
    seen: dict[str, list[weakref.ref[Any]]] = {"structures": [], "tables": []}
    most = dict.fromkeys(seen, 0)

    def watched(file, *piece):
        for found in each_structure(file, *piece):
            seen["structures"].append(weakref.ref(found.atoms))
            yield found

    def by_name(tables):
        seen["tables"].append(weakref.ref(tables.graphs))
        for what, things in seen.items():
            most[what] = max(most[what], sum(thing() is not None for thing in things))
        return of_tables(tables)

    of_tables = Predictions.by_name
    monkeypatch.setattr(Predictions, "by_name", by_name)
    monkeypatch.setattr(structure_files, "each_structure", watched)
    outs = [tmp_path / "out.csv", tmp_path / "out.extxyz"]
    write_predictions(ensemble, tmp_path / "many.extxyz", outs)
    assert {what: len(things) for what, things in seen.items()} == {"structures": 20, "tables": 5}
    assert most["structures"] <= 2 * 4 + 1 and most["tables"] <= 2
    assert len(pd.read_csv(outs[0])) == 20


def test_a_store_is_written_as_it_is_predicted(tmp_path, ensemble, alloy_store, monkeypatch):
    whole = ensemble.predict(alloy_store)
    small_chunks(monkeypatch, 4)
    write_predictions(ensemble, alloy_store, [tmp_path / "out.parquet"])
    stored = pd.read_parquet(tmp_path / "out.parquet")
    pd.testing.assert_frame_equal(stored, whole.graphs, check_dtype=False, rtol=1e-5)
    with pytest.raises(InputError, match="extxyz is for structures from files"):
        write_predictions(ensemble, alloy_store, [tmp_path / "out.extxyz"])


def test_columns_are_those_of_the_contract(ensemble, alloy_store):
    """And mean, spread and error are those of the members' columns."""
    found, w = ensemble.predict(alloy_store, split="testset", members=True), ensemble.weights
    parts = [f"_{part}" for part in ("mean", "std", "spread", "epistemic_std", "lo", "hi")]
    of_members = [f"_member_{k}" for k in range(len(w))]
    forces = [f"forces_{axis}" for axis in "xyz"]
    for table, targets, unit in ((found.graphs, ["energy"], "eV"), (found.nodes, forces, "eV/Å")):
        columns = [t + part for t in targets for part in ("", "_error", *parts, *of_members)]
        assert list(table)[-len(columns) :] == columns
        units = dict.fromkeys(columns, unit)
        assert (table.attrs["coverage"], table.attrs["units"]) == (0.8, units)
        for t in targets:
            members = table[[t + suffix for suffix in of_members]].to_numpy()
            mean, error = table[f"{t}_mean"].to_numpy(), table[f"{t}_mean"] - table[t]
            np.testing.assert_allclose(mean, members @ w)
            np.testing.assert_allclose(table[f"{t}_error"], error)
            variance = (members - mean[:, None]) ** 2 @ np.cbrt(w) / np.cbrt(w).sum()
            spread = np.sqrt(variance * len(w) / (len(w) - 1))
            np.testing.assert_allclose(table[f"{t}_spread"], spread, rtol=1e-6)
    assert list(found.graphs)[:3] == ["graph_id", "note", "flagged"]
    assert list(found.nodes)[:2] == ["graph_id", "node_index"]
    unlabelled = ensemble.predict(crystal(1)).graphs
    assert [name for name in unlabelled if "energy" in name] == [f"energy{part}" for part in parts]


KEPT: dict[str, Any] = {
    "counts": np.arange(3),
    "vectors": np.eye(3),
    "flags": np.array([True, False, True]),
    "words": np.array(["CA", "N", "O2'"]),
}
LEFT_OUT: dict[str, Any] = {
    "blank": np.array(["a", "b c", "d"]),
    "empty": np.array(["", "b", "c"]),
    "objects": np.array(["a b", 1, None], dtype=object),
    "tensors": np.zeros((3, 3, 3)),
    "complex": np.ones(3, complex),
}


def back(*structures):
    return ase.io.read(StringIO(extended_xyz(structures)), ":", format="extxyz")


def test_columns_come_back_or_are_left_out():
    atoms = Atoms("Cu3", np.arange(9.0).reshape(3, 3))
    atoms.arrays |= KEPT | LEFT_OUT
    for found in back(atoms, atoms):
        assert found.arrays.keys() == {"numbers", "positions", *KEPT}
        for name in ("positions", *KEPT):
            np.testing.assert_array_equal(found.arrays[name], atoms.arrays[name])
    assert atoms.arrays.keys() >= LEFT_OUT.keys(), "the structure stays as it was"


def test_remarks_of_several_lines_are_one():
    atoms = Atoms("Cu", info={"remark": "2\nCu 1 1 1\r\nmore", "n": 3})
    [one, _] = back(atoms, atoms)
    assert one.info == {"remark": "2 Cu 1 1 1 more", "n": 3}
    assert len(one) == 1 and atoms.info["remark"].count("\n") == 2


def test_results_and_crystals_come_back():
    atoms = in_spacegroup("Cu", [(0, 0, 0)], spacegroup=225, cellpar=[3.6] * 3 + [90] * 3)
    atoms.calc = SinglePointCalculator(atoms, energy=1.5, forces=np.ones((4, 3)))
    [found] = back(atoms)
    assert found.get_potential_energy() == 1.5
    np.testing.assert_array_equal(found.get_forces(), 1)
