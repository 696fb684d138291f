"""Commands as a user types them, and inputs to spoil."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from campaign_cases import CONFIG

from hydragnn_flow import cli


class Console:
    """Runs commands as a user types them, and looks at what comes back."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self.run = folder, folder / "run"
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def write(self, config: dict[str, Any]) -> Path:
        path = self.folder / "campaign.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    def says(self, *arguments: object, code: int = 0) -> str:
        """What a command prints, errors last, and ends with this exit code."""
        return "".join(self._ended(code, arguments))

    def refuses(self, *arguments: object, names: list[str], may_change: bool = False) -> None:
        before = self.snapshot()
        said = self._ended(2, arguments)[1].strip()
        assert said.startswith("error: ")
        assert "\n" not in said
        for name in names:
            assert name in said
        assert may_change or self.snapshot() == before, "something was changed"

    def _ended(self, code: int, arguments: Sequence[object]) -> tuple[str, str]:
        self._monkeypatch.setattr("sys.argv", ["hydragnn-flow", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = self._capsys.readouterr()
        assert end.value.code == code, said
        return said.out, said.err

    def snapshot(self) -> dict[str, bytes]:
        return {
            str(path): path.read_bytes() if path.is_file() else b""
            for path in sorted(self.folder.rglob("*"))
        }


def changed(path: str, value: Any) -> dict[str, Any]:
    """CONFIG with the value at a path of keys (`a/b/c`) replaced."""
    config = copy.deepcopy(CONFIG)
    *parents, key = path.split("/")
    place = config
    for parent in parents:
        place = place[parent]
    place[key] = value
    return config


def structures(n: int = 30) -> list[Any]:
    made = []
    for seed in range(n):
        atoms = bulk("Cu", cubic=True)
        atoms.rattle(0.1, seed=seed)
        atoms.calc = EMT()
        atoms.calc = SinglePointCalculator(
            atoms, energy=atoms.get_potential_energy(), forces=atoms.get_forces()
        )
        made.append(atoms)
    return made


def with_data(**source: Any) -> dict[str, Any]:
    targets = {"energy": "eV", "forces": "eV/Å"}
    return changed(
        "data/source", {"format": "ase", "train": "train.xyz", "targets": targets, **source}
    )
