"""Sources that bring graphs or node features of their own: what they read and what they refuse."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase
import meshio
import numpy as np
import pytest
import torch
from ase.io.cfg import write_cfg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset

from hydragnn_flow.config import DataConfig
from hydragnn_flow.config.base import validate
from hydragnn_flow.config.graph_sources import (
    CfgSource,
    HydragnnSource,
    LsmsSource,
    MeshSource,
    PygSource,
    VoronoiSource,
)
from hydragnn_flow.data import GraphStore, atoms_to_graph
from hydragnn_flow.data.columns import pack
from hydragnn_flow.data.sources import fingerprint, open_source
from hydragnn_flow.data.sources.base import Part
from hydragnn_flow.data.sources.cfg import CfgFiles
from hydragnn_flow.data.sources.hydragnn import StoredGraphs
from hydragnn_flow.data.sources.lsms import LsmsFiles
from hydragnn_flow.data.sources.mesh import MeshFiles
from hydragnn_flow.data.sources.mesh_edges import element_edges
from hydragnn_flow.data.sources.pt_files import load_graphs
from hydragnn_flow.data.sources.pyg import PygFiles
from hydragnn_flow.data.sources.tessellation import tessellate
from hydragnn_flow.data.sources.voronoi import VoronoiFiles
from hydragnn_flow.errors import InputError

SOURCES: dict[str, tuple[Any, Any]] = {
    "lsms": (LsmsSource, LsmsFiles),
    "cfg": (CfgSource, CfgFiles),
    "pyg": (PygSource, PygFiles),
    "hydragnn": (HydragnnSource, StoredGraphs),
    "voronoi": (VoronoiSource, VoronoiFiles),
    "mesh": (MeshSource, MeshFiles),
}
CUTOFF = 3.0
KEYS = set(atoms_to_graph(ase.Atoms("H"), CUTOFF, None).keys()) | {"y", "y_loc"}

# hypothesis writes a file for each example into the same temporary folder.
in_one_folder = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def source(folder: Path, **section: Any) -> Any:
    model, reader = SOURCES[section["format"]]
    return reader(validate(model, section, "run.yaml"), folder)


def graphs(found: Any, cutoff: float = CUTOFF) -> list[Data]:
    return [record.graph(cutoff, None) for part in found.parts() for record in found.read(part)]


# Files of each format, and the section that reads them.

LSMS = {
    "format": "lsms",
    "train": "raw",
    "node_features": {
        "name": ["num_of_protons", "electrons", "moment"],
        "dim": [1, 1, 2],
        "column_index": [0, 5, 6],
    },
    "graph_features": {"name": ["free_energy"], "dim": [1], "column_index": [1]},
    "inputs": ["num_of_protons", "moment"],
    "targets": {"free_energy": "Ry", "electrons": "e"},
}
FEPT = """3.5\t-2.25 of a comment
26 0 0.0 0.0 0.0 26.5 1.0 2.0
78 1 1.9 0.0 0.0 77.0 3.0 4.0
26 2 1.9 1.9 0.0 26.25 5.0 6.0
"""


def lsms_files(folder: Path) -> dict[str, Any]:
    (folder / "raw").mkdir()
    (folder / "raw" / "output2.txt").write_text(FEPT.replace("3.5", "7.5"))
    (folder / "raw" / "output10.txt").write_text(FEPT.replace("78 1", "26 1"))
    return dict(LSMS)


def cfg_atoms(seed: int) -> ase.Atoms:
    rng = np.random.default_rng(seed)
    atoms = ase.Atoms("Ni2Nb2", positions=rng.uniform(0, 4, (4, 3)), cell=[4, 4, 5], pbc=True)
    for name in ("fz", "fy", "c_peratom", "fx"):  # not HydraGNN's order
        atoms.set_array(name, rng.normal(size=4))
    return atoms


def cfg_files(folder: Path) -> dict[str, Any]:
    for seed in range(3):
        write_cfg(folder / f"{seed}.cfg", cfg_atoms(seed))
        (folder / f"{seed}.bulk").write_text(f"1 2 {170 + seed}.5 GPa\n")
    return {
        "format": "cfg",
        "train": ".",
        "node_features": {
            "name": ["num_of_protons", "mass", "atomic_energy", "atomic_forces"],
            "dim": [1, 1, 1, 3],
            "column_index": [0, 1, 2, 3],
        },
        "graph_features": {"name": ["bulk_modulus"], "dim": [1], "column_index": [2]},
        "inputs": ["num_of_protons", "mass"],
        "targets": {"bulk_modulus": "GPa", "atomic_forces": "eV/Å"},
    }


def pyg_graph(n: int, edges: bool = True) -> Data:
    rng = torch.Generator().manual_seed(n)
    graph = Data(
        x=torch.rand(n, 2, generator=rng),
        pos=torch.rand(n, 3, generator=rng, dtype=torch.float64) * 1.7,  # all within the cutoff
        y=torch.rand(1, 2, generator=rng),
        forces=torch.rand(n, 3, generator=rng),
        smiles="CO",
    )
    if edges:
        graph.edge_index = torch.tensor([[0, n - 1], [n - 1, 0]])
        graph.edge_attr = torch.rand(2, 4, generator=rng)
    return graph


PYG = {
    "format": "pyg",
    "train": "graphs.pt",
    "targets": {
        "gap": {"level": "graph", "unit": "eV", "key": "y"},
        "forces": {"level": "node", "unit": "eV/Å"},
    },
}


def pyg_files(folder: Path) -> dict[str, Any]:
    torch.save([pyg_graph(n) for n in (2, 5, 3)], folder / "graphs.pt")
    torch.save(pyg_graph(4), folder / "test.pt")
    return {**PYG, "test": "test.pt"}


def voronoi_files(folder: Path) -> dict[str, Any]:
    (folder / "sets").mkdir()
    for seed in range(2):
        rng = np.random.default_rng(seed)
        np.savez(
            folder / "sets" / f"{seed}.npz",
            points=rng.uniform(0, [2, 3], (6 + seed, 2)),
            angle=rng.normal(size=(6 + seed, 2)),
            stress=rng.normal(size=6 + seed),
            strength=rng.normal(),
        )
    return {
        "format": "voronoi",
        "train": "sets/*.npz",
        "features": ["angle"],
        "box": [[0, 2], [0, 3]],
        "periodic": ["y"],
        "targets": {
            "strength": {"level": "graph", "unit": "MPa"},
            "sigma": {"level": "node", "unit": "MPa", "key": "stress"},
        },
    }


def plate(n: int, m: int, kind: str = "quad") -> meshio.Mesh:
    """n x m quads, each cut in two for triangles."""
    x, y = np.meshgrid(np.arange(n + 1.0), np.arange(m + 1.0), indexing="ij")
    points = np.column_stack([x.ravel(), y.ravel(), np.zeros(x.size)])
    number = np.arange(x.size).reshape(x.shape)
    quads = np.stack(
        [number[:-1, :-1], number[1:, :-1], number[1:, 1:], number[:-1, 1:]], axis=-1
    ).reshape(-1, 4)
    cells = quads if kind == "quad" else np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])
    rng = np.random.default_rng(n)
    return meshio.Mesh(
        points,
        [(kind, cells)],
        point_data={
            "temperature": rng.normal(size=x.size),
            "flux": rng.normal(size=(x.size, 3)),
        },
    )


def mesh_files(folder: Path) -> dict[str, Any]:
    (folder / "meshes").mkdir()
    plate(2, 1).write(folder / "meshes" / "a.vtu")
    plate(3, 2, "triangle").write(folder / "meshes" / "b.vtu")
    (folder / "loads.csv").write_text(
        "file, stiffness, remark\nmeshes/b.vtu, 2.5, soft\nmeshes/a.vtu, 7, hard\n"
    )
    return {
        "format": "mesh",
        "train": "meshes",
        "features": ["temperature", "flux"],
        "table": "loads.csv",
        "targets": {
            "stiffness": {"level": "graph", "unit": "N/m"},
            "heat": {"level": "node", "unit": "W/m²", "key": "flux"},
        },
    }


FILES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "lsms": lsms_files,
    "cfg": cfg_files,
    "pyg": pyg_files,
    "voronoi": voronoi_files,
    "mesh": mesh_files,
}


@pytest.fixture(params=[*FILES, "hydragnn"])
def case(request, tmp_path) -> tuple[Path, dict[str, Any]]:
    if request.param == "hydragnn":
        return tmp_path, {"format": "hydragnn", "file": str(request.getfixturevalue("written"))}
    return tmp_path, FILES[request.param](tmp_path)


def test_conformance(case, same):
    folder, section = case
    found = source(folder, **section)
    parts = found.parts()
    assert found.found_targets  # of the first graph, which has been read
    assert [Part(**json.loads(json.dumps(dataclasses.asdict(part)))) for part in parts] == parts
    assert parts[0].role == "train"
    assert all(path.is_file() for path in found.files())
    ids: dict[str, list[int]] = {}
    everything, origins = [], []
    for part in parts:
        records = list(found.read(part))
        assert len(records) == part.stop - part.start
        # Another process, which reads this part alone, sees the same.
        again = list(source(folder, **section).read(part))
        for i, (record, twin) in enumerate(zip(records, again, strict=True)):
            graph = record.graph(CUTOFF, None)
            assert same(graph, twin.graph(CUTOFF, None))
            assert record.index == graph.graph_id.item() == part.first + part.start + i
            assert part.file in record.origin
            assert record.group is None
            assert graph.x.shape[1] == len(found.node_features)
            ids.setdefault(part.role, []).append(record.index)
            everything.append(graph)
            origins.append(record.origin)
    assert all(indices == list(range(len(indices))) for indices in ids.values())
    units = {name: target.unit for name, target in found.found_targets.items()}
    assert units == _units(section)
    columns = pack(everything, origins)  # finite, of one layout, edges within the graph
    assert set(columns) == KEYS | set(units)
    house = atoms_to_graph(ase.Atoms("H2"), CUTOFF, None)
    for key, value in house.to_dict().items():
        assert columns[key].values.dtype == value.numpy().dtype, key
    for name, target in found.found_targets.items():
        assert columns[name].values.dtype == ("float64" if target.level == "graph" else "float32")
    vectors = np.diff(columns["pos"].values[_global(columns)], axis=0)[0]
    lengths = np.linalg.norm(vectors + columns["edge_shifts"].values, axis=1)
    if section["format"] != "pyg":  # whose edge features are its own
        assert columns["edge_attr"].values[:, 0] == pytest.approx(lengths, rel=1e-5)


def _units(section: dict[str, Any]) -> dict[str, str]:
    if section["format"] == "hydragnn":  # where the store says
        return {"energy": "eV", "forces": "eV/Å"}
    return {
        name: target if isinstance(target, str) else target["unit"]
        for name, target in section["targets"].items()
    }


def _global(columns: Any) -> Any:
    """Edges of all graphs as rows of all positions."""
    offsets = np.repeat(columns["x"].starts(), columns["edge_index"].counts)
    return columns["edge_index"].values + offsets


def test_the_configuration_opens_it(case):
    folder, section = case
    given = "test" in section or section["format"] == "hydragnn"
    config = DataConfig.model_validate(
        {"source": section, "path": folder, "split": {} if given else {"test": 0.2}}
    )
    found = open_source(config, seed=0)
    assert type(found) is SOURCES[section["format"]][1]
    assert found.parts() == source(folder, **section).parts()
    assert fingerprint(config)["files"] == len(found.files())


@pytest.mark.parametrize("case", ["pyg", "voronoi", "mesh", "hydragnn"], indirect=True)
def test_edges_longer_than_the_radius_are_refused(case, same):
    folder, section = case
    found = source(folder, **section)
    for part in found.parts():
        for record in found.read(part):
            graph = record.graph(CUTOFF, None)
            senders, receivers = graph.edge_index
            vectors = graph.pos[receivers] - graph.pos[senders] + graph.edge_shifts
            longest = max(vectors.double().norm(dim=1).tolist(), default=0.0)
            assert same(record.graph(longest, None), graph)
            if longest:
                with pytest.raises(InputError) as error:
                    record.graph(0.99 * longest, None)
                said = re.fullmatch(
                    r"(.*) has an edge of length (\S+), but .* Architecture.radius = (\S+); set "
                    r"Architecture.radius to the longest edge of all graphs \((\S+) or more\), .*",
                    str(error.value),
                )
                assert said is not None
                assert said[1] == record.origin
                expected = [longest, 0.99 * longest, longest]
                assert [float(number) for number in said.groups()[1:]] == pytest.approx(
                    expected, rel=1e-5
                )


def test_a_missing_file_is_named_for_what_it_is_for(tmp_path):
    for files, missing, said in (
        (cfg_files, "0.bulk", "where the graph features of 0.cfg should be"),
        (mesh_files, "loads.csv", "cannot be read as a CSV"),
        (cfg_files, "2.bulk", "add it, allow reading it"),
    ):
        folder = tmp_path / missing
        folder.mkdir()
        values = {"source": files(folder), "path": folder, "split": {"test": 0.2}}
        (folder / missing).unlink()
        with pytest.raises(InputError) as error:
            fingerprint(DataConfig.model_validate(values))
        assert str(folder / missing) in str(error.value)
        assert said in str(error.value)


# LSMS


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
    nearest = next(iter(found.read(found.parts()[0]))).graph(2.0, None)
    assert nearest.edge_index.shape == (2, 4)


def test_lsms_subtracts_protons_and_divides_by_atoms(tmp_path):
    section = lsms_files(tmp_path)
    section["graph_features"] = {
        "name": ["free_energy_scaled_num_nodes"],
        "dim": [2],
        "column_index": [0],
    }
    section["targets"] = {"free_energy_scaled_num_nodes": "Ry/atom", "electrons": "e"}
    graph = graphs(source(tmp_path, **section, subtract_protons="electrons"))[0]
    assert graph.free_energy_scaled_num_nodes.tolist() == [[7.5 / 3, -2.25 / 3]]
    assert graph.electrons.tolist() == [[0.5], [-1.0], [0.25]]


def test_lsms_in_a_cell(tmp_path):
    cell = [[3.8, 0, 0], [0, 3.8, 0], [0, 0, 3.8]]
    graph = graphs(source(tmp_path, **lsms_files(tmp_path), cell=cell))[0]
    positions = [[0, 0, 0], [1.9, 0, 0], [1.9, 1.9, 0]]
    atoms = ase.Atoms("FePtFe", positions=positions, cell=cell, pbc=True)
    assert torch.equal(graph.edge_index, atoms_to_graph(atoms, CUTOFF, None).edge_index)
    assert graph.cell.tolist() == torch.tensor(cell).tolist()


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
    record = next(iter(found.read(found.parts()[0])))
    expected = np.array(table)
    assert np.array_equal(record.x, expected[:, [7, 0, 1, 2]])
    assert np.array_equal(record.targets["label"], expected[:, :3])
    assert record.targets["free_energy"].tolist() == [header[1]]
    assert np.array_equal(record.atoms.positions, expected[:, 2:5])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no atoms"),
        ("1 2\n", "no atoms"),
        ("1 2\n26 0 1 2\n", "no atoms with the five columns"),
        ("1 2\n26 0 1 2 3 4 5\n", "column 7"),
        ("1\n26 0 1 2 3 4 5 6\n", "the first line has 1 columns of numbers"),
        ("1 2\n26 0 1 2 3 4 5 six\n", "LSMS text format"),
        ("1 2\n26 0 1 2 3 4 5 6\n26 0 1 2\n", "LSMS text format"),
        ("1 2\n26 0 1 2 3 nan 5 6\n", "NaN or infinity in its label 'electrons'"),
        ("1 2\n26 0 1 2 3 4 inf 6\n", "NaN or infinity in 'moment'"),
        ("1 2\n26 0 nan 2 3 4 5 6\n", "not finite"),
        ("1 2\n26.5 0 1 2 3 4 5 6\n", "atomic_number 26.5"),
        ("1 2\n0 0 1 2 3 4 5 6\n", "atomic_number 0"),
    ],
)
def test_lsms_refuses(tmp_path, text, reason):
    (tmp_path / "a.txt").write_text(text)
    refused(tmp_path, {**LSMS, "train": "a.txt"}, reason, "a.txt")


def refused(folder: Path, section: dict[str, Any], *words: str) -> None:
    with pytest.raises(InputError) as error:
        graphs(source(folder, **section))
    message = str(error.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"inputs": ["spin"]}, "inputs names 'spin'"),
        ({"inputs": []}, "inputs: must not be empty"),
        ({"targets": {"spin": "e"}}, "targets names 'spin'"),
        ({"targets": {}}, "targets: must not be empty"),
        ({"subtract_protons": "spin"}, "subtract_protons names 'spin'"),
        ({"graph_features": {"name": ["moment"], "dim": [1], "column_index": [0]}}, "both name"),
        ({"graph_features": {"name": ["a"], "dim": [1]}}, "one entry for each"),
        ({"graph_features": {"name": ["a", "a"], "dim": [1, 1], "column_index": [0, 1]}}, "once"),
        ({"cell": [[1, 0, 0]]}, "three lattice vectors"),
        (
            {
                "node_features": {"name": ["x"], "dim": [1], "column_index": [0]},
                "inputs": ["x"],
                "targets": {"x": ""},
            },
            "'x' means something else",
        ),
        ({"targets": {"electrons": {"unit": "e", "level": "node"}}}, "leave level out"),
    ],
)
def test_lsms_section_refuses(changes, reason):
    with pytest.raises(InputError, match=reason):
        validate(LsmsSource, {**LSMS, **changes}, "run.yaml")


# CFG


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
    (tmp_path / "1.bulk").unlink()
    refused(tmp_path, section, "1.bulk", "cannot be read")
    (tmp_path / "1.bulk").write_text("1 2\n")
    refused(tmp_path, section, "1.bulk", "'bulk_modulus'", "column 2")
    (tmp_path / "1.bulk").write_text("1 2 3\n")
    cfg = tmp_path / "1.cfg"
    text = cfg.read_text()
    cfg.write_text(text.replace("A = 1.0 Angstrom", "A = 2.5 Angstrom"))
    refused(tmp_path, section, "1.cfg", "units of 2.5 Å")
    cfg.write_text(text.replace("Number of particles = 4", "Number of particles = 5"))
    refused(tmp_path, section, "1.cfg", "cannot be read as a CFG file")
    cfg.write_bytes(b"\xff\x00")
    refused(tmp_path, section, "1.cfg", "cannot be read as a CFG file")
    cfg.write_text(text.replace("= fx", "= gx"))
    refused(
        tmp_path,
        {
            **section,
            "train": "1.cfg",
            "node_features": {
                "name": ["num_of_protons", "mass", "atomic_forces"],
                "dim": [1, 1, 3],
                "column_index": [0, 1, 4],
            },
        },
        "column 6",
    )
    refused(tmp_path, {**section, "train": "*.bulk"}, "no files that end in .cfg")


# PyG


def as_single(graphs: list[Data]) -> Any:
    return graphs[0]


def as_list(graphs: list[Data]) -> Any:
    return graphs


def as_collated(graphs: list[Data]) -> Any:
    return InMemoryDataset.collate(graphs)


def as_saved(graphs: list[Data]) -> Any:
    data, slices = InMemoryDataset.collate(graphs)
    return data.to_dict(), slices, Data


@in_one_folder
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    wrap=st.sampled_from([as_single, as_list, as_collated, as_saved]),
)
def test_pyg_keeps_graphs_as_they_are(tmp_path, sizes, wrap):
    stored = [pyg_graph(n) for n in sizes]
    torch.save(wrap(stored), tmp_path / "graphs.pt")
    found = source(tmp_path, **PYG)
    read = graphs(found)
    assert found.node_features == ["x_0", "x_1"]
    assert len(read) == (1 if wrap is as_single else len(stored))
    for got, want in zip(read, stored, strict=False):
        assert torch.equal(got.x, want.x)
        assert torch.equal(got.pos, want.pos.float())
        assert torch.equal(got.edge_index, want.edge_index)
        assert torch.equal(got.edge_attr, want.edge_attr)
        assert torch.equal(got.gap, want.y.double())
        assert torch.equal(got.forces, want.forces)
        assert "smiles" not in got


def test_pyg_builds_edges_where_there_are_none(tmp_path, structure):
    stored, expected = [], []
    for seed in range(6):
        atoms = structure(seed)
        energy = np.array([float(seed)])
        expected.append(atoms_to_graph(atoms, CUTOFF, None, seed, {"energy": energy}))
        stored.append(
            Data(
                z=torch.from_numpy(atoms.numbers),
                pos=torch.from_numpy(atoms.positions),
                cell=torch.from_numpy(atoms.cell.array)[None],
                pbc=torch.from_numpy(atoms.pbc),
                energy=torch.tensor(energy[0]),
            )
        )
    torch.save(stored, tmp_path / "graphs.pt")
    found = source(tmp_path, **{**PYG, "targets": {"energy": {"level": "graph", "unit": "eV"}}})
    assert found.node_features == ["atomic_number"]
    for got, want in zip(graphs(found), expected, strict=True):
        assert set(got.keys()) == set(want.keys())
        for key in want.keys():  # noqa: SIM118
            assert torch.equal(got[key], want[key]), key


def test_pyg_cuts_long_files_into_parts(tmp_path):
    torch.save(as_collated([pyg_graph(2) for _ in range(2500)]), tmp_path / "graphs.pt")
    found = source(tmp_path, **PYG)
    parts = found.parts()
    assert [(part.start, part.stop, part.first) for part in parts] == [
        (0, 1000, 0),
        (1000, 2000, 0),
        (2000, 2500, 0),
    ]
    assert [record.index for record in found.read(parts[-1])] == list(range(2000, 2500))


def test_pyg_reads_what_numpy_cannot_hold(tmp_path):
    graph = pyg_graph(3)
    graph.x = graph.x.bfloat16().requires_grad_()
    graph.edge_index = EdgeIndex(graph.edge_index, sparse_size=(3, 3))
    graph.adj_t = torch.eye(3).to_sparse()
    torch.save(graph, tmp_path / "graphs.pt")
    (read,) = graphs(source(tmp_path, **PYG))
    assert torch.equal(read.x, graph.x.float())
    assert torch.equal(read.edge_index, graph.edge_index.as_tensor())


def test_pyg_names_columns(tmp_path):
    section = pyg_files(tmp_path)
    assert source(tmp_path, **section, node_features=["a", "b"]).node_features == ("a", "b")
    refused(tmp_path, {**section, "node_features": ["a"]}, "2 columns, not the 1")
    refused(tmp_path, {**section, "node_features": ["a", "atomic_number"]}, "which no element has")


class Malicious:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


class OwnData(Data):
    """A class only its author has."""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (Malicious, "Path"),
        (lambda _: OwnData(x=torch.ones(1, 1)), "OwnData"),
        (lambda _: HeteroData(), "BaseStorage"),
        (lambda _: Batch.from_data_list([pyg_graph(2)]), "Batch"),
        (lambda _: {"x": torch.ones(1)}, "holds a dict"),
        (lambda _: [], "an empty list"),
        (lambda _: [pyg_graph(2), torch.ones(1)], "a list of Data, Tensor"),
        (lambda _: torch.ones(1), "holds a Tensor"),
    ],
)
def test_pyg_refuses_other_content(tmp_path, content, reason):
    torch.save(content(tmp_path / "harm"), tmp_path / "graphs.pt")
    refused(tmp_path, PYG, "graphs.pt", reason)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("damage", [b"", b"no archive", "truncated"])
def test_pyg_refuses_damaged_files(tmp_path, damage):
    path = tmp_path / "graphs.pt"
    torch.save([pyg_graph(2)], path)
    path.write_bytes(path.read_bytes()[:700] if damage == "truncated" else damage)
    refused(tmp_path, PYG, "graphs.pt", "cannot be read as a file of PyG graphs")
    with pytest.raises(InputError) as error:
        load_graphs(path)
    assert "weights_only" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pos": None}, "no 'pos'"),
        ({"x": None}, "no 'x'"),
        ({"y": None}, "no 'y'"),
        ({"x": torch.ones(3, 2)}, "'x' has the shape [3, 2], but 2 rows"),
        ({"x": torch.full((2, 2), torch.nan)}, "NaN or infinity in 'x'"),
        ({"x": torch.ones(2, 3)}, "first graph has x_0, x_1"),
        ({"x": torch.ones(2, 0)}, "'x' has no columns"),
        ({"y": torch.full((1, 2), torch.inf)}, "NaN or infinity in 'y'"),
        ({"y": torch.ones(1, 3)}, "label 'gap' of shape [3]"),
        ({"forces": torch.ones(3, 3)}, "label 'forces' of shape [3, 3]"),
        ({"pos": torch.ones(2, 4)}, "pos is not"),
        ({"pos": torch.ones(0, 3)}, "no nodes"),
        ({"cell": torch.ones(2, 2)}, "cell has the shape [2, 2]"),
        ({"cell": torch.eye(3), "pbc": torch.ones(2)}, "pbc has 2 values"),
        ({"cell": torch.eye(3)}, "no edge_shifts"),
        ({"edge_shifts": torch.ones(3, 3)}, "'edge_shifts' has the shape [3, 3], but 2 rows"),
        ({"edge_shifts": torch.ones(2, 2)}, "edge_shifts is not"),
        ({"edge_index": torch.tensor([[0], [2]])}, "edge_index is not"),
        ({"edge_attr": torch.ones(1, 4)}, "'edge_attr' has the shape [1, 4], but 2 rows"),
    ],
)
def test_pyg_refuses_graphs(tmp_path, changes, reason):
    bad = pyg_graph(2)
    for key, value in changes.items():
        if value is None:
            del bad[key]
        else:
            bad[key] = value
    torch.save([pyg_graph(2), bad], tmp_path / "graphs.pt")
    refused(tmp_path, PYG, "graphs.pt: graph 1", reason)


def test_a_first_graph_without_features_is_refused(tmp_path):
    bare = pyg_graph(2)
    bare.x = torch.ones(2, 0)
    torch.save([bare, bare], tmp_path / "graphs.pt")
    with pytest.raises(InputError, match=r"graphs\.pt: graph 0: 'x' has no columns.*give it one"):
        source(tmp_path, **PYG).parts()

    section = voronoi_files(tmp_path)
    first = tmp_path / "sets" / "0.npz"
    with np.load(first) as arrays:
        np.savez(first, **{**arrays, "angle": np.empty((6, 0))})
    with pytest.raises(InputError, match=r"0\.npz: 'angle' has no columns.*give it one"):
        source(tmp_path, **section).parts()


def test_targets_of_arrays_need_a_level():
    with pytest.raises(InputError, match=r"gap needs a level.*\{unit: 'eV', level: graph\}$"):
        validate(PygSource, {**PYG, "targets": {"gap": "eV"}}, "run.yaml")


# Stored graphs


def test_a_store_comes_back_as_it_was(written, store, same):
    found = source(written.parent, format="hydragnn", file=written.name)
    assert found.node_features == ["atomic_number"]
    roles = {"train": "trainset", "val": "valset", "test": "testset"}
    assert [part.role for part in found.parts()] == list(roles)
    for part in found.parts():
        for i, record in enumerate(found.read(part)):
            graph = record.graph(CUTOFF, None)
            assert graph.graph_id.item() == i
            assert same(graph, store[roles[part.role]][i], ignore=("graph_id", "y", "y_loc"))


def test_hydragnns_own_file(shared_data):
    folder = shared_data / "hydragnn_bp"
    reference = np.load(folder / "hydragnn_cuau_reference.npz")
    plain = source(folder, format="hydragnn", file="hydragnn_cuau.bp")
    packed = source(
        folder,
        format="hydragnn",
        file="hydragnn_cuau.bp",
        targets={
            "energy_per_atom": {"level": "graph", "unit": "eV/atom"},
            "pull": {"level": "node", "unit": "eV/Å"},
        },
        output_dim=[1, 3],
    )
    assert {part.role: part.stop for part in packed.parts()} == {"train": 40, "val": 10, "test": 10}
    for i in sorted({int(key.split("/")[1]) for key in reference if key.startswith("trainset")}):
        part = Part("train", str(folder / "hydragnn_cuau.bp"), i, i + 1, 0)
        (a,), (b,) = plain.read(part), packed.read(part)
        one, two = a.graph(5.0, None), b.graph(5.0, None)
        for key in ("x", "pos", "cell", "edge_index", "edge_shifts", "edge_attr"):
            assert np.array_equal(one[key].numpy(), reference[f"trainset/{i}/{key}"]), key
        assert one.pbc.tolist() == [1, 1, 1]
        assert torch.equal(one.forces, two.pull)
        assert two.energy_per_atom.item() == reference[f"trainset/{i}/y"][0, 0]
        assert np.array_equal(two.y.numpy(), reference[f"trainset/{i}/y"])
        assert np.array_equal(two.y_loc.numpy(), reference[f"trainset/{i}/y_loc"])


def test_hydragnn_refuses(written, tmp_path):
    section = {"format": "hydragnn", "file": str(written)}
    refused(tmp_path, {**section, "file": "missing.bp"}, "missing.bp", "does not exist")
    force = {"level": "node", "unit": "eV/Å"}
    energy = {"level": "graph", "unit": "eV"}
    for targets, dims in (
        ({"e": energy}, [1]),
        ({"f": force, "e": energy}, [3, 1]),
        ({"e": energy, "f": force}, [1, 1]),
        ({"e": energy, "f": energy}, [1, 3]),
    ):
        packed = {**section, "targets": targets, "output_dim": dims}
        refused(tmp_path, packed, "trainset: graph 0: y holds parts of 1,")
    refused(tmp_path, {**section, "targets": {"gap": "eV"}}, "trainset: graph 0", "no 'gap'")
    for changes in ({"targets": {"e": "eV"}}, {"targets": {"e": energy, "f": force}}, {}):
        with pytest.raises(InputError, match=r"output_dim needs|e needs a level"):
            validate(HydragnnSource, {**section, **changes, "output_dim": [1]}, "run.yaml")


def test_a_process_opens_a_store_once_unless_it_has_changed(copied, monkeypatch):
    opened = []
    open_store = GraphStore.open

    def count(path: Path, *arguments: Any) -> GraphStore:
        opened.append(path)
        return open_store(path, *arguments)

    monkeypatch.setattr(GraphStore, "open", count)
    section = {"format": "hydragnn", "file": copied.name}
    parts = source(copied.parent, **section).parts()
    for part in parts:
        assert list(source(copied.parent, **section).read(part))
    assert opened == [copied]
    os.utime(copied / "manifest.json", (0, 0))
    assert source(copied.parent, **section).parts() == parts
    assert opened == [copied, copied]


def test_keys_of_a_store_get_names_and_units(written, store):
    targets = {"total": {"unit": "eV", "key": "energy"}, "forces": "eV/Å"}
    found = source(written.parent, format="hydragnn", file=written.name, targets=targets)
    graph = graphs(found)[0]
    assert found.found_targets["forces"].unit == "eV/Å"
    assert torch.equal(graph.total, store["trainset"][0].energy)
    assert torch.equal(graph.forces, store["trainset"][0].forces)


# Voronoi


def cubic(*repeats: int, basis: list[list[float]]) -> np.ndarray:
    corners = np.stack(np.meshgrid(*map(np.arange, repeats), indexing="ij"), -1)
    return (corners.reshape(-1, 1, len(repeats)) + np.array(basis)).reshape(-1, len(repeats))


# Lattice: points, box, cell size, and how many facets of which size a cell has.
LATTICES = {
    "square": (cubic(3, 4, basis=[[0.5, 0.5]]), [3, 4], 1.0, {1.0: 4}),
    "cubic": (cubic(3, 3, 4, basis=[[0.5] * 3]), [3, 3, 4], 1.0, {1.0: 6}),
    "hexagonal": (
        cubic(3, 3, basis=[[0, 0], [0.5, 0.5]]) * [1, 3**0.5],
        [3, 3 * 3**0.5],
        3**0.5 / 2,
        {3**-0.5: 6},
    ),
    "bcc": (
        cubic(2, 2, 2, basis=[[0, 0, 0], [0.5] * 3]),
        [2, 2, 2],
        0.5,
        {3**1.5 / 16: 8, 0.125: 6},
    ),
    "fcc": (
        cubic(2, 2, 2, basis=[[0, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]]),
        [2, 2, 2],
        0.25,
        {2**0.5 / 8: 12},
    ),
}


@pytest.mark.parametrize("name", LATTICES)
@pytest.mark.parametrize("precision", [np.float64, np.float32])
def test_lattices(name, precision):
    points, lengths, size, facets = LATTICES[name]
    box = np.array([[7.0, 7.0 + length] for length in lengths])
    points = (points + 7.0).astype(precision).astype(np.float64)
    cells = tessellate(points, box, np.ones(len(lengths), dtype=bool))
    exact = 1e-12 if precision is np.float64 else 1e-5
    assert cells.volumes == pytest.approx(size, rel=exact)
    for cell in range(len(points)):
        areas = cells.areas[cells.receivers == cell]
        assert len(areas) == sum(facets.values())
        for area, count in facets.items():
            assert np.isclose(areas, area, rtol=exact).sum() == count


def test_walls_end_cells_exactly():
    points, lengths = LATTICES["square"][:2]
    box = np.array([[0.0, length] for length in lengths])
    cells = tessellate(points, box, np.zeros(2, dtype=bool))
    assert cells.volumes == pytest.approx(1.0)
    assert len(cells.senders) == 2 * (2 * 4 + 3 * 3)
    alone = tessellate(np.array([[0.1, 2.9]]), box, np.zeros(2, dtype=bool))
    assert alone.volumes == pytest.approx([12.0])
    assert not len(alone.senders)
    wrapped = tessellate(np.array([[0.1, 2.9]]), box, np.ones(2, dtype=bool))
    assert sorted(map(tuple, wrapped.shifts)) == [(-3, 0), (0, -4), (0, 4), (3, 0)]


point_sets = st.fixed_dictionaries(
    {
        "d": st.sampled_from([2, 3]),
        "n": st.integers(1, 25),
        "seed": st.integers(0, 10**6),
        "periodic": st.lists(st.booleans(), min_size=3, max_size=3),
    }
)


def point_set(d: int, n: int, seed: int, periodic: list[bool]) -> Any:
    rng = np.random.default_rng(seed)
    low = rng.normal(scale=10, size=d)
    length = rng.uniform(0.5, 4.0, size=d)
    points = low + length * rng.uniform(0.01, 0.99, size=(n, d))
    return points, np.stack([low, low + length], axis=1), np.array(periodic[:d]), rng


def edges_of(cells: Any, points: np.ndarray) -> np.ndarray:
    """Sender, receiver, vector and area of each edge, in an order of their own."""
    vectors = points[cells.receivers] - points[cells.senders] + cells.shifts
    rows = np.column_stack([cells.senders, cells.receivers, vectors, cells.areas])
    return rows[np.lexsort(np.round(rows, 6).T[::-1])]


@settings(deadline=None, max_examples=60)
@given(point_sets)
def test_cells_fill_the_box_and_share_facets(drawn):
    points, box, periodic, rng = point_set(**drawn)
    cells = tessellate(points, box, periodic)
    assert cells.volumes.sum() == pytest.approx(np.prod(box[:, 1] - box[:, 0]))
    rows = edges_of(cells, points)
    d = len(box)
    lengths = np.linalg.norm(rows[:, 2 : 2 + d], axis=1)
    assert np.sort(lengths) == pytest.approx(np.sort(cells.distances))
    back = np.column_stack([rows[:, 1], rows[:, 0], -rows[:, 2 : 2 + d], rows[:, -1]])
    back = back[np.lexsort(np.round(back, 6).T[::-1])]
    assert back == pytest.approx(rows, abs=1e-7)

    order = rng.permutation(len(points))
    shuffled = tessellate(points[order], box, periodic)
    assert shuffled.volumes == pytest.approx(cells.volumes[order])
    renumbered = edges_of(shuffled, points[order])
    renumbered[:, :2] = order[renumbered[:, :2].astype(int)]
    renumbered = renumbered[np.lexsort(np.round(renumbered, 6).T[::-1])]
    assert renumbered == pytest.approx(rows, abs=1e-7)

    # A shift of points and box changes nothing; of the points alone, nothing in a periodic box.
    step = rng.normal(scale=5, size=d)
    moved = tessellate(points + step, box + step[:, None], periodic)
    assert moved.volumes == pytest.approx(cells.volumes)
    rolled = points + np.where(periodic, step, 0.0)
    turned = tessellate(rolled, box, periodic)
    assert turned.volumes == pytest.approx(cells.volumes)
    assert edges_of(turned, rolled) == pytest.approx(rows, abs=1e-7)


@pytest.mark.parametrize("periodic", [[False, True], [True, False, True]])
def test_cell_sizes_are_those_of_nearest_points(periodic):
    """Random places counted by their nearest point, images by brute force."""
    d = len(periodic)
    rng = np.random.default_rng(d)
    points, places = rng.random((12, d)), rng.random((40_000, d))
    away = np.abs(places[:, None] - points)
    away = np.where(periodic, np.minimum(away, 1 - away), away)
    share = np.bincount((away**2).sum(axis=2).argmin(axis=1), minlength=12) / len(places)
    cells = tessellate(points, np.array([[0.0, 1.0]] * d), np.array(periodic))
    error = np.sqrt(cells.volumes * (1 - cells.volumes) / len(places))
    assert (np.abs(share - cells.volumes) < 4 * error).all()


def test_voronoi_nodes_and_edges(tmp_path):
    found = source(tmp_path, **voronoi_files(tmp_path))
    assert found.node_features == ["angle_0", "angle_1", "cell_area"]
    for seed, graph in enumerate(graphs(found)):
        stored = np.load(tmp_path / "sets" / f"{seed}.npz")
        assert graph.pos[:, :2].numpy() == pytest.approx(stored["points"])
        assert not graph.pos[:, 2].any()
        assert graph.x[:, :2].numpy() == pytest.approx(stored["angle"])
        assert graph.x[:, 2].sum().item() == pytest.approx(6.0)
        assert graph.strength.tolist() == [stored["strength"]]
        assert graph.sigma[:, 0].numpy() == pytest.approx(stored["stress"])
        assert graph.cell.tolist() == [[0, 0, 0], [0, 3, 0], [0, 0, 0]]
        assert graph.pbc.tolist() == [0, 1, 0]
        assert graph.edge_attr.shape == (graph.edge_index.shape[1], 2)
        assert set(graph.edge_shifts[:, 1].tolist()) <= {-3.0, 0.0, 3.0}
        assert not graph.edge_shifts[:, [0, 2]].any()


def test_voronoi_of_a_csv(tmp_path):
    (tmp_path / "a.csv").write_text("x, y, z, size\n0.5, 0.5, 1, 7\n1.5, 0.5, 1, 8\n")
    section = {
        "format": "voronoi",
        "train": "a.csv",
        "box": [[0, 2], [0, 1], [0, 2]],
        "features": ["size"],
        "targets": {"radius": {"level": "node", "unit": "µm", "key": "size"}},
    }
    (graph,) = graphs(source(tmp_path, **section))
    assert graph.x.tolist() == [[7, 2], [8, 2]]
    assert graph.edge_index.tolist() == [[1, 0], [0, 1]]
    assert graph.edge_attr.tolist() == [[1, 2], [1, 2]]
    assert graph.radius.tolist() == [[7], [8]]
    strength = {"strength": {"level": "graph", "unit": "MPa"}}
    refused(tmp_path, {**section, "targets": strength}, "a.csv", "no 'strength'")
    refused(tmp_path, {**section, "features": ["colour"]}, "a.csv", "no 'colour'")
    (tmp_path / "a.csv").write_text("x, y\n0.5, north\n")
    refused(tmp_path, section, "a.csv", "'y' does not hold numbers")
    (tmp_path / "a.csv").write_text("x, z\n0.5, 1\n")
    refused(tmp_path, section, "a.csv", "no columns x and y")
    (tmp_path / "a.csv").write_text("")
    refused(tmp_path, section, "a.csv", "cannot be read as a CSV")


@pytest.mark.parametrize(
    ("arrays", "changes", "reason"),
    [
        (
            {"points": [[0.5, 0.5], [0.5, 0.5]]},
            {},
            "has no cell of its own: another",
        ),
        ({"points": [[0.5, 0.5], [0.5, 0.0]]}, {}, "point 1 lies on or outside a wall"),
        ({"points": [[0.5, 0.5], [0.5, 1.5]]}, {}, "point 1 lies on or outside a wall"),
        ({"points": [[0.5, np.nan]]}, {}, "NaN or infinity in 'points'"),
        ({"points": [[0.5] * 4]}, {}, "points has the shape [1, 4]"),
        ({"points": np.zeros((0, 2))}, {}, "points has the shape [0, 2]"),
        ({"points": [0.5, 0.5]}, {}, "points has the shape [2]"),
        ({"points": [[0.5, 0.5]]}, {"periodic": ["z"]}, "data.source.periodic names z"),
        ({"points": [[0.5, 0.5]]}, {"box": None}, "no array 'box'"),
        ({"points": [[0.5] * 3]}, {}, "each of the 3 directions"),
        ({"points": [[0.5, 0.5]], "box": [[1, 0], [0, 1]]}, {"box": None}, "the box is not"),
        ({"points": [[0.5, 0.5]], "size": [1, 2]}, {"features": ["size"]}, "but 1 rows"),
        ({"points": [[0.5, 0.5]], "load": [1.0, 2.0]}, {}, "label 'load' of shape [2, 1]"),
        ({"points": [[0.5, 0.5]], "load": [[None]]}, {}, "write it with numpy.savez"),
        ({"load": [1.0]}, {}, "no 'points'"),
    ],
)
def test_voronoi_refuses(tmp_path, arrays, changes, reason):
    np.savez(tmp_path / "a.npz", **{"load": np.ones(len(arrays.get("points", []))), **arrays})
    section = {
        "format": "voronoi",
        "train": "a.npz",
        "box": [[0, 1], [0, 1]],
        "targets": {"load": {"level": "node", "unit": "N"}},
        **changes,
    }
    refused(tmp_path, section, "a.npz", reason)


def test_voronoi_refuses_other_files(tmp_path):
    section = voronoi_files(tmp_path)
    (tmp_path / "sets" / "0.npz").write_bytes(b"PK\x03\x04 no archive")
    refused(tmp_path, section, "0.npz", "write it with numpy.savez")
    with pytest.raises(InputError, match="box: give"):
        validate(VoronoiSource, {**section, "box": [[0, 2], [3, 0]]}, "run.yaml")


# Meshes

CORNERS = np.array(
    [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]], float
)
# Element: its points among the corners of a cube and further ones, edges, sum of their lengths.
ELEMENTS = {
    "line": ([0, 1], 1, 1.0),
    "line3": ([0, 1, 8], 1, 1.0),
    "triangle": ([0, 1, 3], 3, 2 + 2**0.5),
    "triangle6": ([0, 1, 3, 8, 9, 10], 3, 2 + 2**0.5),
    "quad": ([0, 1, 2, 3], 4, 4.0),
    "quad9": ([0, 1, 2, 3, *range(8, 13)], 4, 4.0),
    "tetra": ([0, 1, 3, 4], 6, 3 + 3 * 2**0.5),
    "tetra10": ([0, 1, 3, 4, *range(8, 14)], 6, 3 + 3 * 2**0.5),
    "hexahedron": ([*range(8)], 12, 12.0),
    "hexahedron20": ([*range(20)], 12, 12.0),
    "wedge": ([0, 1, 3, 4, 5, 7], 9, 7 + 2 * 2**0.5),
    "pyramid": ([0, 1, 2, 3, 4], 8, 5 + 2 * 2**0.5 + 3**0.5),
}
MESH = {
    "format": "mesh",
    "train": "a.vtu",
    "features": ["t"],
    "targets": {"t": {"level": "node", "unit": "K"}},
}


def write_mesh(folder: Path, cells: Any, points: np.ndarray = CORNERS, **fields: Any) -> None:
    fields = fields or {"t": np.arange(float(len(points)))}
    meshio.Mesh(points, cells, point_data=fields).write(folder / "a.vtu")


@pytest.mark.parametrize("kind", ELEMENTS)
def test_elements(tmp_path, kind):
    points, n_edges, length = ELEMENTS[kind]
    rng = np.random.default_rng(0)
    write_mesh(tmp_path, [(kind, [points])], np.vstack([CORNERS, rng.random((12, 3))]))
    (graph,) = graphs(source(tmp_path, **MESH, loose_points="drop"))
    corners = [point for point in points if point < 8]
    assert graph.t.ravel().tolist() == sorted(corners[: len(graph.x)])
    assert graph.edge_index.shape == (2, 2 * n_edges)
    assert graph.edge_attr[:, 0].sum().item() / 2 == pytest.approx(length, rel=1e-6)
    assert set(graph.edge_attr[:, 1].tolist()) == {1.0}
    assert not graph.pbc.any()


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from(["quad", "triangle"]), st.randoms())
def test_edges_of_a_plate(n, m, kind, random):
    mesh = plate(n, m, kind)
    cells = [(block.type, block.data) for block in mesh.cells]
    edges, shared_by, members = element_edges(cells, None, Path("a.vtu"))
    diagonals = n * m if kind == "triangle" else 0
    assert len(edges) == n * (m + 1) + m * (n + 1) + diagonals
    assert (shared_by == 1).sum() == 2 * (n + m)
    assert shared_by.max() <= 2
    assert members.tolist() == list(range((n + 1) * (m + 1)))
    # Elements in another order, begun at another corner and in the other sense.
    rows = [
        [*row[k:], *row[:k]][:: random.choice([1, -1])]
        for row in cells[0][1].tolist()
        for k in [random.randrange(len(row))]
    ]
    random.shuffle(rows)
    again = element_edges([(kind, np.array(rows))], None, Path("a.vtu"))
    assert all(
        np.array_equal(a, b) for a, b in zip(again, (edges, shared_by, members), strict=True)
    )


def test_mesh_nodes_and_targets(tmp_path):
    found = source(tmp_path, **mesh_files(tmp_path))
    assert found.node_features == ["temperature", "flux_0", "flux_1", "flux_2"]
    assert found.files()[-1] == tmp_path / "loads.csv"
    first, second = graphs(found)
    mesh = plate(2, 1)
    assert first.x[:, 0].numpy() == pytest.approx(mesh.point_data["temperature"])
    assert first.heat.numpy() == pytest.approx(mesh.point_data["flux"])
    assert first.pos.numpy() == pytest.approx(mesh.points)
    assert (first.stiffness.item(), second.stiffness.item()) == (7.0, 2.5)
    assert first.edge_attr.tolist().count([1.0, 2.0]) == 2
    assert (first.edge_index[1].diff() >= 0).all()


def test_boundary_elements_are_no_elements(tmp_path):
    mesh = plate(2, 2, "triangle")
    mixed = [*((b.type, b.data) for b in mesh.cells), ("line", [[0, 1], [1, 2]]), ("vertex", [[0]])]
    write_mesh(tmp_path, mixed, mesh.points)
    (graph,) = graphs(source(tmp_path, **MESH))
    assert sorted(set(graph.edge_attr[:, 1].tolist())) == [1.0, 2.0]
    assert graph.edge_index.shape == (2, 2 * 16)
    (frame,) = graphs(source(tmp_path, **MESH, elements=["line"], loose_points="drop"))
    assert frame.edge_index.shape == (2, 4)
    both = graphs(source(tmp_path, **MESH, elements=["line", "triangle"]))
    assert both[0].edge_attr[:, 1].max() == 2.0


def test_a_quad_that_is_a_triangle(tmp_path):
    write_mesh(tmp_path, [("quad", [[0, 1, 2, 2], [0, 2, 3, 3]])])
    (graph,) = graphs(source(tmp_path, **MESH, loose_points="drop"))
    assert graph.edge_index.shape == (2, 2 * 5)
    assert sorted(graph.edge_attr[:, 1].tolist()) == [1.0] * 8 + [2.0] * 2


@pytest.mark.parametrize(
    ("name", "reason"),
    [("a.off", "Expected the first line to be `OFF`."), ("a.vtu", "as vtu"), ("a.txt", "format")],
)
def test_what_meshio_says_is_told_once(tmp_path, capfd, name, reason):
    (tmp_path / name).write_text("<no mesh>\n")
    refused(tmp_path, {**MESH, "train": name}, name, "cannot be read as a mesh", reason)
    assert capfd.readouterr() == ("", "")


def test_mesh_refuses(tmp_path):
    write_mesh(tmp_path, [("triangle", [[0, 1, 3]])])
    refused(tmp_path, MESH, "a.vtu", "5 point(s) in no element", "point 2", "loose_points")
    dropped = {**MESH, "loose_points": "drop"}
    refused(tmp_path, {**dropped, "features": ["u"]}, "a.vtu", "no 'u' (it has: t)")
    refused(tmp_path, {**dropped, "elements": ["tetra"]}, "a.vtu", "has no tetra")
    write_mesh(tmp_path, [("vertex", [[0]])])
    refused(tmp_path, dropped, "a.vtu", "has no line, triangle")
    write_mesh(tmp_path, [("triangle", [[2, 2, 2]])])
    refused(tmp_path, dropped, "a.vtu", "no edges")
    for beyond in (-1, 8):
        write_mesh(tmp_path, [("triangle", [[0, 1, beyond]])])
        refused(tmp_path, dropped, "a.vtu", "points it does not have (it has 8)")
    write_mesh(tmp_path, [("VTK_LAGRANGE_TRIANGLE", [[0, 1, 3]])])
    refused(tmp_path, dropped, "a.vtu", "'VTK_LAGRANGE_TRIANGLE'")
    write_mesh(tmp_path, [("polygon", [[0, 1, 2, 3]])])
    refused(tmp_path, dropped, "a.vtu", "'polygon'")
    write_mesh(tmp_path, [("quad", [[0, 1, 2, 3]])], t=np.array([np.nan] + [0.0] * 7))
    refused(tmp_path, dropped, "a.vtu", "NaN or infinity in 't'")
    (tmp_path / "a.vtu").write_text("<VTKFile>")
    refused(tmp_path, MESH, "a.vtu", "cannot be read as a mesh")
    (tmp_path / "a.off").write_text("no mesh\n")
    refused(tmp_path, {**MESH, "train": "a.off"}, "a.off", "cannot be read as a mesh")
    (tmp_path / "a.txt").write_text("no mesh\n")
    refused(tmp_path, {**MESH, "train": "a.txt"}, "a.txt", "cannot be read as a mesh")


def test_mesh_refuses_tables(tmp_path):
    section = mesh_files(tmp_path)
    table = tmp_path / "loads.csv"
    rows = table.read_text()
    table.write_text(rows.replace("meshes/a.vtu", "a.vtu"))
    refused(tmp_path, section, "loads.csv", "no row for", "a.vtu")
    table.write_text(rows.replace("meshes/a.vtu", "meshes/b.vtu"))
    refused(tmp_path, section, "loads.csv", "two rows for", "b.vtu")
    table.write_text(rows.replace("file", "name"))
    refused(tmp_path, section, "loads.csv", "no column 'file'")
    table.write_text(rows.replace("2.5", ""))
    refused(tmp_path, section, "b.vtu", "NaN or infinity in 'stiffness'")
    table.write_text(rows.replace("2.5", "soft"))
    refused(tmp_path, section, "'stiffness' does not hold numbers")
    table.unlink()
    refused(tmp_path, section, "loads.csv", "cannot be read as a CSV")
    with pytest.raises(InputError, match="needs a table"):
        validate(MeshSource, {**section, "table": None}, "run.yaml")


def test_all_files_have_the_same_features(tmp_path):
    section = mesh_files(tmp_path)
    mesh = plate(3, 2, "triangle")
    mesh.point_data["flux"] = mesh.point_data["flux"][:, :2]
    mesh.write(tmp_path / "meshes" / "b.vtu")
    refused(
        tmp_path,
        {**section, "targets": {"stiffness": {"level": "graph", "unit": ""}}},
        "b.vtu",
        "flux_0, flux_1",
        "first graph has",
    )
