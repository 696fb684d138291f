"""Graphs and stores the tests of the data room share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import ase
import numpy as np
import pytest
from numpy.typing import NDArray
from torch_geometric.data import Data

from hydragnn_flow.data import GraphStore, atoms_to_graph, write_store
from hydragnn_flow.data.preparing import prepare as preparing
from hydragnn_flow.data.reading import node_cache
from hydragnn_flow.data.sources import emt_alloys
from hydragnn_flow.data.sources.file_names import ranges

CUTOFF = 3.0


def make_structure(seed: int, n_atoms: int | None = None) -> ase.Atoms:
    """A random structure: any periodicity, any number of atoms from one, crowded or isolated."""
    rng = np.random.default_rng(seed)
    n_atoms = int(rng.integers(1, 9)) if n_atoms is None else n_atoms
    cell = np.eye(3) * rng.uniform(2.5, 6.0) + rng.normal(scale=0.3, size=(3, 3))
    return ase.Atoms(
        numbers=rng.choice([1, 6, 29, 79], size=n_atoms),
        positions=rng.uniform(-6.0, 6.0, size=(n_atoms, 3)),
        cell=cell,
        pbc=rng.random(3) < 0.6,
    )


def make_graph(seed: int, n_atoms: int | None = None) -> Data:
    """The graph of a random structure, with random labels."""
    atoms = make_structure(seed, n_atoms)
    rng = np.random.default_rng([seed, 1])
    targets = {"energy": rng.normal(size=1), "forces": rng.normal(size=(len(atoms), 3))}
    return atoms_to_graph(atoms, CUTOFF, None, graph_id=seed, targets=targets)


def same_graph(left: Data, right: Data, ignore: tuple[str, ...] = ()) -> bool:
    a = {key: value for key, value in left.to_dict().items() if key not in ignore}
    b = {key: value for key, value in right.to_dict().items() if key not in ignore}
    return a.keys() == b.keys() and all(
        a[key].dtype == b[key].dtype and a[key].shape == b[key].shape and (a[key] == b[key]).all()
        for key in a
    )


@pytest.fixture(scope="session")
def structure() -> Callable[..., ase.Atoms]:
    return make_structure


@pytest.fixture(scope="session")
def graph() -> Callable[..., Data]:
    return make_graph


@pytest.fixture(scope="session")
def same() -> Callable[..., bool]:
    return same_graph


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 12 + 3 + 4 graphs; not to be changed."""
    path = tmp_path_factory.mktemp("store") / "alloys"
    splits = {
        "trainset": [make_graph(seed) for seed in range(12)],
        "valset": [make_graph(seed) for seed in range(12, 15)],
        "testset": [make_graph(seed) for seed in range(15, 19)],
    }
    write_store(path, splits, units={"energy": "eV", "forces": "eV/Å"}, cutoff=CUTOFF)
    return path


@pytest.fixture
def copied(written: Path, tmp_path: Path) -> Path:
    """A copy of that store, to damage."""
    return Path(shutil.copytree(written, tmp_path / "store"))


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of three structures, so that small files are cut."""
    for name in ("ase_files", "csv_tables", "json_records", "pyg"):
        monkeypatch.setattr(
            f"hydragnn_flow.data.sources.{name}.cut", lambda n, most=64: ranges(n, 3, most)
        )
    monkeypatch.setattr("hydragnn_flow.data.sources.emt_alloys._PER_CHUNK", 3)


@pytest.fixture
def no_adios2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the test fail when ADIOS2 opens anything for an index or for graphs."""

    def refuse(*_: object) -> None:
        pytest.fail("ADIOS2 opened a file that had not been verified")

    monkeypatch.setattr("hydragnn_flow.data.reading.shard_file.Bp5File", refuse)
    monkeypatch.setattr("hydragnn_flow.data.hydragnn_bp.manifests.Bp5File", refuse)


@pytest.fixture
def store(written: Path) -> GraphStore:
    return GraphStore.open(written)


@pytest.fixture
def ram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of the test's own in the place of /dev/shm."""
    place = tmp_path / "ram"
    place.mkdir()
    monkeypatch.setattr(node_cache, "_RAM", place)
    return place


@pytest.fixture(scope="module")
def many_tasks() -> Iterator[None]:
    """A preparation has tasks of eight structures, and workers run them, however few they are.

    Labels of a generated structure are computed once for all tests.
    """
    known: dict[bytes, dict[str, NDArray[np.float64]]] = {}
    compute = emt_alloys._label

    def label(atoms: ase.Atoms) -> dict[str, NDArray[np.float64]]:
        key = atoms.numbers.tobytes() + atoms.positions.tobytes()
        if key not in known:
            known[key] = compute(atoms)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparing, "_FEW", 0)
        patch.setattr(preparing, "_FEWEST", 8)
        patch.setattr(emt_alloys, "_PER_CHUNK", 8)
        patch.setattr(emt_alloys, "_label", label)
        yield
