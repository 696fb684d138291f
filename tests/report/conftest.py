"""One finished and one unfinished run directory for all tests of the report."""

import pytest
from ensemble_cases import untrained_ensemble
from report_cases import Made

from hydragnn_flow.report.html import write_report


@pytest.fixture(scope="session")
def finished(tmp_path_factory, alloy_store):
    """A run that is over; tests only read it."""
    made = Made(tmp_path_factory.mktemp("finished"), trials=32)
    made.add_members()
    untrained_ensemble(made.directory, alloy_store, 3)
    return made


@pytest.fixture(scope="session")
def report(finished):
    """The page of the run that is over."""
    return write_report(finished.directory)


@pytest.fixture
def searching(tmp_path):
    """A run whose search is still going; a test may change it."""
    return Made(tmp_path / "searching", trials=7)
