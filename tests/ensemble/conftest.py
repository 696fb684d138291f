"""An ensemble of networks that have learnt nothing, whose files tests only read."""

import pytest
from ensemble_cases import untrained_ensemble

from hydragnn_flow import Ensemble


@pytest.fixture(scope="session")
def run(alloy_store, tmp_path_factory):
    return untrained_ensemble(tmp_path_factory.mktemp("run") / "run", alloy_store)


@pytest.fixture(scope="session")
def ensemble(run):
    return Ensemble.load(run)
