"""Bad data get one sentence that names the file, exit code 2, and change nothing."""

import ase.io
import numpy as np
import pytest
from campaign_cases import CONFIG
from console_cases import Console, changed, structures, with_data

from hydragnn_flow import cli


@pytest.mark.parametrize("damage", ["absent", "empty", "nan energy", "nan force", "no forces"])
def test_data_files(console, monkeypatch, damage):
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
        monkeypatch, *("run", file, "--run-dir", console.run, "--data", console.folder), names=names
    )


def test_a_target_the_data_do_not_have(console, monkeypatch):
    ase.io.write(console.folder / "train.xyz", structures())
    targets = {"energy": "eV", "forces": "eV/Å", "dipole": "Debye"}
    file = console.write(with_data(targets=targets))
    console.refuses(
        monkeypatch,
        *("run", file, "--run-dir", console.run, "--data", console.folder),
        names=["train.xyz", "dipole"],
    )


def test_no_data_directory(console, monkeypatch):
    console.refuses(
        monkeypatch,
        *("run", console.write(with_data()), "--run-dir", console.run),
        names=["data.source.train", "--data"],
    )


def test_too_few_validation_structures(console, monkeypatch):
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


def test_structures_that_are_left_out_are_told(console, monkeypatch, capsys):
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


def test_a_damaged_store(console, monkeypatch):
    file = console.write(CONFIG)
    monkeypatch.setattr("sys.argv", ["x", "prepare", str(file), "--run-dir", str(console.run)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    store = console.run / "store.gs"
    largest = max(store.rglob("data.0"), key=lambda path: path.stat().st_size)
    for victim in (store / "manifest.json", largest):
        sound = victim.read_bytes()
        middle = len(sound) // 2
        for damaged in (sound[:middle], sound[:middle] + b"?" + sound[middle + 1 :]):
            victim.write_bytes(damaged)
            for command in (["store", "check", store], ["run", file, "--run-dir", console.run]):
                with monkeypatch.context() as patch:
                    patch.setattr(Console, "snapshot", lambda self: {})  # the driver's lock changes
                    console.refuses(patch, *command, names=[victim.name])
        victim.write_bytes(sound)
