"""The predictions table: columns, units, order, ids, round trips."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
from calibration_cases import plain

from hydragnn_flow.data import Target
from hydragnn_flow.ensemble.predictions.table import TargetValues, build_tables
from hydragnn_flow.ensemble.uncertainty.distribution import distribution

ENERGY = {"energy": Target(level="graph", dim=1, unit="eV")}
FORCES = {"forces": Target(level="node", dim=3, unit="eV/Å")}
PARTS = ("mean", "std", "spread", "epistemic_std", "lo", "hi")
OWN = ("graph_id", "node_index", "note", "flagged")
PAGE = Path(__file__).parents[2] / "docs" / "run-directory.md"


def tables(ids, n_atoms, targets=(ENERGY | FORCES), labelled=True, members=False, **origins):
    """Tables of random predictions of three members."""
    rng = np.random.default_rng(len(ids))
    rows, values = {"graph": len(ids), "node": sum(n_atoms)}, {}
    for name, target in targets.items():
        found = rng.normal(size=(3, rows[target.level], target.dim))
        predicted = distribution(found, np.full(3, 1 / 3), plain(1.2, 0.1, 1.7), coverage=0.9)
        labels = found[0] + 1 if labelled else None
        wanted = dict(enumerate(found)) if members else {}
        values[name] = TargetValues(target, predicted, labels, wanted)
    about, n = {**origins, "graph_id": np.array(ids, np.int64)}, np.array(n_atoms, np.int64)
    return build_tables(about, n, values, 0.9, [""] * len(ids), np.zeros(len(ids), bool))


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
    plain_tables = tables([0], [2], labelled=False)
    assert list(plain_tables.graphs) == [*OWN[:1], *OWN[2:], *(f"energy_{part}" for part in PARTS)]
    told = re.findall(r"`(t_?\w*)(?:<k>)?`", PAGE.read_text(encoding="utf-8"))
    assert {f"t{suffix}".rstrip("012") for suffix in suffixes} | {"t_aleatoric_std"} <= {*told}


def test_a_level_without_targets_has_no_table():
    assert tables([0], [2], ENERGY).nodes is None
    only = tables([0], [2], FORCES)
    assert list(only.graphs) == ["graph_id", "note", "flagged"] and only.nodes is not None


def test_every_file_holds_the_table_and_parquet_its_units(tmp_path):
    found = tables([7, 3, 5], [1, 4, 2], members=True)
    written = found.save(tmp_path / "test")
    assert sorted(path.name for path in written) == sorted(path.name for path in tmp_path.iterdir())
    for name, table in found.by_name().items():
        stored = pd.read_parquet(tmp_path / f"test{name}.parquet")
        pd.testing.assert_frame_equal(stored, table)
        assert stored.attrs == table.attrs and stored.attrs["coverage"] == 0.9
        assert stored.attrs["units"] == {
            column: "eV" if column.startswith("energy") else "eV/Å"
            for column in table
            if column not in OWN
        }
        read = pd.read_csv(tmp_path / f"test{name}.csv", keep_default_na=False)
        pd.testing.assert_frame_equal(read, table, check_dtype=False)


def test_saving_again_replaces(tmp_path):
    for ids in ([1, 2], [3]):
        tables(ids, [1] * len(ids)).save(tmp_path / "out.v2", (".csv",))
    assert {path.name for path in tmp_path.iterdir()} == {"out.v2.csv", "out.v2_nodes.csv"}
    assert pd.read_csv(tmp_path / "out.v2.csv")["graph_id"].tolist() == [3]
