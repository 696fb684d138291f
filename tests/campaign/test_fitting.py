"""Ensembles of structures in memory: what is written, what is refused; the notebook runs whole."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read

from hydragnn_flow import InputError, fit
from hydragnn_flow.campaign.setup import fitting
from hydragnn_flow.data.looking import look
from hydragnn_flow.data.sources.ase_files import each_structure

NOTEBOOK = Path(__file__).parents[2] / "examples" / "fit.ipynb"


def crystals(n=44):
    found = []
    for number in range(n):
        atoms = bulk("Cu" if number % 2 else "Al", cubic=True) * (1 + number % 2, 1, 1)
        atoms.rattle(0.05, seed=number)
        found.append(atoms)
    return found


@pytest.fixture
def written(monkeypatch, tmp_path):
    """Whatever `fit` would run: the network's targets and the labels found in its file."""

    def of(structures, targets=None, name="mine", **options):
        ran = []
        monkeypatch.setattr(fitting, "run_campaign", lambda *given: ran.append(given))
        monkeypatch.setattr(fitting.Ensemble, "load", lambda directory: directory)
        assert fit(structures, targets, tmp_path / name, **options) == tmp_path / name
        [(config, _, directory)] = ran
        assert directory == tmp_path / name
        return config, {label.key: label for label in look(tmp_path / f"{name}.extxyz").labels}

    return of


def test_values_of_structures_and_atoms_are_learnt_with_their_units(written):
    structures = crystals()
    gaps = [float(number % 7) / 3 for number in range(len(structures))]
    config, labels = written(structures, {"gap": gaps}, units={"gap": "eV"}, trials=5, members=2)
    target = config.data.source.targets["gap"]
    assert (target.unit, config.search.trials, config.ensemble.size) == ("eV", 5, 2)
    assert labels["gap"].level == "graph"
    assert "gap" not in structures[0].info  # the caller's structures are left alone


def test_atoms_have_values_of_their_own(written):
    structures = crystals()
    charges = [np.linspace(-0.3, 0.4, len(atoms)) + n for n, atoms in enumerate(structures)]
    charges[3] = float("nan")  # no label
    config, labels = written(structures, {"partial_charge": charges})
    assert labels["partial_charge"].level == "node"
    assert config.network["Variables_of_interest"]["output_names"] == ["partial_charge"]


def test_results_of_calculations_become_a_potential(written):
    structures = crystals()
    for number, atoms in enumerate(structures):
        forces = np.full((len(atoms), 3), 0.01 * number)
        atoms.calc = SinglePointCalculator(atoms, energy=-3.0 - number, forces=forces)
        atoms.info["gap"] = 1.5
    config, labels = written(structures)
    assert config.network["Architecture"]["enable_interatomic_potential"]
    assert {"energy", "forces", "gap"} <= labels.keys()
    assert labels["energy"].unit == "eV"


def test_the_store_gets_every_digit(written, tmp_path):
    structures, random = crystals(), np.random.default_rng(3)
    charges = [random.normal(size=(len(atoms), 2)) for atoms in structures]
    for atoms in structures:
        atoms.set_cell(atoms.cell * random.uniform(0.9, 1.1, size=(3, 3)), scale_atoms=True)
        results = {"energy": random.normal(), "stress": random.normal(size=6)}
        results["forces"] = random.normal(size=(len(atoms), 3)) * 1e-6
        atoms.calc = SinglePointCalculator(atoms, **results)
    written(structures)
    written(structures, {"dipoles": charges}, name="other")
    for atoms, found in zip(structures, each_structure(tmp_path / "mine.extxyz"), strict=True):
        assert np.array_equal(found.atoms.numbers, atoms.numbers)
        assert np.array_equal(found.atoms.positions, atoms.positions)
        assert np.array_equal(found.atoms.cell, atoms.cell)
        for name, value in atoms.calc.results.items():
            assert np.array_equal(found.values[name], value), name
    for mine, found in zip(charges, each_structure(tmp_path / "other.extxyz"), strict=True):
        assert np.array_equal(found.values["dipoles"], mine)


def test_structures_of_pymatgen_are_converted(written):
    class Structure:  # has what pymatgen's class has
        def __init__(self, atoms):
            self._atoms = atoms

        def to_ase_atoms(self):
            return self._atoms

    gaps = [number % 7 + 0.5 for number in range(44)]
    _, labels = written([Structure(atoms) for atoms in crystals()], {"gap": gaps})
    assert labels["gap"].level == "graph"


