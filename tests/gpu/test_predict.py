"""Predictions and ASE's calculator on the device give what the CPU gives."""

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ensemble_cases import untrained_ensemble

from hydragnn_flow import Ensemble, EnsembleCalculator

pytestmark = pytest.mark.gpu


@pytest.fixture
def ensemble(tmp_path, alloy_store):
    return Ensemble.load(untrained_ensemble(tmp_path, alloy_store, 3))


def test_tables(ensemble, alloy_store, device):
    """Structures that cannot be predicted keep their place; the ensemble stays where it was."""
    structures = [bulk("Cu", cubic=True), Atoms("Al"), bulk("Au", cubic=True)]
    for data in (structures, alloy_store):
        there, here = ensemble.predict(data, device=device), ensemble.predict(data)
        assert ensemble.device.type == "cpu"
        for one, other in ((there.graphs, here.graphs), (there.nodes, here.nodes)):
            assert one is not None and other is not None and list(one) == list(other)
            numbers = other.select_dtypes("float").columns
            np.testing.assert_allclose(one[numbers], other[numbers], rtol=1e-4, atol=1e-4)


def test_results_of_the_calculator(ensemble, device):
    """And the ensemble itself predicts as before, where it did."""
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.1, seed=0)
    found = []
    for where in (torch.device("cpu"), device):
        atoms.calc = EnsembleCalculator(ensemble, device=where)
        atoms.get_forces()
        found.append(atoms.calc.results)
        tables = ensemble.predict(atoms)
        assert tables.graphs["energy_mean"].iloc[0] == found[0]["energy"]
    expected, results = found
    assert expected.keys() == results.keys()
    for name, values in expected.items():
        if name in ("note", "flagged"):
            assert results[name] == values
            continue
        scale = np.abs(values).max()
        np.testing.assert_allclose(results[name], values, rtol=0, atol=1e-4 * scale, err_msg=name)
