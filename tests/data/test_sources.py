"""Structures as they were written, the known labels of real data, and what is refused."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import source_cases as cases
from hypothesis import given
from hypothesis import strategies as st
from source_cases import UNITS, config, read_all

from hydragnn_flow.data.sources.file_names import find_files, ranges
from hydragnn_flow.data.sources.opening import fingerprint, open_source

SOURCES = ("emt_alloys", *cases.FORMATS)


@pytest.fixture(params=SOURCES)
def case(request, small_chunks, tmp_path):
    """A configuration in each format, and its structures where they are known."""
    if request.param == "emt_alloys":
        return config(format="emt_alloys", structures=8), {}
    return cases.write_case(request.param, tmp_path)


def test_every_structure_is_as_it_was_written(case):
    values, structures = case
    source = open_source(values, seed=0)
    assert source.found_targets == {}
    chunks = source.chunks()
    assert len(chunks) > len({chunk.file for chunk in chunks})
    read = read_all(source, chunks)
    assert {(name, t.level, t.dim, t.unit) for name, t in source.found_targets.items()} <= {
        ("energy", "graph", 1, "eV"),
        ("forces", "node", 3, "eV/Å"),
    }
    assert "energy" in source.found_targets
    for role, found in read.items():
        assert [structure.index for structure in found] == list(range(len(found)))
        for structure in found:
            assert structure.targets["energy"].shape == (1,)
            assert all(np.isfinite(label).all() for label in structure.targets.values())
            # A calculator left behind would be carried along with every structure.
            assert structure.atoms.calc is None
        for structure, atoms in zip(found, structures.get(role, []), strict=bool(structures)):
            assert structure.group == cases.group(atoms)
            got = structure.atoms
            assert got.get_chemical_symbols() == atoms.get_chemical_symbols()
            assert got.pbc.all()
            assert got.cell.cellpar() == pytest.approx(atoms.cell.cellpar(), abs=1e-5)
            distances = got.get_all_distances(mic=True)
            assert distances == pytest.approx(atoms.get_all_distances(mic=True), abs=1e-4)
            results = atoms.calc.results
            assert structure.targets["energy"] == pytest.approx([results["energy"]], abs=1e-7)
            if "forces" in structure.targets:
                assert structure.targets["forces"] == pytest.approx(results["forces"], abs=1e-7)
                assert got.positions == pytest.approx(atoms.positions, abs=1e-7)


def test_the_fingerprint_is_of_names_and_contents(case, tmp_path):
    values, structures = case
    before = fingerprint(values)
    assert before == fingerprint(values)
    if not structures:
        assert before == {"files": 0, "bytes": 0, "crc32": 0}
        return
    assert before["files"] >= 4
    moved = Path(shutil.copytree(tmp_path, tmp_path / "moved"))
    there = values.model_copy(update={"path": moved})
    assert fingerprint(there) == before
    for file in open_source(there, seed=0).files():
        content = file.read_bytes()
        at = max(0, content.rfind(b"of "))  # a group's name in a table, which stays a table
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert fingerprint(there)["crc32"] != before["crc32"]
        file.write_bytes(content)
    assert fingerprint(there) == before


def test_large_input_is_known_by_its_times(tmp_path, monkeypatch):
    monkeypatch.setattr("hydragnn_flow.data.sources.opening._CONTENT_UP_TO", 10)
    values, _ = cases.write_case("extxyz", tmp_path)
    before = fingerprint(values)
    file = tmp_path / "test.xyz"
    times = file.stat().st_mtime_ns
    file.write_bytes(file.read_bytes()[::-1])
    os.utime(file, ns=(times, times))
    assert fingerprint(values) == before
    os.utime(file, ns=(times, times + 1))
    assert fingerprint(values)["crc32"] != before["crc32"]


@given(n=st.integers(0, 10_000), least=st.integers(1, 300), most=st.integers(1, 70))
def test_ranges_cover_everything_once(n, least, most):
    cuts = ranges(n, least, most)
    assert [i for start, stop in cuts for i in range(start, stop)] == list(range(n))
    assert len(cuts) <= most
    assert all(stop - start >= least for start, stop in cuts[:-1])


# Files


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_files_of_a_name_a_pattern_and_a_directory(tmp_path):
    touch(tmp_path, "run-10/a", "run-2/a", "run-2/b", "run-2/.hidden", "run-2/deep/c", "we[i]rd@1")

    def found(name):
        return [str(file.relative_to(tmp_path)) for file in find_files(name, tmp_path, "key")]

    assert found("run-2/b") == ["run-2/b"]
    assert found("run-2") == ["run-2/a", "run-2/b"]
    assert found("run-*/a") == ["run-2/a", "run-10/a"]
    assert found("**/*") == ["run-2/a", "run-2/b", "run-2/deep/c", "run-10/a", "we[i]rd@1"]
    assert found(str(tmp_path / "run-*" / "a")) == ["run-2/a", "run-10/a"]
    assert found("we[i]rd@1") == ["we[i]rd@1"]
    touch(tmp_path / "data[1]", "a.xyz")
    assert find_files("*.xyz", tmp_path / "data[1]", "key") == [tmp_path / "data[1]" / "a.xyz"]


# Real data


def first_and_last(path, **source):
    """Number of structures of each role, and those of its first and its last chunk."""
    opened = open_source(config(path, **source), seed=0)
    chunks = {}
    for chunk in opened.chunks():
        chunks.setdefault(chunk.role, []).append(chunk)
    counts = {role: of_role[-1].first + of_role[-1].stop for role, of_role in chunks.items()}
    ends = [end for of_role in chunks.values() for end in (of_role[0], of_role[-1])]
    return counts, read_all(opened, ends)


def test_known_labels_of_silicon(shared_data):
    source = {"format": "json", "train": "Si_training.json", "test": "Si_test.json"}
    source |= {"targets": UNITS, "group": "group"}
    found = read_all(open_source(config(shared_data / "mlearn", **source), seed=0))
    assert (len(found["train"]), len(found["test"])) == (214, 25)
    first = found["train"][0]
    assert len(first.atoms) == 63
    assert first.targets["energy"] == pytest.approx([-295.49753016])
    assert set(first.atoms.symbols) == {"Si"}
    assert first.atoms.pbc.all()
    per_atom = [s.targets["energy"][0] / len(s.atoms) for s in found["train"]]
    assert np.mean(per_atom) == pytest.approx(-5.1, abs=0.1)
    assert "Vacancy" in {structure.group for structure in found["train"]}


def test_known_labels_of_acetylacetone(shared_data):
    source = {"format": "ase", "train": "train_300K.xyz", "test": "test_MD_300K.xyz"}
    counts, found = first_and_last(shared_data / "acac", targets=UNITS, **source)
    assert counts == {"train": 500, "test": 650}
    first = found["train"][0]
    assert first.atoms.get_chemical_formula() == "C5H8O2"
    assert not first.atoms.pbc.any()
    assert first.targets["energy"] == pytest.approx([-9391.45554428476], abs=1e-8)
    assert first.targets["forces"][0] == pytest.approx([1.47339228, 1.13796366, 0.06391102])
    assert first.atoms.positions[0] == pytest.approx([0.07874433, 1.40230941, 0.08237721])


def test_known_labels_of_perovskites(shared_data):
    units = {"heat_all": "eV/atom", "gap": {"unit": "eV", "key": "dir_gap"}}
    source = {"format": "csv", "train": "val.csv", "test": "test.csv", "structure": "cif"}
    counts, found = first_and_last(shared_data / "perov_5", targets=units, **source)
    assert counts == {"train": 3787, "test": 3785}
    first = found["train"][0]
    assert first.atoms.get_chemical_formula() == "CdCuN3"
    assert first.atoms.cell.lengths() == pytest.approx([4.27928426] * 3)
    assert first.atoms.positions[0, 0] == pytest.approx(0.00159044 * 4.27928426)
    assert first.targets["heat_all"].tolist() == [2.76]
    assert first.targets["gap"].tolist() == [0.0]
    assert found["test"][0].targets["heat_all"].tolist() == [1.16]
    everything = found["train"] + found["test"]
    assert {len(structure.atoms) for structure in everything} == {5}
    assert len({symbol for s in everything for symbol in s.atoms.symbols}) > 50
