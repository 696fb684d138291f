"""Conformance suite for data sources, shipped or a user's own.

Subclass :class:`SourceSuite`, write a few files of the format, and return the section that reads
them::

    import pytest
    from hydragnn_flow.testing.sources import SourceSuite

    class TestMine(SourceSuite):
        @pytest.fixture
        def section(self, tmp_path):
            (tmp_path / "a.toy").write_text("...", encoding="utf-8")
            return {"format": "my_package.my_module:MySource", "train": "*.toy", "targets": {...}}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, ClassVar

import ase
import numpy as np
import pytest
from torch_geometric.data import Data

from hydragnn_flow.config import DataConfig
from hydragnn_flow.config.sources import Role, source_section
from hydragnn_flow.data import atoms_to_graph
from hydragnn_flow.data.columns import Column, pack
from hydragnn_flow.data.sources.base import Chunk, Record, Source
from hydragnn_flow.data.sources.opening import fingerprint, open_source

_TARGETS = {"energy": np.zeros(1), "forces": np.zeros((2, 3))}


class SourceSuite:
    """Conformance tests of one data source; a subclass overrides the fixture `section`."""

    cutoff: ClassVar[float] = 3.0
    """Radius of the network; the source's own edges, if any, must not be longer."""

    @pytest.fixture
    def section(self, tmp_path: Path) -> dict[str, Any]:
        """Write example files to ``tmp_path`` and return the section `data.source` that reads them.

        File names in the section are relative to ``tmp_path``.
        """
        raise NotImplementedError("override the fixture section")

    @pytest.fixture
    def source_config(self, section: dict[str, Any], tmp_path: Path) -> DataConfig:
        """Return a configuration with ``section`` as its source.

        If the section names no test set, a tenth of the data is the test set.
        """
        source = source_section(section)
        split = {} if "test" in source.roles else {"test": 0.1}
        return DataConfig.model_validate({"source": source, "split": split, "path": tmp_path})

    def test_the_configuration_survives_json(self, source_config: DataConfig) -> None:
        """Check that the configuration survives conversion to JSON and back.

        Tasks receive the configuration as JSON, and run.yaml stores it in the same form.
        """
        again = DataConfig.model_validate(json.loads(source_config.model_dump_json()))
        assert again == source_config

    def test_files_are_there(self, source_config: DataConfig) -> None:
        """Check that the source's files exist, and that its fingerprint counts all of them."""
        source_config.check_files()
        files = open_source(source_config, 0).files()
        assert all(file.is_file() for file in files)
        assert fingerprint(source_config)["files"] == len(files)

    def test_chunks_cover_everything_once(self, source_config: DataConfig) -> None:
        """Check that chunks (ranges of a file's structures) cover each file once and in order.

        Chunks survive JSON, and training data come first.
        """
        chunks = open_source(source_config, 0).chunks()
        assert [Chunk(**json.loads(json.dumps(asdict(chunk)))) for chunk in chunks] == chunks
        roles = [role for role, _ in groupby(chunks, key=lambda chunk: chunk.role)]
        assert roles == list(source_config.data_sets[0].source.roles)
        for role in roles:
            first = 0
            of_role = [chunk for chunk in chunks if chunk.role == role]
            for _, of_file in groupby(of_role, key=lambda chunk: chunk.file):
                here = list(of_file)
                assert {chunk.first for chunk in here} == {first}
                assert here[0].start == 0
                assert all(chunk.start < chunk.stop for chunk in here)
                assert all(one.stop == two.start for one, two in pairwise(here))
                first += here[-1].stop

    def test_a_chunk_read_alone_gives_the_same(self, source_config: DataConfig) -> None:
        """Check that a chunk (range of a file) read alone has the records that it has among others.

        Many processes read some chunks each; each gets what a single process would get.
        """
        together = open_source(source_config, 0)
        chunks = together.chunks()
        whole = [list(together.read(chunk)) for chunk in chunks]
        for chunk, records in reversed([*zip(chunks, whole, strict=True)]):
            alone = list(open_source(source_config, 0).read(chunk))
            self._same(alone, records)
            assert len(records) == chunk.stop - chunk.start

    def test_any_range_of_a_chunk_can_be_read(self, source_config: DataConfig) -> None:
        """Check that any range of the records of a chunk can be read alone and repeatedly.

        Records are numbered from ``first`` of the chunk on, as those of other data sets may come
        before.
        """
        source = open_source(source_config, 0)
        for chunk in source.chunks()[:3]:
            records = list(source.read(chunk))
            first, n = chunk.start, len(records)
            for start, stop in {(0, 1), (n - 1, n), (n // 3, n // 3 + 1), (n // 2, n)}:
                some = list(source.read(replace(chunk, start=first + start, stop=first + stop)))
                self._same(some, records[start:stop])
            (later,) = source.read(replace(chunk, stop=first + 1, first=chunk.first + 100))
            assert later.index == records[0].index + 100

    def test_records_say_what_they_are(self, source_config: DataConfig) -> None:
        """Check that a record's index, origin, targets and features agree with its source."""
        source = open_source(source_config, 0)
        counted: dict[Role, int] = {}
        for chunk, record, graph in self._graphs(source):
            assert record.index == int(graph.graph_id) == counted.get(chunk.role, 0)
            counted[chunk.role] = record.index + 1
            assert (record.file or chunk.file) in record.origin
            assert (record.group is not None) == source_config.data_sets[0].source.has_groups
            assert graph.x.shape[1] == len(source.node_features)
            for name, target in source.found_targets.items():
                rows = graph.num_nodes if target.level == "node" else 1
                assert graph[name].numel() == rows * target.dim
        assert counted
        levels = source_config.target_levels or {}
        found = {name: target.level for name, target in source.found_targets.items()}
        assert found.keys() >= levels.keys()
        assert all(level in (None, found[name]) for name, level in levels.items())

    def test_graphs_have_the_layout_of_a_store(self, source_config: DataConfig) -> None:
        """Check that graphs have the layout and data types of a store.

        They are finite, and no edge is longer than the cutoff.
        """
        source = open_source(source_config, 0)
        read = list(self._graphs(source))
        columns = pack([graph for *_, graph in read], [record.origin for _, record, _ in read])
        usual = pack([_any_graph()], ["usual"])
        missing = usual.keys() - {"energy", "forces"} - columns.keys()
        assert not missing
        for key, column in columns.items():
            if key in usual and key not in _TARGETS:
                assert column.values.dtype == usual[key].values.dtype, key
        for name, target in source.found_targets.items():
            expected = "float64" if target.level == "graph" else "float32"
            assert columns[name].values.dtype == expected, name
        assert (_lengths(columns) <= self.cutoff * (1 + 1e-4)).all()  # in float32

    def _graphs(self, source: Source) -> Iterator[tuple[Chunk, Record, Data]]:
        for chunk in source.chunks():
            for record in source.read(chunk):
                yield chunk, record, record.graph(self.cutoff, None)

    def _same(self, one: Sequence[Record], two: Sequence[Record]) -> None:
        for a, b in zip(one, two, strict=True):
            assert (a.origin, a.index, a.group) == (b.origin, b.index, b.group)
            left, right = (record.graph(self.cutoff, None).to_dict() for record in (a, b))
            assert left.keys() == right.keys()
            assert all((left[key] == right[key]).all() for key in left)


def _any_graph() -> Data:
    return atoms_to_graph(ase.Atoms("H2", [[0, 0, 0], [0, 0, 1]]), 3.0, None, 0, _TARGETS)


def _lengths(columns: dict[str, Column]) -> Any:
    offsets = np.repeat(columns["x"].starts(), columns["edge_index"].counts)
    vectors = np.diff(columns["pos"].values[columns["edge_index"].values + offsets], axis=0)[0]
    return np.linalg.norm(vectors + columns["edge_shifts"].values, axis=1)
