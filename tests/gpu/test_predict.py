"""Predictions on the device."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ensemble_cases import untrained_ensemble

from hydragnn_flow import Ensemble

pytestmark = pytest.mark.gpu


def test_predictions_are_those_of_the_cpu(tmp_path, alloy_store, device):
    """Structures that cannot be predicted keep their place; the ensemble stays where it was."""
    ensemble = Ensemble.load(untrained_ensemble(tmp_path, alloy_store, 3))
    structures = [bulk("Cu", cubic=True), Atoms("Al"), bulk("Au", cubic=True)]
    for data in (structures, alloy_store):
        there, here = ensemble.predict(data, device=device), ensemble.predict(data)
        assert ensemble.device.type == "cpu"
        for one, other in ((there.graphs, here.graphs), (there.nodes, here.nodes)):
            assert one is not None and other is not None and list(one) == list(other)
            numbers = other.select_dtypes("float").columns
            np.testing.assert_allclose(one[numbers], other[numbers], rtol=1e-4, atol=1e-4)
