"""Ensembles of networks that have learnt nothing, whose files tests only read; and the command."""

import pytest
from ensemble_cases import lively_ensemble, untrained_ensemble

from hydragnn_flow import Ensemble, cli


@pytest.fixture(scope="session")
def run(alloy_store, tmp_path_factory):
    return untrained_ensemble(tmp_path_factory.mktemp("run") / "run", alloy_store)


@pytest.fixture(scope="session")
def ensemble(run):
    return Ensemble.load(run)


@pytest.fixture(scope="session")
def lively(alloy_store, tmp_path_factory):
    """Of three members, in float64 and with forces that are not small."""
    return lively_ensemble(tmp_path_factory.mktemp("lively"), alloy_store)


@pytest.fixture
def flow(monkeypatch, capsys):
    """Runs `hydragnn-flow`: its exit code, what it prints, and what it says is wrong."""

    def call(*words):
        monkeypatch.setattr("sys.argv", ["hydragnn-flow", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return call
