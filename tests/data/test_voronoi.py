"""Voronoi cells of points: their geometry, what is read and what is refused."""

import numpy as np
import pytest
from graph_source_cases import graphs, refused, source, voronoi_files
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.data.tessellation import tessellate


def cubic(*repeats, basis):
    corners = np.stack(np.meshgrid(*map(np.arange, repeats), indexing="ij"), -1)
    return (corners.reshape(-1, 1, len(repeats)) + np.array(basis)).reshape(-1, len(repeats))


HEXAGONAL = cubic(3, 3, basis=[[0, 0], [0.5, 0.5]]) * [1, 3**0.5]
BCC = [[0, 0, 0], [0.5] * 3]
FCC = [[0, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]]
# Lattice: points, box, cell size, and how many facets of which size a cell has.
LATTICES = {
    "square": (cubic(3, 4, basis=[[0.5, 0.5]]), [3, 4], 1.0, {1.0: 4}),
    "cubic": (cubic(3, 3, 4, basis=[[0.5] * 3]), [3, 3, 4], 1.0, {1.0: 6}),
    "hexagonal": (HEXAGONAL, [3, 3 * 3**0.5], 3**0.5 / 2, {3**-0.5: 6}),
    "bcc": (cubic(2, 2, 2, basis=BCC), [2, 2, 2], 0.5, {3**1.5 / 16: 8, 0.125: 6}),
    "fcc": (cubic(2, 2, 2, basis=FCC), [2, 2, 2], 0.25, {2**0.5 / 8: 12}),
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


@st.composite
def point_sets(draw):
    """Points in a box, the box, which of its directions are periodic, and more random numbers."""
    d, n = draw(st.sampled_from([2, 3])), draw(st.integers(1, 25))
    periodic = draw(st.lists(st.booleans(), min_size=d, max_size=d))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    low = rng.normal(scale=10, size=d)
    length = rng.uniform(0.5, 4.0, size=d)
    points = low + length * rng.uniform(0.01, 0.99, size=(n, d))
    return points, np.stack([low, low + length], axis=1), np.array(periodic), rng


def in_order(rows):
    return rows[np.lexsort(np.round(rows, 6).T[::-1])]


def edges_of(cells, points):
    """Sender, receiver, vector and area of each edge, in an order of their own."""
    vectors = points[cells.receivers] - points[cells.senders] + cells.shifts
    return in_order(np.column_stack([cells.senders, cells.receivers, vectors, cells.areas]))


@settings(deadline=None, max_examples=25)
@given(point_sets())
def test_cells_fill_the_box_and_share_facets(drawn):
    points, box, periodic, rng = drawn
    cells = tessellate(points, box, periodic)
    assert cells.volumes.sum() == pytest.approx(np.prod(box[:, 1] - box[:, 0]))
    rows = edges_of(cells, points)
    d = len(box)
    lengths = np.linalg.norm(rows[:, 2 : 2 + d], axis=1)
    assert np.sort(lengths) == pytest.approx(np.sort(cells.distances))
    back = np.column_stack([rows[:, 1], rows[:, 0], -rows[:, 2 : 2 + d], rows[:, -1]])
    assert in_order(back) == pytest.approx(rows, abs=1e-7)

    order = rng.permutation(len(points))
    shuffled = tessellate(points[order], box, periodic)
    assert shuffled.volumes == pytest.approx(cells.volumes[order])
    renumbered = edges_of(shuffled, points[order])
    renumbered[:, :2] = order[renumbered[:, :2].astype(int)]
    assert in_order(renumbered) == pytest.approx(rows, abs=1e-7)

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
    points, places = rng.random((12, d)), rng.random((10_000, d))
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
    targets = {"radius": {"level": "node", "unit": "µm", "key": "size"}}
    section = {"format": "voronoi", "train": "a.csv", "features": ["size"], "targets": targets}
    section["box"] = [[0, 2], [0, 1], [0, 2]]
    (graph,) = graphs(source(tmp_path, **section))
    assert graph.x.tolist() == [[7, 2], [8, 2]]
    assert graph.edge_index.tolist() == [[1, 0], [0, 1]]
    assert graph.edge_attr.tolist() == [[1, 2], [1, 2]]
    assert graph.radius.tolist() == [[7], [8]]
    for text, said in (
        ("x, y\n0.5, north\n", "'y' does not hold numbers"),
        ("x, z\n0.5, 1\n", "no 'y' (it has: x, z)"),
        ("x, y\n", "cannot be read"),
    ):
        (tmp_path / "a.csv").write_text(text)
        refused(tmp_path, {**section, "features": []}, "a.csv", said)


@pytest.mark.parametrize(
    ("arrays", "changes", "reason"),
    [
        ({"points": [[0.5, 0.5], [0.5, 0.5]]}, {}, "has no cell of its own: another"),
        ({"points": [[0.5, 0.5], [0.5, 0.0]]}, {}, "point 1 is on or outside a wall"),
        ({"points": [[0.5] * 4]}, {}, "points has the shape [1, 4]"),
        ({"points": np.zeros((0, 2))}, {}, "points has the shape [0, 2]"),
        ({"points": [[0.5, 0.5]]}, {"periodic": ["z"]}, "data.source.periodic names z"),
        ({"points": [[0.5, 0.5]]}, {"box": None}, "no 'box'"),
        ({"points": [[0.5] * 3]}, {}, "each of the 3 directions"),
        ({"points": [[0.5, 0.5]], "box": [[1, 0], [0, 1]]}, {"box": None}, "the box is not"),
        ({"points": [[0.5, 0.5]], "load": [[None]]}, {}, "cannot be read"),
        ({"load": [1.0]}, {}, "no 'points'"),
    ],
)
def test_voronoi_refuses(tmp_path, arrays, changes, reason):
    np.savez(tmp_path / "a.npz", **{"load": np.ones(len(arrays.get("points", []))), **arrays})
    targets = {"load": {"level": "node", "unit": "N"}}
    section = {"format": "voronoi", "train": "a.npz", "box": [[0, 1]] * 2, "targets": targets}
    refused(tmp_path, section | changes, "a.npz", reason)
