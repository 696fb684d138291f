"""Calibration on a user's own labelled data: whole or not at all, and from then on what counts."""

import json
import shutil

import console_cases
import numpy as np
import pytest
from ase.io import write
from ensemble_cases import untrained_ensemble

from hydragnn_flow import Ensemble, InputError
from hydragnn_flow.ensemble import recalibrate
from hydragnn_flow.ensemble.ensemble import export_ensemble
from hydragnn_flow.ensemble.uncertainty.calibration import FILE
from hydragnn_flow.report.html import model_card


@pytest.fixture
def run(run, tmp_path):
    """A copy to calibrate."""
    return shutil.copytree(run, tmp_path / "run")


@pytest.fixture
def structures():
    return console_cases.structures(9)


def test_means_stay_and_intervals_hold_the_new_data(run, structures):
    before = Ensemble.load(run)
    summary = (run / "ensemble" / "ensemble.json").read_bytes()
    with pytest.raises(InputError, match=r"3 structures: has 3 .* need at least 4"):
        recalibrate(run, structures[:3])
    assert not (run / "ensemble" / FILE).exists()
    assert recalibrate(run, structures) == {"energy": 9, "forces": 9}
    after = Ensemble.load(run)
    assert (run / "ensemble" / "ensemble.json").read_bytes() == summary
    assert after.calibrations != before.calibrations
    # Nine structures hold 0.9 at most, the five of the run 0.8.
    old, new = before.predict(structures), after.predict(structures, coverage=0.9)
    assert (old.graphs["energy_mean"] == new.graphs["energy_mean"]).all()
    assert new.graphs["energy"].between(new.graphs["energy_lo"], new.graphs["energy_hi"]).all()
    of, names = new.nodes, ("forces_x", "forces_y", "forces_z")
    held = [of[name].between(of[f"{name}_lo"], of[f"{name}_hi"]) for name in names]
    assert np.mean(held) >= 0.85
    said = json.loads((run / "ensemble" / FILE).read_text())["content"]["calibrated_on"]
    assert said["structures"] == {"energy": 9, "forces": 9}
    (run / "ensemble" / FILE).unlink()
    assert Ensemble.load(run).calibrations == before.calibrations


@pytest.mark.parametrize(
    ("few", "why"), [(0, "no structure has a label: forces"), (3, "there are 3 .* at least 4")]
)
def test_a_target_with_too_few_labels_keeps_its_calibration(run, structures, few, why):
    before = Ensemble.load(run)
    for number, atoms in enumerate(structures):
        atoms.info["energy"] = atoms.get_potential_energy()
        if number < few:
            atoms.arrays["forces"] = atoms.get_forces()
        atoms.calc = None
    said: list[str] = []
    assert recalibrate(run, structures, say=said.append) == {"energy": 9}
    after = Ensemble.load(run)
    assert after.calibrations["forces"] == before.calibrations["forces"]
    assert after.calibrations["energy"] != before.calibrations["energy"]
    assert any("forces" in line for line in said)


def test_a_damaged_calibration_is_named(run, structures):
    recalibrate(run, structures)
    file = run / "ensemble" / FILE
    text = file.read_text()
    for damaged in (
        text[: len(text) // 2],
        text.replace('"floor": ', '"floor": 1', 1),
        json.dumps({**json.loads(text), "content": None}),
        "{}",
    ):
        file.write_text(damaged)
        for read in (Ensemble.load, lambda path: model_card(path, "out")):
            with pytest.raises(InputError, match=r"calibration\.json: is damaged .*; delete it"):
                read(run)


def test_another_ensemble_does_not_take_it_over(run, alloy_store, structures, tmp_path):
    recalibrate(run, structures)
    file = run / "ensemble" / FILE
    kept = shutil.copyfile(file, tmp_path / FILE)
    untrained_ensemble(run, alloy_store, 3)
    assert not file.exists()
    Ensemble.load(run)
    shutil.copyfile(kept, file)
    with pytest.raises(InputError, match=r"calibration\.json: belongs to another ensemble\.json"):
        Ensemble.load(run)


def test_an_export_has_it_and_can_be_calibrated_again(run, structures, tmp_path):
    place = tmp_path / "private"
    place.mkdir()
    write(place / "mine.extxyz", structures)
    recalibrate(run, place / "mine.extxyz")
    export_ensemble(run, tmp_path / "out", "card")
    exported = (tmp_path / "out" / FILE).read_text()
    assert "mine.extxyz" in exported and str(place) not in exported
    assert Ensemble.load(tmp_path / "out").calibrations == Ensemble.load(run).calibrations
    recalibrate(tmp_path / "out", structures[:6])
    assert Ensemble.load(tmp_path / "out").calibrations != Ensemble.load(run).calibrations


def test_the_command(run, structures, tmp_path, flow):
    file, out = tmp_path / "mine.extxyz", tmp_path / "out.csv"
    write(file, structures)
    code, said, wrong = flow("recalibrate", run, file)
    assert code == 0, wrong
    assert "energy: calibrated on 9 structures" in said
    assert said.splitlines()[-1] == str(run / "ensemble" / FILE)
    code, said, wrong = flow("predict", run, file, "-o", out, "--coverage", "0.5")
    assert code == 0 and "the 50 % interval" in said, wrong
    code, _, wrong = flow("predict", run, file, "-o", out, "--coverage", "0.99")
    assert code == 2 and "coverage = 0.99: needs 99 structures" in wrong


def test_a_link_to_somebody_elses_ensemble_is_not_written_through(run, structures, tmp_path):
    mine = tmp_path / "mine"
    (run / "ensemble").rename(mine)
    (run / "ensemble").symlink_to(mine)
    with pytest.raises(InputError, match="ensemble: is a link out of"):
        recalibrate(run, structures)
    assert not (mine / FILE).exists()
