"""The predictions table: columns, units, order, ids, round trips; and extended XYZ."""

from io import StringIO
from typing import Any

import ase.io
import numpy as np
import pandas as pd
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.spacegroup import crystal
from calibration_cases import plain

from hydragnn_flow.data import Target
from hydragnn_flow.ensemble.predictions.files import PredictionFiles
from hydragnn_flow.ensemble.predictions.table import (
    Chunk,
    TargetValues,
    build_tables,
    extended_xyz,
)
from hydragnn_flow.ensemble.uncertainty.distribution import distribution

ENERGY = {"energy": Target(level="graph", dim=1, unit="eV")}
FORCES = {"forces": Target(level="node", dim=3, unit="eV/Å")}
PARTS = ("mean", "std", "spread", "epistemic_std", "lo", "hi")
OWN = ("graph_id", "node_index", "note", "flagged")


def tables(ids, n_atoms, targets=(ENERGY | FORCES), labelled=True, members=False):
    """Tables of random predictions of three members."""
    rng = np.random.default_rng(len(ids))
    rows, values = {"graph": len(ids), "node": sum(n_atoms)}, {}
    for name, target in targets.items():
        found = rng.normal(size=(3, rows[target.level], target.dim))
        predicted = distribution(found, np.full(3, 1 / 3), plain(1.2, 0.1, 1.7), coverage=0.9)
        labels = found[0] + 1 if labelled else None
        wanted = dict(enumerate(found)) if members else {}
        values[name] = TargetValues(target, predicted, labels, wanted)
    about, n = {"graph_id": np.array(ids, np.int64)}, np.array(n_atoms, np.int64)
    judgement = {"note": [""] * len(ids), "flagged": np.zeros(len(ids), bool)}
    return build_tables(about, n, values, 0.9, judgement)


def test_columns_are_those_of_the_contract():
    found = tables([4, 2], [2, 3], members=True)
    suffixes = ["", "_error", *(f"_{part}" for part in PARTS), *(f"_member_{k}" for k in range(3))]
    energies = [f"energy{suffix}" for suffix in suffixes]
    assert list(found.graphs) == ["graph_id", "note", "flagged", *energies]
    forces = [f"forces_{axis}{suffix}" for axis in "xyz" for suffix in suffixes]
    assert list(found.nodes) == ["graph_id", "node_index", *forces]
    assert {*found.graphs[["graph_id", *energies]].dtypes.astype(str)} == {"int64", "float64"}
    for table, t in ((found.graphs, "energy"), (found.nodes, "forces_y")):
        np.testing.assert_allclose(table[f"{t}_error"], table[f"{t}_mean"] - table[t])
        of_members = table[[f"{t}_member_{k}" for k in range(3)]]
        np.testing.assert_allclose(table[f"{t}_mean"], of_members.mean(axis=1))
        np.testing.assert_allclose(table[f"{t}_spread"], of_members.std(axis=1, ddof=1))
    unlabelled = tables([0], [2], labelled=False)
    assert list(unlabelled.graphs) == [*OWN[:1], *OWN[2:], *(f"energy_{part}" for part in PARTS)]
    assert tables([0], [2], ENERGY).nodes is None
    only = tables([0], [2], FORCES)
    assert list(only.graphs) == ["graph_id", "note", "flagged"] and only.nodes is not None


def test_every_file_holds_the_table_and_parquet_its_units(tmp_path):
    found = tables([7, 3, 5], [1, 4, 2], members=True)
    for written in (tables([1, 2], [1, 1]), found):  # the second replaces the first
        with PredictionFiles([tmp_path / "v.2.parquet", tmp_path / "v.2.csv"]) as files:
            paths = files.fill([Chunk(written)]).files
    assert sorted(paths) == sorted(tmp_path.iterdir())
    for name, table in found.by_name().items():
        stored = pd.read_parquet(tmp_path / f"v.2{name}.parquet")
        pd.testing.assert_frame_equal(stored, table)
        assert stored.attrs == table.attrs and stored.attrs["coverage"] == 0.9
        assert stored.attrs["units"] == {
            column: "eV" if column.startswith("energy") else "eV/Å"
            for column in table
            if column not in OWN
        }
        read = pd.read_csv(tmp_path / f"v.2{name}.csv", keep_default_na=False)
        pd.testing.assert_frame_equal(read, table, check_dtype=False)


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
    atoms = crystal("Cu", [(0, 0, 0)], spacegroup=225, cellpar=[3.6, 3.6, 3.6, 90, 90, 90])
    atoms.calc = SinglePointCalculator(atoms, energy=1.5, forces=np.ones((4, 3)))
    [found] = back(atoms)
    assert found.get_potential_energy() == 1.5
    np.testing.assert_array_equal(found.get_forces(), 1)
