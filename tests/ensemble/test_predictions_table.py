"""The predictions table: units, order, ids, round trips."""

import numpy as np
import pandas as pd
import pytest
from calibration_cases import plain
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.data import Target
from hydragnn_flow.ensemble.predictions_table import build_tables, component_names
from hydragnn_flow.ensemble.uncertainty import distribution

TARGETS = {
    "energy": Target(level="graph", dim=1, unit="eV"),
    "forces": Target(level="node", dim=3, unit="eV/Å"),
}
CALIBRATION = plain(1.2, 0.1, 1.7)
PARTS = ("mean", "std", "spread", "epistemic_std", "lo", "hi")


def predicted(members):
    return distribution(members, np.full(3, 1 / 3), CALIBRATION, None, coverage=0.9)


def tables(graph_id, n_atoms, targets=TARGETS, labelled=True, members=False):
    """Tables of random predictions of three members."""
    rng = np.random.default_rng(len(graph_id))
    rows = {"graph": len(graph_id), "node": sum(n_atoms)}
    predictions = {t: rng.normal(size=(3, rows[v.level], v.dim)) for t, v in targets.items()}
    return build_tables(
        {"graph_id": np.array(graph_id, dtype=np.int64)},
        np.array(n_atoms, dtype=np.int64),
        targets,
        {t: predicted(p) for t, p in predictions.items()},
        {t: p[0] + 1 for t, p in predictions.items()} if labelled else {},
        0.9,
        {t: dict(enumerate(p)) for t, p in predictions.items()} if members else None,
    )


def graphs_and_nodes(predictions):
    assert predictions.graphs is not None and predictions.nodes is not None
    return predictions.graphs, predictions.nodes


@settings(deadline=None)
@given(
    structures=st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 5)), min_size=1, max_size=8)
)
def test_order_and_ids_are_those_of_the_input(structures):
    ids, n_atoms = [i for i, _ in structures], [n for _, n in structures]
    graphs, nodes = graphs_and_nodes(tables(ids, n_atoms))
    assert graphs["graph_id"].tolist() == ids
    expected = [(i, node) for i, n in structures for node in range(n)]
    assert list(zip(nodes["graph_id"], nodes["node_index"], strict=True)) == expected


def test_columns_are_those_of_the_contract():
    graphs, nodes = graphs_and_nodes(tables([4, 2], [2, 3]))
    columns = ["graph_id", "note", "flagged", "energy", *(f"energy_{part}" for part in PARTS)]
    columns.insert(4, "energy_error")
    assert list(graphs) == columns
    assert list(nodes) == [
        "graph_id",
        "node_index",
        *(
            column
            for axis in "xyz"
            for part in ("", "_error", *(f"_{part}" for part in PARTS))
            for column in (f"forces_{axis}{part}",)
        ),
    ]
    np.testing.assert_allclose(graphs["energy_error"], graphs["energy_mean"] - graphs["energy"])
    assert set(graphs.drop(columns=["note", "flagged"]).dtypes.astype(str)) == {"int64", "float64"}


def test_references_and_members_appear_where_known_and_wanted():
    graphs, _ = graphs_and_nodes(tables([0], [2], labelled=False))
    assert "energy" not in graphs and "energy_mean" in graphs
    graphs, nodes = graphs_and_nodes(tables([0, 1], [2, 1], members=True))
    mean = graphs[[f"energy_member_{k}" for k in range(3)]].mean(axis=1)
    np.testing.assert_allclose(graphs["energy_mean"], mean)
    mean = nodes[[f"forces_y_member_{k}" for k in range(3)]].mean(axis=1)
    np.testing.assert_allclose(nodes["forces_y_mean"], mean)


def test_structures_of_several_splits_say_which():
    predictions = build_tables(
        {"split": ["trainset", "trainset", "testset"], "graph_id": [0, 1, 0]},
        np.array([1, 2, 1]),
        {"charge": Target(level="node", dim=1)},
        {"charge": predicted(np.zeros((3, 4, 1)))},
        {},
        0.9,
    )
    assert predictions.nodes is not None
    keys = predictions.nodes[["split", "graph_id", "node_index"]].values.tolist()
    assert keys == [["trainset", 0, 0], ["trainset", 1, 0], ["trainset", 1, 1], ["testset", 0, 0]]
    assert "split" not in predictions.nodes.attrs["units"]


def test_a_level_without_targets_has_no_table():
    only = tables([0], [2], {"energy": TARGETS["energy"]})
    assert only.graphs is not None and only.nodes is None
    only = tables([0], [2], {"forces": TARGETS["forces"]})
    assert list(only.graphs) == ["graph_id", "note", "flagged"] and only.nodes is not None


@pytest.mark.parametrize(
    ("dim", "names"), [(1, ["q"]), (3, ["q_x", "q_y", "q_z"]), (2, ["q_0", "q_1"])]
)
def test_components_have_names(dim, names):
    assert component_names("q", dim) == names


def test_every_file_holds_the_table_and_parquet_its_units(tmp_path):
    predictions = tables([7, 3, 5], [1, 4, 2], members=True)
    written = predictions.save(tmp_path / "test")
    assert sorted(path.name for path in written) == sorted(path.name for path in tmp_path.iterdir())
    for table, name in zip(graphs_and_nodes(predictions), ("test", "test_nodes"), strict=True):
        stored = pd.read_parquet(tmp_path / f"{name}.parquet")
        pd.testing.assert_frame_equal(stored, table)
        assert stored.attrs == table.attrs
        assert stored.attrs["coverage"] == 0.9
        units = stored.attrs["units"]
        assert units == {
            column: "eV" if column.startswith("energy") else "eV/Å"
            for column in table
            if column not in ("graph_id", "node_index", "note", "flagged")
        }
        read = pd.read_csv(tmp_path / f"{name}.csv", keep_default_na=False)
        pd.testing.assert_frame_equal(read, table, check_dtype=False)


def test_saving_again_replaces(tmp_path):
    tables([1, 2], [1, 1]).save(tmp_path / "out.v2", (".csv",))
    tables([3], [1]).save(tmp_path / "out.v2", (".csv",))
    assert {path.name for path in tmp_path.iterdir()} == {"out.v2.csv", "out.v2_nodes.csv"}
    assert pd.read_csv(tmp_path / "out.v2.csv")["graph_id"].tolist() == [3]
