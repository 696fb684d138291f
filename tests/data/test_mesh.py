"""Meshes: their edges, what is read and what is refused."""

import sys

import meshio
import numpy as np
import pytest
from graph_source_cases import graphs, mesh_files, plate, refused, source
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.data.sources.mesh import element_edges

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


def write_mesh(folder, cells, points=CORNERS, **changes):
    """Write a mesh, of whose points some may be in no element; its section."""
    values = np.arange(float(len(points)))
    meshio.Mesh(points, cells, point_data={"t": values}).write(folder / "a.vtu")
    return {**MESH, "loose_points": "drop", **changes}


@pytest.mark.parametrize("kind", ELEMENTS)
def test_elements(tmp_path, kind):
    points, n_edges, length = ELEMENTS[kind]
    rng = np.random.default_rng(0)
    section = write_mesh(tmp_path, [(kind, [points])], np.vstack([CORNERS, rng.random((12, 3))]))
    (graph,) = graphs(source(tmp_path, **section))
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
    edges, shared_by, members = element_edges(cells, None)
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
    again = element_edges([(kind, np.array(rows))], None)
    for one, other in zip(again, (edges, shared_by, members), strict=True):
        assert np.array_equal(one, other)


def test_edges_of_elements_are_never_sought_among_neighbours(tmp_path, monkeypatch):
    """All within the longest edge of a graded mesh may be more than memory holds."""
    found = source(tmp_path, **mesh_files(tmp_path))
    record = next(record for chunk in found.chunks() for record in found.read(chunk))
    monkeypatch.delattr("hydragnn_flow.data.graphs.neighbour_list")
    graph = record.graph(100.0, None)
    assert record.has_own_edges(graph, 100.0, None)
    assert record.truncation(graph, 100.0, None).atoms == 0


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
    section = write_mesh(tmp_path, mixed, mesh.points)
    for elements, n_edges, shared in (
        ({}, 16, {1.0, 2.0}),
        ({"elements": ["line"]}, 2, {1.0}),
        ({"elements": ["line", "triangle"]}, 16, {1.0, 2.0}),
    ):
        (graph,) = graphs(source(tmp_path, **section, **elements))
        assert set(graph.edge_attr[:, 1].tolist()) == shared
        assert graph.edge_index.shape == (2, 2 * n_edges)


def test_a_quad_that_is_a_triangle(tmp_path):
    section = write_mesh(tmp_path, [("quad", [[0, 1, 2, 2], [0, 2, 3, 3]])])
    (graph,) = graphs(source(tmp_path, **section))
    assert graph.edge_index.shape == (2, 2 * 5)
    assert sorted(graph.edge_attr[:, 1].tolist()) == [1.0] * 8 + [2.0] * 2


@pytest.mark.parametrize(
    ("name", "reason"),
    [("a.off", "Expected the first line to be `OFF`."), ("a.vtu", "as vtu"), ("a.txt", "format")],
)
def test_what_meshio_says_is_told_once(tmp_path, capfd, name, reason):
    (tmp_path / name).write_text("<no mesh>\n")
    refused(tmp_path, {**MESH, "train": name}, name, "cannot be read", reason)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("cells", "changes", "said"),
    [
        (("triangle", [[0, 1, 3]]), {"loose_points": "refuse"}, "5 point(s) are in no element"),
        (("triangle", [[0, 1, 3]]), {"elements": ["tetra"]}, "has no tetra"),
        (("vertex", [[0]]), {}, "has no line, triangle"),
        (("triangle", [[2, 2, 2]]), {}, "no edges"),
        (("triangle", [[0, 1, -1]]), {}, "points it does not have, of 8"),
        (("triangle", [[0, 1, 8]]), {}, "points it does not have, of 8"),
        (("VTK_LAGRANGE_TRIANGLE", [[0, 1, 3]]), {}, "'VTK_LAGRANGE_TRIANGLE'"),
    ],
)
def test_mesh_refuses(tmp_path, cells, changes, said):
    refused(tmp_path, write_mesh(tmp_path, [cells], **changes), "a.vtu", said)


def test_mesh_refuses_tables(tmp_path):
    section = mesh_files(tmp_path)
    table = tmp_path / "loads.csv"
    rows = table.read_text()
    for old, new, *words in (
        ("meshes/a.vtu", "a.vtu", "loads.csv", "no row for"),
        ("meshes/a.vtu", "meshes/b.vtu", "loads.csv", "two rows for"),
        ("file", "name", "loads.csv", "no column 'file'"),
        ("2.5", "", "b.vtu", "empty label 'stiffness'"),
    ):
        table.write_text(rows.replace(old, new))
        refused(tmp_path, section, *words)
    table.unlink()
    refused(tmp_path, section, "loads.csv", "cannot be read as a table")


def test_the_library_is_asked_for_when_it_is_needed(tmp_path, monkeypatch):
    section = mesh_files(tmp_path)
    monkeypatch.setitem(sys.modules, "meshio", None)
    refused(tmp_path, section, "format: mesh needs meshio", 'pip install "hydragnn_flow[mesh]"')
