"""Bad input gets one sentence that names file and key, exit code 2, and changes nothing."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import yaml
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from campaign_cases import CONFIG

from hydragnn_flow import cli
from hydragnn_flow.campaign import driver
from hydragnn_flow.config import load_config
from hydragnn_flow.ensemble import select_top
from hydragnn_flow.errors import InputError
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import TrialRecord


@pytest.fixture(autouse=True)
def _nothing_may_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: Any) -> None:
        raise AssertionError("workers were started")

    monkeypatch.setattr(driver, "Pools", started)


class Console:
    """Runs commands as a user types them, and looks at what comes back."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.run = folder, folder / "run"
        self._capsys = capsys

    def write(self, config: dict[str, Any]) -> Path:
        path = self.folder / "campaign.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    def refuses(self, monkeypatch: pytest.MonkeyPatch, *arguments: object, names: list[str]) -> str:
        monkeypatch.setattr("sys.argv", ["hydragnn-flow", *map(str, arguments)])
        before = self.snapshot()
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 2
        said = self._capsys.readouterr().err.strip()
        assert said.startswith("error: ")
        assert "\n" not in said
        assert "Traceback" not in said
        for name in names:
            assert name in said
        assert self.snapshot() == before, "something was changed"
        return said

    def snapshot(self) -> dict[str, bytes]:
        return {
            str(path): path.read_bytes() if path.is_file() else b""
            for path in sorted(self.folder.rglob("*"))
        }


