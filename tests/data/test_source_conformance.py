"""Guarantees of every source, and of those with graphs or node features of their own."""

import re
import subprocess
import sys

import pytest
from graph_source_cases import CUTOFF, FILES, cfg_files, graphs, mesh_files, source
from in_place_cases import vectors
from source_cases import FORMATS, write_section

from hydragnn_flow.config import DataConfig
from hydragnn_flow.config import sources as config
from hydragnn_flow.data.sources.opening import fingerprint
from hydragnn_flow.errors import InputError
from hydragnn_flow.testing.sources import SourceSuite

HEAVY = ("torch", "torch_geometric", "ase", "scipy", "pandas", "meshio", "adios2", "vesin")


WITH_OWN_NODES = (*FILES, "hydragnn")


def own_nodes(name, written, folder):
    """The section of a format that brings graphs or node features of its own."""
    return {"format": name, "file": str(written)} if name == "hydragnn" else FILES[name](folder)


class TestShipped(SourceSuite):
    """Every format of the package."""

    @pytest.fixture(params=["emt_alloys", *FORMATS, *WITH_OWN_NODES])
    def section(self, request, small_chunks, written, tmp_path):
        if request.param == "emt_alloys":
            return {"format": "emt_alloys", "structures": 8}
        if request.param in FORMATS:
            return write_section(request.param, tmp_path)[0]
        return own_nodes(request.param, written, tmp_path)


def test_every_format_is_tried():
    tried = {section["format"] for section, *_ in FORMATS.values()}
    assert {*tried, *FILES, "emt_alloys", "hydragnn"} == set(config.FORMATS)


def test_sections_import_nothing_heavy():
    """A configuration is checked in a fraction of a second."""
    check = (
        "import sys; from hydragnn_flow.config.sources import FORMATS, section_class\n"
        "for name in FORMATS: section_class(name)\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("name", sorted({*WITH_OWN_NODES} - {"pyg"}))
def test_lengths_are_the_first_edge_feature(name, written, tmp_path):
    for graph in graphs(source(tmp_path, **own_nodes(name, written, tmp_path))):
        lengths = vectors(graph).norm(dim=1).tolist()
        assert graph.edge_attr[:, 0].tolist() == pytest.approx(lengths, rel=1e-5)


@pytest.mark.parametrize("name", ["pyg", "voronoi", "mesh", "hydragnn"])
def test_edges_longer_than_the_radius_are_refused(name, written, tmp_path, same):
    found = source(tmp_path, **own_nodes(name, written, tmp_path))
    for chunk in found.chunks():
        for record in found.read(chunk):
            graph = record.graph(CUTOFF, None)
            longest = max(vectors(graph).double().norm(dim=1).tolist(), default=0.0)
            assert same(record.graph(longest, None), graph)
            if longest:
                with pytest.raises(InputError) as error:
                    record.graph(0.99 * longest, None)
                said = re.fullmatch(
                    r"(.*) has an edge of length (\S+), .*radius = (\S+); .* \((\S+) or more\), .*",
                    str(error.value),
                )
                assert said is not None and said[1] == record.origin
                numbers = [longest, 0.99 * longest, longest]
                assert [*map(float, said.groups()[1:])] == pytest.approx(numbers, rel=1e-5)


def test_a_missing_file_is_named_for_what_it_is_for(tmp_path):
    for files, missing, said in (
        (cfg_files, "0.bulk", "0.cfg: structure 0 cannot be read"),
        (mesh_files, "loads.csv", "cannot be read as a table"),
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