def test_values_in_a_data_frame_belong_to_structures_by_position(written, tmp_path):
    gaps = [n % 7 + 0.5 for n in range(44)]
    written(crystals(), {"gap": pd.Series(gaps, index=range(44)[::-1])})
    assert [one.info["gap"] for one in read(tmp_path / "mine.extxyz", ":")] == gaps


@pytest.mark.parametrize("targets", [None, "mu"])
def test_a_vector_of_a_molecule_with_as_many_atoms_is_no_property_of_atoms(written, targets):
    waters = [molecule("H2O") for _ in range(44)]
    for number, atoms in enumerate(waters):
        atoms.rattle(0.05, seed=number)
        atoms.info["mu"] = np.linspace(0.1, 1.0, 3) * number
        atoms.info["comment"] = "two\nlines"  # which extended XYZ cannot hold
    _, labels = written(waters, targets)
    assert (labels["mu"].level, labels["mu"].dim) == ("graph", 3)


def test_a_call_that_was_refused_can_be_corrected(written):
    gaps = [n % 5 + 0.5 for n in range(44)]
    with pytest.raises(InputError, match="not learnt together"):
        written(crystals(), {"gap": gaps, "size": gaps[::-1]})
    written(crystals(), {"gap": gaps})


@pytest.mark.parametrize(
    ("targets", "options", "told"),
    [
        ({"gap": [1.0]}, {}, "gap has 1 values for 44 structures"),
        ("gap", {}, "no structure has 'gap'"),
        ({"band gap": [1.0] * 44}, {}, "'band gap' is no name of a label"),
        ({"pos": [1.0] * 44}, {}, "'pos' is no name of a label"),
        (
            {"gap": [n % 5 + 0.5 for n in range(44)], "size": [n % 3 + 0.25 for n in range(44)]},
            {},
            "size: it is not learnt together with gap",
        ),
        ({"gap": [n % 5 + 0.5 for n in range(44)]}, {"units": {"gab": "eV"}}, "no label 'gab'"),
        ({"gap": [None] * 44}, {}, "no structure has 'gap'"),
        ({}, {}, "there are none"),
        ([n % 5 + 0.5 for n in range(44)], {}, "such as {'gap': gaps}"),
        (np.arange(44) % 5 + 0.5, {}, "such as {'gap': gaps}"),
        (None, {}, "structures: have no labels"),
        ({"forces": [np.ones((2, 3))] * 44}, {}, "correct their shapes"),
        ({"charge": [np.ones(4 * (1 + n % 2)) / (n + 1) for n in range(44)]}, {}, "rename it"),
    ],
)
def test_what_cannot_be_learnt_is_refused_before_anything_runs(tmp_path, targets, options, told):
    with pytest.raises(InputError, match=told):
        fit(crystals(), targets, tmp_path / "mine", **options)


def test_too_few_structures_are_refused(tmp_path):
    with pytest.raises(InputError, match="fewer than 40"):
        fit(crystals(10), {"gap": [n + 0.5 for n in range(10)]}, tmp_path / "mine")


def test_other_structures_do_not_continue_a_run(written, tmp_path):
    gaps = [n % 5 + 0.5 for n in range(44)]
    written(crystals(), {"gap": gaps})
    (tmp_path / "mine").mkdir()
    written(crystals(), {"gap": gaps})
    with pytest.raises(InputError, match="holds other structures"):
        fit(crystals(), {"gap": gaps[::-1]}, tmp_path / "mine")
    file = tmp_path / "mine.extxyz"
    rounded = re.sub(r"(\.\d{8})\d+", r"\1", file.read_text())  # as ASE writes
    assert rounded != file.read_text()
    file.write_text(rounded)
    written(crystals(), {"gap": gaps})
    assert file.read_text() == rounded, "the store was made from it"


def test_directories_may_have_names_that_no_run_can_have(written, tmp_path):
    gaps = [n % 5 + 0.5 for n in range(44)]
    config, _ = written(crystals(), {"gap": gaps}, name="my fit")
    assert config.name == "my-fit" and (tmp_path / "my fit.extxyz").exists()


@pytest.mark.slow
def test_the_notebook_runs_whole(tmp_path):
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) <= 6
    (tmp_path / "cells.py").write_text("\n\n".join(code), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", "exec(open('cells.py').read()); print(ensemble); print([*table])"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "Ensemble of 3 networks" in ended.stdout
    assert "mean absolute error of energy_per_atom on the test split: 0." in ended.stdout
    assert "'energy_per_atom_std'" in ended.stdout