@pytest.fixture
def console(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Console:
    return Console(tmp_path, capsys)


def changed(path: str, value: Any) -> dict[str, Any]:
    """CONFIG with the value at a path of keys (`a/b/c`) replaced."""
    config = copy.deepcopy(CONFIG)
    *parents, key = path.split("/")
    place = config
    for parent in parents:
        place = place[parent]
    place[key] = value
    return config


@pytest.mark.parametrize(
    ("path", "value", "names"),
    [
        ("serach", {}, ["serach", "search"]),
        ("search/trails", 5, ["trails", "trials"]),
        ("search/trials", "many", ["search", "trials"]),
        ("data/source/structures", [1], ["data.source.structures"]),
        ("search/space", {}, ["search.space"]),
        ("search/space", {"Architecture.mpnn_type": {"choices": []}}, ["mpnn_type", "choices"]),
        ("search/space", {"Architecture.hiden_dim": {"int": [1, 2]}}, ["hiden_dim", "hidden_dim"]),
        ("search/space", {"Architecture.hidden_dim": {"int": [1, "a"]}}, ["hidden_dim"]),
        ("ensemble/size", 100, ["ensemble.size", "search.trials"]),
        ("network/Architecture/hidden_dim", "wide", ["Architecture", "hidden_dim"]),
        ("network/Architecture/model_type", "SchNet", ["model_type", "mpnn_type"]),
        ("network/Variables_of_interest/output_names", ["energy", "x"], ["type"]),
        ("network", "missing.json", ["missing.json"]),
    ],
)
def test_configuration(
    console: Console,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    value: Any,
    names: list[str],
) -> None:
    file = console.write(changed(path, value))
    where = "missing.json" if value == "missing.json" else "campaign.yaml"
    console.refuses(monkeypatch, "run", file, "--run-dir", console.run, names=[where, *names])


@pytest.mark.parametrize("content", ["a: [1", "- 1\n- 2", ""])
def test_not_a_configuration(
    console: Console, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    file = console.folder / "broken.yaml"
    file.write_text(content)
    console.refuses(monkeypatch, "run", file, "--run-dir", console.run, names=["broken.yaml"])


def test_no_configuration(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    console.refuses(monkeypatch, "run", console.folder / "no.yaml", names=["no.yaml"])


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
    return changed("data/source", {"format": "extxyz", "train": "train.xyz", **source})


@pytest.mark.parametrize("damage", ["absent", "empty", "nan energy", "nan force", "no forces"])
def test_data_files(console: Console, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    made = structures()
    names = ["train.xyz"]
    if "nan" in damage:
        results = made[7].calc.results
        key = "energy" if "energy" in damage else "forces"
        results[key] = results[key] * np.nan
        names += ["7", "energy" if "energy" in damage else "forces"]
    if damage == "no forces":
        del made[7].calc.results["forces"]
        names += ["7", "forces"]
    if damage != "absent":
        ase.io.write(console.folder / "train.xyz", [] if damage == "empty" else made)
    file = console.write(with_data())
    console.refuses(
        monkeypatch,
        *("run", file, "--run-dir", console.run, "--data", console.folder),
        names=names,
    )


def test_a_target_the_data_do_not_have(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    ase.io.write(console.folder / "train.xyz", structures())
    file = console.write(with_data(targets={"energy": "eV", "dipole": "Debye"}))
    console.refuses(
        monkeypatch,
        *("run", file, "--run-dir", console.run, "--data", console.folder),
        names=["train.xyz", "dipole"],
    )


def test_an_output_the_data_do_not_have(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    config = changed("network/Architecture/enable_interatomic_potential", False)
    config["network"]["Variables_of_interest"] = {"output_names": ["band_gap"], "type": ["node"]}
    console.refuses(
        monkeypatch,
        *("run", console.write(config), "--run-dir", console.run),
        names=["band_gap", "output_names"],
    )


def test_no_data_directory(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    console.refuses(
        monkeypatch,
        *("run", console.write(with_data()), "--run-dir", console.run),
        names=["data.source.train", "--data"],
    )


def test_too_few_validation_structures(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    console.refuses(
        monkeypatch,
        *("run", console.write(changed("ensemble/level", 0.999)), "--run-dir", console.run),
        names=["ensemble.level", "999"],
    )


def test_more_members_than_finished_trials() -> None:
    """Trials may fail, so this can also come up when the search is over."""
    records = [TrialRecord(i, "failed", {}, None, "diverged: loss is nan") for i in range(3)]
    records += [TrialRecord(i, "complete", {}, 0.1 * i) for i in range(3, 5)]
    with pytest.raises(InputError, match=r"ensemble.size = 3 .* 2 trials .* loss is nan"):
        select_top(records, 3)
    assert [record.number for record in select_top(records, 2)] == [3, 4]


@pytest.mark.parametrize("damage", ["truncated", "changed", "manifest"])
def test_a_damaged_store(console: Console, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    file = console.write(CONFIG)
    monkeypatch.setattr("sys.argv", ["x", "prepare", str(file), "--run-dir", str(console.run)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    store = console.run / "store.gs"
    victim = store / "manifest.json"
    if damage != "manifest":
        victim = max(store.rglob("data.0"), key=lambda path: path.stat().st_size)
    data = bytearray(victim.read_bytes())
    if damage == "changed":
        data[len(data) // 2] ^= 0xFF
    victim.write_bytes(data if damage == "changed" else data[: len(data) // 2])
    for command in (["store", "check", store], ["run", file, "--run-dir", console.run]):
        with monkeypatch.context() as patch:
            patch.setattr(Console, "snapshot", lambda self: {})  # the driver's lock changes
            console.refuses(patch, *command, names=[victim.name])


def test_a_directory_of_another_configuration(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunDirectory(console.run).claim(load_config(console.write(CONFIG)))
    file = console.write(changed("seed", 99))
    console.refuses(
        monkeypatch,
        *("run", file, "--run-dir", console.run),
        names=["run.yaml", "seed", "--run-dir"],
    )


def test_a_directory_of_something_else(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    console.run.mkdir()
    (console.run / "thesis.tex").write_text("precious")
    console.refuses(
        monkeypatch,
        *("run", console.write(CONFIG), "--run-dir", console.run),
        names=["--run-dir"],
    )


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["run", "{config}", "--site", "frontire"], ["frontire", "local"]),
        (["status", "{folder}"], ["run.yaml"]),
        (["report", "{folder}"], ["run.yaml"]),
        (["predict", "{folder}", "x.xyz"], ["ensemble"]),
        (["predict", "{folder}", "x.xyz", "-o", "out.txt"], ["out.txt", ".csv"]),
        (["store", "info", "{folder}/nowhere"], ["nowhere"]),
    ],
)
def test_other_commands(
    console: Console, monkeypatch: pytest.MonkeyPatch, arguments: list[str], names: list[str]
) -> None:
    config = console.write(CONFIG)
    filled = [a.format(config=config, folder=console.folder) for a in arguments]
    console.refuses(monkeypatch, *filled, names=names)
