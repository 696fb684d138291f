"""Files of each format that brings graphs or node features of its own, and what reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase
import meshio
import numpy as np
import pytest
import torch
from ase.io.cfg import write_cfg
from hypothesis import HealthCheck, settings
from torch_geometric.data import Data

from hydragnn_flow.config.base import validate
from hydragnn_flow.config.sources import section_class
from hydragnn_flow.data.sources.base import Record
from hydragnn_flow.data.sources.pyg_graphs import graph_of, tensors
from hydragnn_flow.errors import InputError

CUTOFF = 3.0

# hypothesis writes a file for each example into the same temporary folder.
in_one_folder = settings(
    deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def source(folder: Path, **section: Any) -> Any:
    return validate(section_class(section["format"]), section, "run.yaml").open(folder, 0)


def graphs(found: Any, cutoff: float = CUTOFF) -> list[Data]:
    return [record.graph(cutoff, None) for chunk in found.chunks() for record in found.read(chunk)]


def refused(folder: Path, section: dict[str, Any], *words: str) -> None:
    with pytest.raises(InputError) as error:
        graphs(source(folder, **section))
    message = str(error.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


def brought(graph: Data, names: list[str], **nodes: Any) -> Record:
    """The record of a graph that brings edges of its own."""
    found = graph_of(tensors(graph), "x", names, [], "a.pt: graph 0")
    assert found.nodes is not None and found.nodes.edges is not None
    return Record(found.atoms, {}, "a.pt: graph 0", 0, nodes=found.nodes._replace(**nodes))


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
        point_data={"temperature": rng.normal(size=x.size), "flux": rng.normal(size=(x.size, 3))},
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
