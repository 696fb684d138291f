"""LSMS and CFG files: what is read and what is refused."""

import ase
import numpy as np
import pytest
import torch
from graph_source_cases import (
    CUTOFF,
    LSMS,
    cfg_atoms,
    cfg_files,
    graphs,
    in_one_folder,
    lsms_files,
    refused,
    source,
)
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow.data import atoms_to_graph


def test_lsms_chooses_columns(tmp_path):
    found = source(tmp_path, **lsms_files(tmp_path))
    assert found.node_features == ["atomic_number", "moment_0", "moment_1"]
    first, second = graphs(found)  # output2 before output10
    assert first.x.tolist() == [[26, 1, 2], [78, 3, 4], [26, 5, 6]]
    assert first.pos.tolist() == [pytest.approx(p) for p in ([0, 0, 0], [1.9, 0, 0], [1.9, 1.9, 0])]
    assert first.free_energy.tolist() == [-2.25]
    assert first.electrons.tolist() == [[26.5], [77.0], [26.25]]
    assert not first.pbc.any()
    assert first.edge_index.shape == (2, 6)
    assert second.x[1, 0] == 26
    nearest = next(iter(found.read(found.chunks()[0]))).graph(2.0, None)
    assert nearest.edge_index.shape == (2, 4)


def test_lsms_subtracts_protons_and_divides_by_atoms(tmp_path):
    section, name = lsms_files(tmp_path), "free_energy_scaled_num_nodes"
    section["graph_features"] = {"name": [name], "dim": [2], "column_index": [0]}
    section["targets"] = {name: "Ry/atom", "electrons": "e"}
    graph = graphs(source(tmp_path, **section, subtract_protons="electrons"))[0]
    assert graph[name].tolist() == [[7.5 / 3, -2.25 / 3]]
    assert graph.electrons.tolist() == [[0.5], [-1.0], [0.25]]


def test_lsms_in_a_cell(tmp_path):
    cell = [[3.8, 0, 0], [0, 3.8, 0], [0, 0, 3.8]]
    graph = graphs(source(tmp_path, **lsms_files(tmp_path), cell=cell))[0]
    atoms = ase.Atoms("FePtFe", [[0, 0, 0], [1.9, 0, 0], [1.9, 1.9, 0]], cell=cell, pbc=True)
    expected = atoms_to_graph(atoms, CUTOFF, None)
    assert torch.equal(graph.edge_index, expected.edge_index)
    assert torch.equal(graph.cell, expected.cell)


numbers = st.floats(-1e6, 1e6, width=32)


@in_one_folder
@given(
    table=st.integers(1, 6).flatmap(
        lambda n: st.lists(st.lists(numbers, min_size=8, max_size=8), min_size=n, max_size=n)
    ),
    header=st.lists(numbers, min_size=2, max_size=4),
    separator=st.sampled_from(["\t", " ", "   "]),
    ending=st.sampled_from(["", "\n", "\n\n"]),
)
def test_lsms_reads_what_is_written(tmp_path, table, header, separator, ending):
    rows = [header, *table]
    text = "\n".join(separator.join(map(repr, row)) for row in rows) + ending
    (tmp_path / "a.txt").write_text(text)
    section = {
        **LSMS,
        "train": "a.txt",
        "node_features": {"name": ["a", "b"], "dim": [1, 3], "column_index": [7, 0]},
        "inputs": ["a", "b"],
        "targets": {"free_energy": "Ry", "label": {"unit": "", "key": "b"}},
    }
    found = source(tmp_path, **section)
    record = next(iter(found.read(found.chunks()[0])))
    expected = np.array(table)
    assert np.array_equal(record.nodes.x, expected[:, [7, 0, 1, 2]])
    assert np.array_equal(record.targets["label"], expected[:, :3])
    assert record.targets["free_energy"].tolist() == [header[1]]
    assert np.array_equal(record.atoms.positions, expected[:, 2:5])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 2\n", "no atoms"),
        ("1 2\n26 0 1 2\n", "no atoms with the five columns"),
        ("1 2\n26 0 1 2 3 4 5\n", "column 7"),
        ("1\n26 0 1 2 3 4 5 6\n", "the first line has 1 columns of numbers"),
        ("1 2\n26 0 1 2 3 4 5 six\n", "cannot be read"),
        ("1 2\n26 0 1 2 3 4 inf 6\n", "NaN or infinity in 'moment'"),
        ("1 2\n0 0 1 2 3 4 5 6\n", "atomic_number 0"),
        ("26 0 1 2 3 4 5 6\n" * 2, "first line has the columns of an atom"),
    ],
)
def test_lsms_refuses(tmp_path, text, reason):
    (tmp_path / "a.txt").write_text(text)
    refused(tmp_path, {**LSMS, "train": "a.txt"}, reason, "a.txt")


def test_cfg_has_hydragnns_columns(tmp_path):
    found = source(tmp_path, **cfg_files(tmp_path))
    assert found.node_features == ["atomic_number", "mass"]
    assert [path.name for path in found.files()] == [
        f"{seed}.{end}" for seed in range(3) for end in ("cfg", "bulk")
    ]
    for seed, graph in enumerate(graphs(found)):
        atoms = cfg_atoms(seed)
        assert graph.x[:, 0].tolist() == atoms.numbers.tolist()
        assert graph.x[:, 1].numpy() == pytest.approx(atoms.get_masses(), rel=1e-5)
        forces = np.column_stack([atoms.arrays[name] for name in ("fx", "fy", "fz")])
        assert graph.atomic_forces.numpy() == pytest.approx(forces, rel=1e-5)
        assert graph.bulk_modulus.tolist() == [170.5 + seed]
        expected = atoms_to_graph(atoms, CUTOFF, None)
        assert graph.pbc.tolist() == [1, 1, 1]
        assert torch.allclose(graph.cell, expected.cell)
        assert graph.edge_index.shape == expected.edge_index.shape


def test_cfg_refuses(tmp_path):
    section = cfg_files(tmp_path)
    beyond = section["node_features"] | {"column_index": [0, 1, 2, 4]}
    refused(tmp_path, section | {"node_features": beyond}, "0.cfg", "column 6")
    refused(tmp_path, section | {"train": "*.bulk"}, "no files that end in .cfg")
    cfg, bulk = tmp_path / "1.cfg", tmp_path / "1.bulk"
    bulk.unlink()
    refused(tmp_path, section, "1.bulk", "cannot be read")
    bulk.write_text("1 2\n")
    refused(tmp_path, section, "1.cfg", "'bulk_modulus'", "column 2")
    cfg.write_text(cfg.read_text().replace("A = 1.0 Angstrom", "A = 2.5 Angstrom"))
    refused(tmp_path, section, "1.cfg", "units of 2.5 Å")
    cfg.write_bytes(b"\xff\x00")
    refused(tmp_path, section, "1.cfg", "cannot be read")
