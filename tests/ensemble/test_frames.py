"""Extended XYZ of structures that have more than the format holds."""

from io import StringIO
from typing import Any

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.spacegroup import crystal

from hydragnn_flow.ensemble.predictions.table import extended_xyz

KEPT: dict[str, Any] = {
    "numbers": np.arange(3),
    "vectors": np.eye(3),
    "flags": np.array([True, False, True]),
    "words": np.array(["CA", "N", "O2'"]),
}
LEFT_OUT: dict[str, Any] = {
    "blank": np.array(["a", "b c", "d"]),
    "empty": np.array(["", "b", "c"]),
    "objects": np.array(["a b", 1, None], dtype=object),
    "tensors": np.zeros((3, 3, 3)),
    "complex": np.ones(3, complex),
}


def back(*structures):
    return ase.io.read(StringIO(extended_xyz(structures)), ":", format="extxyz")


@pytest.mark.parametrize("name", [*KEPT, *LEFT_OUT])
def test_columns_come_back_or_are_left_out(name):
    atoms = Atoms("Cu3", np.arange(9.0).reshape(3, 3))
    atoms.arrays[name] = {**KEPT, **LEFT_OUT}[name]
    first, second = back(atoms, atoms)
    np.testing.assert_allclose(second.positions, atoms.positions)
    assert (name in first.arrays) == (name in KEPT)
    if name in KEPT:
        np.testing.assert_array_equal(first.arrays[name], KEPT[name])
    assert name in atoms.arrays, "the structure stays as it was"


def test_remarks_of_several_lines_are_one():
    atoms = Atoms("Cu", info={"remark": "2\nCu 1 1 1\r\nmore", "n": 3})
    [one, _] = back(atoms, atoms)
    assert one.info == {"remark": "2 Cu 1 1 1 more", "n": 3}
    assert len(one) == 1 and atoms.info["remark"].count("\n") == 2


def test_results_and_crystals_come_back():
    atoms = crystal("Cu", [(0, 0, 0)], spacegroup=225, cellpar=[3.6, 3.6, 3.6, 90, 90, 90])
    atoms.calc = SinglePointCalculator(atoms, energy=1.5, forces=np.ones((4, 3)))
    [found] = back(atoms)
    assert found.get_potential_energy() == 1.5
    np.testing.assert_array_equal(found.get_forces(), 1)
