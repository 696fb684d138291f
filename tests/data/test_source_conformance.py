"""What every source that brings graphs or node features of its own does."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import ase
import numpy as np
import pytest
import torch
from graph_source_cases import (
    CUTOFF,
    FILES,
    PYG,
    SOURCES,
    cfg_files,
    mesh_files,
    pyg_graph,
    source,
    voronoi_files,
)

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import atoms_to_graph
from hydragnn_flow.data.columns import pack
from hydragnn_flow.data.sources import fingerprint, open_source
from hydragnn_flow.data.sources.base import Part
from hydragnn_flow.errors import InputError

KEYS = set(atoms_to_graph(ase.Atoms("H"), CUTOFF, None).keys()) | {"y", "y_loc"}


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
    house = atoms_to_graph(ase.Atoms("H2", [[0, 0, 0], [0, 0, 1]]), CUTOFF, None)
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
