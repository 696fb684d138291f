"""Layouts of data sets that people have: `init` finds them, and they are read rightly."""

import copy
import json
import sys

import ase.io
import numpy as np
import pytest
import yaml
from console_cases import Console
from layout_cases import CASES, crystals, write_pwscf
from source_cases import config

from hydragnn_flow import load_config
from hydragnn_flow.campaign.setup.first_config import first_config, write_config
from hydragnn_flow.data import prepare_store
from hydragnn_flow.data.looking import look
from hydragnn_flow.data.sources.opening import open_source
from hydragnn_flow.errors import InputError


def first(name, folder):
    """What `init` writes for a layout, and the structures in it, as far as they are in order."""
    case = CASES[name]
    if case.needs:
        pytest.importorskip(case.needs)
    made = crystals(60, pbc=case.periodic)
    folder = folder / "data"
    folder.mkdir()
    case.write(folder, copy.deepcopy(made))
    config = first_config(look(folder), "first", folder.parent, 1)
    return load_config(write_config(config, folder.parent)[0]), config.targets, made


@pytest.mark.parametrize("name", CASES)
def test_a_layout_is_found_and_read(name, tmp_path):
    config, targets, made = first(name, tmp_path)
    assert ", ".join(f"{one.name} {one.unit}" for one in targets) == CASES[name].targets
    source = open_source(config.data, 0)
    read = [record for chunk in source.chunks() for record in source.read(chunk)]
    assert len(read) == 60
    assert read[0].id == {"JARVIS": "JVASP-0", "MPtrj": "mp-0-0-0"}.get(name, read[0].id)
    true = {atoms.get_potential_energy(): atoms for atoms in made}
    name_of_energy = targets[0].name
    for record in read:
        (energy,) = record.targets[name_of_energy]
        (key,) = (value for value in true if abs(value - energy) < 1e-9)
        atoms = true.pop(key)
        assert (record.atoms.numbers == atoms.numbers).all()
        assert record.atoms.get_all_distances(mic=True) == pytest.approx(
            atoms.get_all_distances(mic=True), abs=1e-4
        )
        assert (record.atoms.pbc == atoms.pbc).all()
        if "forces" in record.targets:
            np.testing.assert_allclose(record.targets["forces"], atoms.get_forces(), atol=1e-6)
        if "stress" in record.targets:
            stress = record.targets["stress"]
            wanted = atoms.get_stress(voigt=len(stress) == 6).ravel()
            np.testing.assert_allclose(stress, wanted, atol=1e-7)
    manifest = prepare_store(config.data, 5.0, None, 0, tmp_path / "a.gs").manifest
    assert sum(split.graphs for split in manifest.splits.values()) == 60
    assert {name: one.unit for name, one in manifest.targets.items()} == {
        one.name: one.unit for one in targets
    }


def test_arrays_of_an_npz_are_unpacked_once_for_all_chunks(tmp_path, monkeypatch):
    unpacked, get = [], np.lib.npyio.NpzFile.__getitem__
    monkeypatch.setattr(
        np.lib.npyio.NpzFile,
        "__getitem__",
        lambda self, key: unpacked.append(key) or get(self, key),
    )
    arrays = {"R": np.arange(3600.0).reshape(600, 2, 3), "E": np.arange(600.0), "left": np.zeros(3)}
    np.savez(tmp_path / "a.npz", z=[1, 1], **arrays)
    section = {"format": "ase", "train": "a.npz", "targets": {"energy": "kcal/mol"}}
    source = open_source(config(tmp_path, **section), 0)
    read = [record for chunk in source.chunks() for record in source.read(chunk)]
    assert [float(one.targets["energy"][0]) for one in read] == arrays["E"].tolist()
    assert sorted(unpacked) == ["E", "R", "z"]


def test_origins_count_steps_that_are_left_out(tmp_path):
    write_pwscf(tmp_path / "pw.out", copy.deepcopy(crystals(30)), unconverged=[0, 1, 7])
    section = {"format": "ase", "train": "pw.out", "targets": {"energy": "eV"}}
    train = prepare_store(config(tmp_path, **section), 5.0, None, 0, tmp_path / "a")["trainset"]
    for graph, frame in zip(train, train.origins_of(np.arange(len(train)))["frame"], strict=True):
        same = ase.io.read(tmp_path / "pw.out", frame).get_potential_energy()
        assert float(graph.energy) == pytest.approx(same)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_layout_is_run(name, tmp_path, monkeypatch, capsys):
    first(name, tmp_path)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "first.yaml"
    values = yaml.safe_load(file.read_text())
    rate = {"Training.Optimizer.learning_rate": {"float": [1e-3, 1e-2], "log": True}}
    values["search"] = {"trials": 2, "min_epochs": 2, "space": rate}
    values["ensemble"] = {"size": 2, "epochs": 3, "coverage": 0.5}
    file.write_text(yaml.safe_dump(values))
    network = json.loads(file.with_suffix(".json").read_text())
    network["NeuralNetwork"]["Training"]["num_epoch"] = 3
    file.with_suffix(".json").write_text(json.dumps(network))
    assert "ensemble of" in Console(tmp_path, monkeypatch, capsys).says("run", file)


def test_what_reads_lmdb_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ase_db_backends.aselmdb", None)  # as if it were missing
    (tmp_path / "a.aselmdb").write_bytes(b"lmdb")
    with pytest.raises(InputError, match=r"a\.aselmdb is read with .*hydragnn_flow\[aselmdb\]"):
        look(tmp_path)
