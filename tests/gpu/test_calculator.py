"""ASE's calculator on the device."""

import numpy as np
import pytest
import torch
from ase.build import bulk
from ensemble_cases import untrained_ensemble

from hydragnn_flow import Ensemble, EnsembleCalculator

pytestmark = pytest.mark.gpu


def test_results_are_those_of_the_cpu(tmp_path, alloy_store, device):
    """And the ensemble itself predicts as before, where it did."""
    ensemble = Ensemble.load(untrained_ensemble(tmp_path, alloy_store, 3))
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.1, seed=0)
    found = []
    for where in (torch.device("cpu"), device):
        atoms.calc = EnsembleCalculator(ensemble, device=where)
        atoms.get_forces()
        found.append(atoms.calc.results)
        tables = ensemble.predict(atoms)
        assert tables.graphs is not None
        assert tables.graphs["energy_mean"].iloc[0] == found[0]["energy"]
    expected, results = found
    assert expected.keys() == results.keys()
    for name, values in expected.items():
        if name in ("note", "flagged"):
            assert results[name] == values
            continue
        scale = np.abs(values).max()
        np.testing.assert_allclose(results[name], values, rtol=0, atol=1e-4 * scale, err_msg=name)
