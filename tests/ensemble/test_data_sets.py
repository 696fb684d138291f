"""An ensemble of several data sets: predictions say, or are told, whose branch they come from."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pandas as pd
import pytest
from ase.build import bulk
from data_set_cases import CUTOFF, FAR, PLAIN, branches, two_level_store
from ensemble_cases import untrained_ensemble
from segment_cases import network_with

from hydragnn_flow.data import write_store
from hydragnn_flow.ensemble import Ensemble, EnsembleCalculator, evaluate, recalibrate
from hydragnn_flow.errors import InputError
from hydragnn_flow.report.errors import data_sets_frame

NETWORK = network_with(Architecture__output_heads={"node": branches()})
COPPER = bulk("Cu", cubic=True)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return two_level_store(tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def run(store, tmp_path_factory):
    return untrained_ensemble(tmp_path_factory.mktemp("runs") / "run", store, network=NETWORK)


def of_data_set(ensemble, name):
    return ensemble.calibrations["energy"].by_data_set[name]


def test_structures_are_predicted_at_the_level_that_is_asked_for(run):
    ensemble = Ensemble.load(run)
    near, far = (ensemble.of_data_set(name).predict([COPPER]).graphs for name in (PLAIN, FAR))
    assert near["data_set"].tolist() == [PLAIN]
    assert far["data_set"].tolist() == [FAR]
    shift = (near["energy_mean"] - far["energy_mean"]).item() / len(COPPER)
    assert shift == pytest.approx(1000 + 29, abs=5)
    energies = []
    for name in (PLAIN, FAR):
        atoms = COPPER.copy()
        atoms.calc = EnsembleCalculator(Ensemble.load(run, data_set=name))
        energies.append(atoms.get_potential_energy())
    expected = [table["energy_mean"].item() for table in (near, far)]
    assert energies == pytest.approx(expected, rel=1e-9)


def test_a_level_is_never_guessed(run):
    ensemble = Ensemble.load(run)
    for ask in (lambda: ensemble.predict([COPPER]), lambda: EnsembleCalculator(ensemble)):
        with pytest.raises(InputError, match=r"several data sets, plain, far.*--data-set"):
            ask()
    with pytest.raises(InputError, match=r"no branch of a data set 'fer'.* are plain, far"):
        ensemble.of_data_set("fer")


def test_graphs_of_a_store_say_theirs(run, store):
    """Nobody has to name it, and it makes no difference if somebody does."""
    ensemble = Ensemble.load(run)
    table = ensemble.predict(store, split="testset").graphs
    branch = store["testset"].branch
    assert table["data_set"].tolist() == [(PLAIN, FAR)[number] for number in branch]
    assert table["energy_error"].abs().max() < 100
    told = ensemble.of_data_set(FAR).predict(store, split="testset").graphs
    pd.testing.assert_frame_equal(table, told)


def test_numbers_of_another_list_of_data_sets_do_not_count(run, store, tmp_path):
    """A file's own numbers mean another list: somebody has to name the data set."""
    graphs = [store["testset"][i] for i in range(len(store["testset"]))]
    targets = store.manifest.targets
    other = write_store(tmp_path / "other", {"trainset": graphs}, targets=targets, cutoff=CUTOFF)
    with pytest.raises(InputError, match=r"other: .* several data sets, plain, far, .*--data-set"):
        Ensemble.load(run).predict(other)
    table = Ensemble.load(run, data_set=FAR).predict(other).graphs
    assert set(table["data_set"]) == {FAR}
    branch = store["testset"].branch
    assert (table["energy_error"][branch == 1].abs() < 100).all()
    assert (table["energy_error"][branch == 0].abs() > 5000).all()


def test_each_data_set_has_error_bars_of_its_own(run, store):
    ensemble = Ensemble.load(run)
    found = ensemble.calibrations["energy"].by_data_set
    assert found.keys() == {PLAIN, FAR} and found[FAR].structures == 6
    table = ensemble.predict(store, split="testset").graphs
    assert (table["energy_hi"] > table["energy_lo"]).all()
    plain, far = (ensemble.of_data_set(name).predict([COPPER]).graphs for name in (PLAIN, FAR))
    widths = [(one["energy_hi"] - one["energy_lo"]).item() for one in (plain, far)]
    assert widths[0] != pytest.approx(widths[1])
    high = ensemble.at(0.83)  # which needs as many as the data sets have
    assert FAR in high.calibrations["energy"].by_data_set


def test_the_summary_tells_of_each_data_set(run, store):
    summary = json.loads((run / "ensemble" / "ensemble.json").read_text())
    found = summary["data_sets"]
    table = pd.read_parquet(run / "predictions" / "test.parquet")
    atoms = store["testset"].n_atoms
    files = [Path(file).name for file in table["file"]]
    assert files == [("", "far.extxyz")[branch] for branch in store["testset"].branch]
    for name in (PLAIN, FAR):
        rows = (table["data_set"] == name).to_numpy()
        mae = 1000 * np.mean(np.abs(table["energy_error"][rows]) / atoms[rows])
        told = found[name]["energy per atom"]
        assert told["mae"]["ensemble"]["value"] == pytest.approx(mae)
        inside = (table["energy"] >= table["energy_lo"]) & (table["energy"] <= table["energy_hi"])
        assert told["coverage"] == pytest.approx(inside[rows].mean())
    table = data_sets_frame(summary)
    assert list(table["data set"]) == [PLAIN, FAR, "mean of the data sets"]


def test_recalibration_on_one_data_set_leaves_the_other(run, store, tmp_path):
    other = shutil.copytree(run, tmp_path / "run")
    before = Ensemble.load(other)
    recalibrate(other, store, split="testset", data_set=FAR)
    one = Ensemble.load(other)
    assert of_data_set(one, PLAIN) == of_data_set(before, PLAIN)
    assert of_data_set(one, FAR).structures == 6  # of 14 in the split
    recalibrate(other, store, split="testset")
    after = Ensemble.load(other)
    assert of_data_set(after, FAR) != of_data_set(before, FAR)
    frames = [COPPER.copy() for _ in range(8)]
    rng = np.random.default_rng(0)
    for frame in frames:
        frame.rattle(0.1, rng=rng)
        frame.info["energy"] = -1029.0 * len(frame) + rng.normal()
    recalibrate(other, frames, data_set=FAR, keys={"energy": "energy"})
    again = Ensemble.load(other)
    assert of_data_set(again, PLAIN) == of_data_set(after, PLAIN)
    for name, one in after.calibrations.items():
        assert replace(again.calibrations[name], by_data_set=one.by_data_set) == one
    assert of_data_set(again, FAR).structures == 8
    measured = evaluate(again.of_data_set(FAR), frames, keys={"energy": "energy"})
    assert measured["energy"].structures == 8


def test_the_command_takes_and_names_data_sets(run, tmp_path, flow):
    ase.io.write(tmp_path / "cu.extxyz", COPPER)
    asked = ["predict", run, tmp_path / "cu.extxyz", "-o", tmp_path / "out.csv"]
    assert flow(*asked)[0] == 2
    assert flow(*asked, "--data-set", FAR)[0] == 0
    assert pd.read_csv(tmp_path / "out.csv")["data_set"].tolist() == [FAR]
