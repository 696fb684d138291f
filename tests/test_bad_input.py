"""Bad input gets one sentence that names file and key, exit code 2, and changes nothing."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import typer
import yaml
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from campaign_cases import CONFIG
from ensemble_cases import untrained_ensemble

from hydragnn_flow import GraphStore, cli
from hydragnn_flow.campaign import driver
from hydragnn_flow.config import load_config
from hydragnn_flow.ensemble import Ensemble, select_top
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import TrialRecord


@pytest.fixture(autouse=True)
def _nothing_may_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: Any) -> None:
        raise AssertionError("workers were started")

    monkeypatch.setattr(driver.Pools, "__enter__", started)


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
    targets = {"energy": "eV", "forces": "eV/Å"}
    return changed(
        "data/source", {"format": "ase", "train": "train.xyz", "targets": targets, **source}
    )


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
    targets = {"energy": "eV", "forces": "eV/Å", "dipole": "Debye"}
    file = console.write(with_data(targets=targets))
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


@pytest.mark.parametrize(
    ("targets", "network", "names"),
    [
        ({"energy": "eV"}, {}, ["force_weight", "'forces'"]),
        ({"forces": "eV/Å"}, {}, ["enable_interatomic_potential", "'energy'"]),
        (
            {"energy": {"unit": "eV", "level": "node"}, "forces": "eV/Å"},
            {},
            ["'energy' by graph", "by node"],
        ),
        (
            {"gap": {"unit": "eV", "level": "graph"}},
            {"output_names": ["gap"], "type": ["node"]},
            ["output_names", "'gap' by node", "by graph"],
        ),
    ],
)
def test_a_network_for_other_targets_is_refused_before_anything_is_read(
    console: Console,
    monkeypatch: pytest.MonkeyPatch,
    targets: dict[str, Any],
    network: dict[str, Any],
    names: list[str],
) -> None:
    config = with_data(targets=targets)
    if network:
        config["network"]["Architecture"]["enable_interatomic_potential"] = False
        config["network"]["Variables_of_interest"] = network
    command = ("run", console.write(config), "--run-dir", console.run, "--data", console.folder)
    console.refuses(monkeypatch, *command, names=["campaign.yaml", "data.source", *names])


def test_no_data_directory(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    console.refuses(
        monkeypatch,
        *("run", console.write(with_data()), "--run-dir", console.run),
        names=["data.source.train", "--data"],
    )


def test_too_few_validation_structures(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was prepared stays, and the corrected command goes on with it."""
    wrong = ("run", console.write(changed("ensemble/coverage", 0.999)), "--run-dir", console.run)
    with monkeypatch.context() as patch:
        patch.setattr(Console, "snapshot", lambda self: {})  # the store is new
        console.refuses(patch, *wrong, names=["ensemble.coverage", "999"])
    store = console.run / "store.gs"
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    assert before
    command = ["prepare", str(console.write(CONFIG)), "--run-dir", str(console.run)]
    monkeypatch.setattr("sys.argv", ["hydragnn-flow", *command])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before
    config = console.write(changed("seed", 99))
    console.refuses(
        monkeypatch, "run", config, "--run-dir", console.run, names=["run.yaml", "seed"]
    )


