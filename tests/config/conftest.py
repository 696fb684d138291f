"""The shipped quickstart configuration as plain values, to spoil."""

import copy
import json
from pathlib import Path

import pytest
import yaml

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.fixture(scope="session")
def change():
    """A copy of nested values with one of them set; with `...`, taken away."""

    def changed(values, place, value):
        values = copy.deepcopy(values)
        inner = values
        for key in place[:-1]:
            inner = inner[key]
        if value is ...:
            del inner[place[-1]]
        else:
            inner[place[-1]] = value
        return values

    return changed


@pytest.fixture(scope="session")
def configs():
    """The folder of the configurations that ship."""
    return CONFIGS


@pytest.fixture(scope="session")
def network():
    """The shipped HydraGNN file; not to be changed."""
    return json.loads((CONFIGS / "potential.json").read_text())


@pytest.fixture(scope="session")
def quickstart(network):
    """The quickstart's values with the network written in place; not to be changed."""
    return yaml.safe_load((CONFIGS / "quickstart.yaml").read_text()) | {"network": network}


@pytest.fixture
def write(tmp_path):
    """Write values as a configuration file and give its path."""

    def to_file(values):
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
        return path

    return to_file


@pytest.fixture
def tables(monkeypatch):
    """The script that writes the tables of the documentation."""
    monkeypatch.syspath_prepend(CONFIGS.parent / "docs")
    import tables

    return tables
