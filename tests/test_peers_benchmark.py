"""The benchmark beside other packages: both sides get the same graphs, and its target judges."""

from __future__ import annotations

from pathlib import Path

import ase.build
import numpy as np
import pytest
import torch
from model_accuracy.outcome import Outcome
from peer_potentials.report import Row, remarks, table
from peer_potentials.sides import PAIRS, Pair, network, write_graphs
from peer_potentials.training import collate, read_graphs

from hydragnn_flow import GraphStore, write_store
from hydragnn_flow.data import atoms_to_graph


def outcomes(*errors: tuple[float, float]) -> list[Outcome]:
    return [Outcome(10.0, 5, 4, pair) for pair in errors]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.mpnn_type)
def test_our_network_is_as_large_as_the_peers(pair: Pair) -> None:
    architecture = network(pair).Architecture
    assert architecture.mpnn_type == pair.mpnn_type
    layers = {"PAINN": 3, "MACE": 2}[pair.mpnn_type]
    assert (architecture.hidden_dim, architecture.num_conv_layers) == (64, layers)
    assert architecture.radius == 5.0


def test_a_target_is_missed_beyond_nine_tenths() -> None:
    rows = [Row(PAIRS[0], outcomes((8.0, 10.0), (9.0, 9.0)), outcomes((10.0, 10.0), (10.0, 10.0)))]
    found = table(rows).rows
    assert [line[4] for line in found] == pytest.approx([0.85, 0.95])
    assert [line[6] for line in found] == ["met", "MISSED"]
    assert remarks(rows, ["MACE"]) == ["targets missed: PAINN, forces", "not measured: MACE"]


def test_a_training_without_an_error_is_told() -> None:
    rows = [Row(PAIRS[1], [Outcome(1.0, 0, 0, None, "diverged: NaN")], outcomes((1.0, 1.0)))]
    assert [line[4] for line in table(rows).rows] == [None, None]
    assert "MACE, ours: diverged: NaN" in remarks(rows, [])


def test_a_peer_reads_the_graphs_of_the_store(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def graph(name: str, number: int) -> object:
        atoms = ase.build.molecule(name)
        targets = {"energy": rng.normal(size=1) - 99.0, "forces": rng.normal(size=(len(atoms), 3))}
        return atoms_to_graph(atoms, 2.0, None, number, targets)

    names = {"trainset": ["H2O", "CH4"], "valset": ["NH3"], "testset": ["CO2"]}
    splits = {split: [graph(name, 0) for name in of] for split, of in names.items()}
    write_store(tmp_path / "store.gs", splits)
    write_graphs(tmp_path / "store.gs", tmp_path / "graphs.npz")
    whole = GraphStore.open(tmp_path / "store.gs")["trainset"].batch([0, 1])
    graphs = read_graphs(tmp_path / "graphs.npz", "trainset")
    batch = collate(graphs, mean=-99.0)
    assert torch.equal(batch.edges, whole.edge_index)
    assert torch.equal(batch.numbers, whole.x[:, 0].long())
    assert torch.equal(batch.positions, whole.pos.float())
    assert torch.equal(batch.forces, whole.forces.float())
    assert torch.equal(batch.graph, whole.batch)
    torch.testing.assert_close(batch.energies, (whole.energy.double() + 99.0).float().view(-1))
    assert [len(read_graphs(tmp_path / "graphs.npz", split)) for split in names] == [2, 1, 1]
