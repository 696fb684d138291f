"""The shipped quickstart configuration as plain values, to spoil."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def changed(values: Any, place: tuple[str | int, ...], value: Any) -> Any:
    """A copy of nested values with one of them set; with `...`, taken away."""
    values = copy.deepcopy(values)
    inner = values
    for key in place[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return values


@pytest.fixture(scope="session")
def change() -> Callable[..., Any]:
    return changed


@pytest.fixture(scope="session")
def configs() -> Path:
    """The folder of the configurations that ship."""
    return CONFIGS


@pytest.fixture(scope="session")
def network() -> dict[str, Any]:
    """The shipped HydraGNN file; not to be changed."""
    values: dict[str, Any] = json.loads((CONFIGS / "potential.json").read_text())
    return values


@pytest.fixture(scope="session")
def quickstart(network: dict[str, Any]) -> dict[str, Any]:
    """The quickstart's values with the network written in place; not to be changed."""
    values: dict[str, Any] = yaml.safe_load((CONFIGS / "quickstart.yaml").read_text())
    return {**values, "network": network}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], Path]:
    """Write values as a configuration file and give its path."""

    def to_file(values: Any) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
        return path

    return to_file


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script that writes the tables of the documentation."""
    monkeypatch.syspath_prepend(CONFIGS.parent / "docs")
    import tables

    return tables
