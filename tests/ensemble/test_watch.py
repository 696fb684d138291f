"""The watch of a dynamics: what it records, where it stops, what it refuses."""

from dataclasses import replace

import ase.io
import numpy as np
import pytest
from ase import units
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.filters import FrechetCellFilter
from ase.md.verlet import VelocityVerlet
from ase.mep import NEB
from ase.optimize import FIRE

from hydragnn_flow import EnsembleCalculator, InputError, UncertaintyExceeded, UncertaintyWatch
from hydragnn_flow.ensemble.applicability import Applicability, Range


@pytest.fixture
def dynamics(lively):
    """Of a cell that is not at rest, with a label of its own that is none of ours."""
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.1, seed=0)
    atoms.set_momenta(np.random.default_rng(0).normal(0, 3, (4, 3)))
    atoms.info |= {"energy": -1.0, "name": "first"}
    atoms.calc = EnsembleCalculator(lively)
    return VelocityVerlet(atoms, 2 * units.fs)


@pytest.mark.parametrize("which", ["forces_std", "energy_std_per_atom"])
def test_it_records_the_structures_beyond_the_threshold(lively, dynamics, tmp_path, which):
    """Every second step is looked at; some of these pass the threshold and others do not."""
    file = tmp_path / "unsure.extxyz"
    passed, of = [], []

    def look():
        passed.append(dynamics.atoms.copy())
        results = dynamics.atoms.calc.results
        forces = np.linalg.norm(results["forces_std"], axis=1)
        of.append(forces.max() if which == "forces_std" else results["energy_std"] / len(forces))

    dynamics.attach(look, interval=2)
    dynamics.run(12)
    threshold = float(np.median(of))
    expected = [2 * k for k, deviation in enumerate(of) if deviation > threshold]
    assert 0 < len(expected) < len(of)

    again = VelocityVerlet(start := passed[0].copy(), 2 * units.fs)
    start.calc = EnsembleCalculator(lively)
    watch = UncertaintyWatch(again, file=file, **{which: threshold})
    again.attach(watch, interval=2)
    again.run(12)
    assert watch.steps == expected
    frames = ase.io.read(file, ":")
    assert [frame.info["step"] for frame in frames] == expected
    for frame in frames:
        same = passed[frame.info["step"] // 2]
        np.testing.assert_allclose(frame.positions, same.positions, atol=1e-7)
        np.testing.assert_allclose(frame.get_momenta(), same.get_momenta(), atol=1e-7)
        same.calc = EnsembleCalculator(lively)
        np.testing.assert_allclose(frame.get_forces(), same.get_forces(), atol=1e-6)
        np.testing.assert_allclose(frame.get_stress(), same.get_stress(), atol=1e-6)
        assert frame.get_potential_energy() == pytest.approx(same.get_potential_energy())
        results = same.calc.results
        for name in ("energy_std", "disagreement"):
            assert frame.info[name] == pytest.approx(results[name])
        np.testing.assert_allclose(frame.arrays["forces_std"], results["forces_std"], atol=1e-6)
        assert frame.info["name"] == "first"


@pytest.mark.parametrize(
    ("threshold", "says"),
    [
        ("disagreement", "members' disagreement is [0-9.]+"),
        ("forces_std", r"force on atom \d \(Cu\) .* eV/Å"),
        ("energy_std_per_atom", "energy .* eV per atom"),
    ],
)
def test_it_stops_there_and_nowhere_else(dynamics, tmp_path, threshold, says):
    file = tmp_path / "unsure.extxyz"
    calm = UncertaintyWatch(dynamics, file=file, stop=True, **{threshold: 1e6})
    calm()
    assert calm.steps == [] and not file.exists()
    watch = UncertaintyWatch(dynamics, file=file, stop=True, **{threshold: 1e-6})
    dynamics.attach(watch, interval=3)
    with pytest.raises(UncertaintyExceeded, match=rf"step 0: the {says}, above 1e-06; .*"):
        dynamics.run(5)
    assert dynamics.nsteps == 0 and watch.steps == [0]
    assert len(ase.io.read(file, ":")) == 1


def test_without_a_threshold_it_stops_where_structures_are_flagged(lively, dynamics):
    """Calibration data about which members disagree twice as much, and half as much."""
    atoms = dynamics.atoms
    found = atoms.calc.get_property("disagreement", atoms)
    for factor in (2.0, 0.5):
        ranges = {
            name: Range(limit.low, limit.highest + np.log(found * factor), 0.0)
            for name, limit in lively.applicability.deviations.items()
        }
        known = replace(lively.applicability, deviations=ranges)
        atoms.calc = EnsembleCalculator(replace(lively, applicability=known))
        watch = UncertaintyWatch(dynamics, stop=True)
        if factor > 1:
            watch()
            continue
        with pytest.raises(UncertaintyExceeded, match="disagreement is 2, above 1"):
            watch()
    atoms.calc = EnsembleCalculator(replace(lively, applicability=Applicability()))
    with pytest.raises(InputError, match=r"has no disagreement; .* a range of disagreement"):
        UncertaintyWatch(dynamics, stop=True)


def test_relaxations_of_the_cell_are_watched_too(dynamics, tmp_path):
    atoms = dynamics.atoms
    relaxation = FIRE(FrechetCellFilter(atoms), logfile=None)
    watch = UncertaintyWatch(relaxation, forces_std=1e-6, file=tmp_path / "unsure.extxyz")
    relaxation.attach(watch)
    relaxation.run(fmax=1e-9, steps=2)
    assert watch.steps == [0, 1, 2]
    last = ase.io.read(tmp_path / "unsure.extxyz", -1)
    np.testing.assert_allclose(last.cell, atoms.cell, atol=1e-7)


def test_a_structure_that_a_crash_cut_is_dropped(dynamics, tmp_path):
    file = tmp_path / "unsure.extxyz"
    options = {"forces_std": 1e-6, "file": file}
    watch = UncertaintyWatch(dynamics, **options)
    watch()
    watch()
    whole = file.read_bytes()
    first = len(whole) // 2
    for cut in range(first + 1, len(whole), 37):
        file.write_bytes(whole[:cut])
        UncertaintyWatch(dynamics, **options)
        assert file.read_bytes() == whole[:first]
    file.write_bytes(whole)
    UncertaintyWatch(dynamics, **options)()
    assert len(ase.io.read(file, ":")) == 3


@pytest.mark.parametrize("content", ["notes\n", "3\nhalf of someone's", "12"])
def test_another_file_is_not_touched(dynamics, tmp_path, content):
    file = tmp_path / "notes.txt"
    file.write_text(content)
    with pytest.raises(InputError, match=r"notes\.txt: is no extended XYZ"):
        UncertaintyWatch(dynamics, forces_std=0.1, file=file)
    assert file.read_text() == content


def test_what_cannot_be_watched_is_refused(dynamics, tmp_path):
    band = FIRE(NEB([bulk("Cu")] * 3, method="improvedtangent"), logfile=None)
    bare, of_emt = VelocityVerlet(bulk("Cu"), 1.0), VelocityVerlet(bulk("Cu"), 1.0)
    of_emt.atoms.calc = EMT()
    forces, energy = {"forces_std": 0.1}, {"energy_std_per_atom": 0.1}
    for watched, asked, says in (
        (dynamics, {**forces, "file": tmp_path / "nowhere" / "a.extxyz"}, "is no file in a dir"),
        (dynamics, {**forces, "file": tmp_path}, "is no file in a directory"),
        (dynamics, forces, "nothing to do .* give file, stop or both"),
        *(
            (dynamics, {"forces_std": limit, "stop": True}, "to watch are .*above zero")
            for limit in (0.0, -1.0, np.nan)
        ),
        (band, {**forces, "stop": True}, "FIRE is no relaxation or dynamics of one structure"),
        (bare, {**energy, "stop": True}, "has no energy_std; give them an EnsembleCalculator"),
        (of_emt, {**energy, "stop": True}, "has no energy_std; give them an EnsembleCalculator"),
    ):
        with pytest.raises(InputError, match=says):
            UncertaintyWatch(watched, **asked)
