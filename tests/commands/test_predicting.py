"""`hydragnn-flow predict` says what it wrote, and refuses what it cannot predict."""

import os
from pathlib import Path

import ase.io
import pytest
from console_cases import structures
from ensemble_cases import untrained_ensemble

from hydragnn_flow import cli
from hydragnn_flow.ensemble import Ensemble


@pytest.fixture(scope="module")
def run(alloy_store, tmp_path_factory):
    """A directory with an ensemble; tests only read it."""
    return untrained_ensemble(tmp_path_factory.mktemp("run"), alloy_store)


def test_predicting_says_where_and_in_which_units(run, alloy_store, tmp_path, monkeypatch, capsys):
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
    assert units == "energy in eV, forces in eV/Å; _lo to _hi is the 80 % interval"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["predict", "{store}", "-o", "{folder}/out.csv"], "member 7 cannot be left out"),
        (["evaluate", "{store}"], "member 7 cannot be left out"),
    ],
)
def test_a_member_that_is_not_there_cannot_be_left_out(
    console, monkeypatch, run, alloy_store, words, says
):
    places = {"folder": console.folder, "store": alloy_store.path}
    command, *filled = [word.format(**places) for word in words]
    arguments = [command, run, *filled, "--without", "7"]
    console.refuses(monkeypatch, *arguments, names=[says])


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["{store}", "--split", "test"], ["{store}", "testset"]),
        (["{folder}/some.xyz", "--split", "testset"], ["some.xyz", "--split"]),
        (["{folder}/none.xyz"], ["none.xyz", "does not exist"]),
        (["{folder}/some.xyz", "--site", "atlantis"], ["--site atlantis", "frontier"]),
        (["{folder}/some.xyz", "--site", "local", "--device", "cuda"], ["--device cuda", "site"]),
        (["{folder}/some.xyz", "-N", "2"], ["--nodes 2", "--site"]),
        (["{folder}/some.xyz", "--site", "local", "--split", "testset"], ["--split"]),
    ],
)
def test_structures_that_cannot_be_predicted(
    console, monkeypatch, run, alloy_store, arguments, names
):
    ase.io.write(console.folder / "some.xyz", structures(1))
    places = {"folder": console.folder, "store": alloy_store.path}
    filled = [argument.format(**places) for argument in arguments]
    console.refuses(
        monkeypatch,
        *("predict", run, *filled, "-o", console.folder / "out.csv"),
        names=[name.format(**places) for name in names],
    )


def test_an_output_that_cannot_be_written_is_refused_before_predicting(
    console, monkeypatch, run, alloy_store
):
    def predicted(*_, **__):
        raise AssertionError("something was predicted")

    monkeypatch.setattr(Ensemble, "load", predicted)
    command = ["predict", run, alloy_store.path, "-o"]
    (console.folder / "taken.csv").mkdir()
    for out in ("nowhere/out.csv", "taken.csv", "out.txt"):
        console.refuses(monkeypatch, *command, console.folder / out, names=["--out", out])
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
    console.refuses(monkeypatch, *command, console.folder / "out.csv", names=["--out", "written"])