def test_structures_that_are_left_out_are_told(
    console: Console, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = structures(40)
    ase.io.write(console.folder / "train.xyz", made[:32])
    ase.io.write(console.folder / "test.xyz", made[30:])
    config = with_data(test="test.xyz")
    config["data"]["split"] = {"val": 0.4}
    command = ["prepare", console.write(config), "--run-dir", console.run, "--data", console.folder]
    monkeypatch.setattr("sys.argv", ["hydragnn-flow", *map(str, command)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    told = "structures to train on left out, as they are also in the test set: 2"
    assert told in capsys.readouterr().out.splitlines()


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
    directory = RunDirectory(console.run)
    directory.record_start(load_config(console.write(CONFIG)))
    directory.journal.touch()
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
        (["predict", "{folder}", "x.xyz", "-o", "{folder}/no/out.csv"], ["--out", "{folder}/no"]),
        (
            ["prepare", "{config}", "--run-dir", "{config}/run"],
            ["{config}/run", "is a file"],
        ),
        (["run", "{config}", "--run-dir", "{config}/run"], ["{config}/run", "is a file"]),
        (["store", "info", "{folder}/nowhere"], ["nowhere"]),
    ],
)
def test_other_commands(
    console: Console, monkeypatch: pytest.MonkeyPatch, arguments: list[str], names: list[str]
) -> None:
    config = console.write(CONFIG)
    filled = [a.format(config=config, folder=console.folder) for a in arguments]
    expected = [n.format(config=config, folder=console.folder) for n in names]
    console.refuses(monkeypatch, *filled, names=expected)


@pytest.fixture(scope="module")
def run(alloy_store: GraphStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an ensemble; tests only read it."""
    return untrained_ensemble(tmp_path_factory.mktemp("run"), alloy_store)


def test_predicting_says_where_and_in_which_units(
    run: Path,
    alloy_store: GraphStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / f"a-long-[name]-{'x' * 90}.csv"
    arguments = ["predict", run, alloy_store.path, "--split", "valset", "-o", out]
    monkeypatch.setattr("sys.argv", ["hydragnn-flow", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    graphs, nodes, units = capsys.readouterr().out.splitlines()
    assert graphs == str(out)
    assert len(out.read_text().splitlines()) == 1 + len(alloy_store["valset"])
    assert Path(nodes).is_file()
    assert units == "energy in eV, forces in eV/Å; _lo to _hi is the 90 % interval"


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["{store}", "--split", "test"], ["{store}", "testset"]),
        (["{folder}/some.xyz", "--split", "testset"], ["some.xyz", "--split"]),
        (["{folder}/none.xyz"], ["none.xyz", "does not exist"]),
        (["{folder}/iron.xyz"], ["iron.xyz", "structure 1", "Fe"]),
    ],
)
def test_structures_that_cannot_be_predicted(
    console: Console,
    monkeypatch: pytest.MonkeyPatch,
    run: Path,
    alloy_store: GraphStore,
    arguments: list[str],
    names: list[str],
) -> None:
    ase.io.write(console.folder / "some.xyz", structures(1))
    ase.io.write(console.folder / "iron.xyz", [*structures(1), bulk("Fe")])
    places = {"folder": console.folder, "store": alloy_store.path}
    filled = [argument.format(**places) for argument in arguments]
    console.refuses(
        monkeypatch,
        *("predict", run, *filled, "-o", console.folder / "out.csv"),
        names=[name.format(**places) for name in names],
    )


def test_an_output_that_cannot_be_written_is_refused_before_predicting(
    console: Console, monkeypatch: pytest.MonkeyPatch, run: Path, alloy_store: GraphStore
) -> None:
    def predicted(*_: Any, **__: Any) -> None:
        raise AssertionError("something was predicted")

    monkeypatch.setattr(Ensemble, "predict_store", predicted)
    command = ["predict", run, alloy_store.path, "-o"]
    (console.folder / "taken.csv").mkdir()
    for out in ("nowhere/out.csv", "taken.csv", "out.txt"):
        console.refuses(monkeypatch, *command, console.folder / out, names=["--out", out])
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
    console.refuses(monkeypatch, *command, console.folder / "out.csv", names=["--out", "written"])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied", "{run}/report.html"), "Permission denied"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_a_place_the_system_refuses(
    console: Console, monkeypatch: pytest.MonkeyPatch, error: OSError, said: str
) -> None:
    RunDirectory(console.run).record_start(load_config(console.write(CONFIG)))
    if error.filename:
        error.filename = str(console.run / "report.html")

    def refused(*_: Any) -> None:
        raise error

    monkeypatch.setattr("hydragnn_flow.report.write_report", refused)
    console.refuses(monkeypatch, "report", console.run, names=[str(console.run), said])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("\n first [bold]line\nsecond line"), "RuntimeError: first [bold]line"),
        (AssertionError(), "AssertionError: no message"),
        (FileNotFoundError(2, "No such file", "/elsewhere"), "FileNotFoundError: [Errno 2] No"),
    ],
)
@pytest.mark.parametrize("debug", [None, 0, 1, 2])
def test_other_errors_are_one_sentence_without_debug(
    console: Console,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    said: str,
    debug: int | None,
) -> None:
    """What is no fault of the user's ends with exit code 1; `--debug` may stand anywhere."""
    RunDirectory(console.run).record_start(load_config(console.write(CONFIG)))

    def broken(*_: Any) -> None:
        raise error

    monkeypatch.setattr("hydragnn_flow.report.write_report", broken)
    arguments = ["report", str(console.run)]
    if debug is not None:
        arguments.insert(debug, "--debug")
    monkeypatch.setattr("sys.argv", ["hydragnn-flow", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1
    *trace, last = capsys.readouterr().err.strip().splitlines()
    assert last.startswith(f"error: {said}")
    assert last.endswith("; --debug shows where")
    assert any("in broken" in line for line in trace) == (debug is not None)
    assert trace == [] or debug is not None


def test_help_explains_every_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group = typer.main.get_command(cli.app)
    commands = {**group.commands, **group.commands["store"].commands}  # type: ignore[attr-defined]
    for name, command in commands.items():
        assert command.help, name
        assert all(getattr(p, "help", "") for p in command.params), name
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.argv", ["hydragnn-flow", "run", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "[default: runs/NAME]" in capsys.readouterr().out


def test_the_workflow_refuses_in_one_sentence(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "workflows" / "ensemble_hpo.py"
    options = ["--config", "configs/no.yaml", "--run-dir", "run"]
    done = subprocess.run(
        [sys.executable, str(script), *options], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: configs/no.yaml: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_campaign_that_had_to_stop_says_why(
    console: Console, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: Any) -> None:
        raise CampaignStopped("the disk is full; make room and give the same command again")

    monkeypatch.setattr("hydragnn_flow.campaign.run_campaign", stopped)
    monkeypatch.setattr("sys.argv", ["hydragnn-flow", "run", str(console.write(CONFIG))])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1
    said = capsys.readouterr().err
    assert said == "error: the disk is full; make room and give the same command again\n"
