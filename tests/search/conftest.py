"""What tests of studies and storages have in common."""

import optuna
import pytest


@pytest.fixture(autouse=True)
def quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture
def path(tmp_path):
    """Of a journal that is yet to be made."""
    return tmp_path / "study.journal"
