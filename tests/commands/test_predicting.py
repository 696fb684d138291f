"""`hydragnn-flow predict` says what it wrote, and refuses what it cannot predict."""

import os
from pathlib import Path

import ase.io
import pytest
from ase.build import bulk
from console_cases import structures
from ensemble_cases import untrained_ensemble

from hydragnn_flow.ensemble import Ensemble


@pytest.fixture(scope="module")
def run(alloy_store, tmp_path_factory):
    """A directory with an ensemble; tests only read it."""
    return untrained_ensemble(tmp_path_factory.mktemp("run"), alloy_store)


def test_predicting_says_where_and_in_which_units(console, run, alloy_store):
    out = console.folder / f"a-long-[name]-{'x' * 90}.csv"
    said = console.says("predict", run, alloy_store.path, "--split", "valset", "-o", out)
    graphs, nodes, units = said.splitlines()
    assert graphs == str(out)
    assert len(out.read_text().splitlines()) == 1 + len(alloy_store["valset"])
    assert Path(nodes).is_file()
    assert units == "energy in eV, forces in eV/Å; _lo to _hi is the 80 % interval"


def test_structures_without_a_prediction_are_counted(console, run):
    ase.io.write(console.folder / "some.xyz", [*structures(1), bulk("Xe", "fcc", 6.0)])
    said = console.says("predict", run, console.folder / "some.xyz", "-o", console.folder / "o.csv")
    assert "1 of 2 structures have no prediction; see `note`" in said


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["{store}", "--split", "test"], ["{store}", "testset"]),
        (["{store}", "--without", "7"], ["member 7 cannot be left out"]),
        (["{folder}/some.xyz", "--split", "testset"], ["some.xyz", "--split"]),
        (["{folder}/none.xyz"], ["none.xyz", "does not exist"]),
        (["{folder}/some.xyz", "--site", "atlantis"], ["--site atlantis", "frontier"]),
        (["{folder}/some.xyz", "--site", "local", "--device", "cuda"], ["--device cuda", "site"]),
        (["{folder}/some.xyz", "-N", "2"], ["--nodes 2", "--site"]),
        (["{folder}/some.xyz", "--site", "local", "--split", "testset"], ["--split"]),
    ],
)
def test_what_cannot_be_predicted(console, run, alloy_store, arguments, names):
    ase.io.write(console.folder / "some.xyz", structures(1))
    places = {"folder": console.folder, "store": alloy_store.path}
    filled = [argument.format(**places) for argument in arguments]
    out = console.folder / "out.csv"
    expected = [name.format(**places) for name in names]
    console.refuses("predict", run, *filled, "-o", out, names=expected)


def test_an_output_that_cannot_be_written_is_refused_before_predicting(
    console, monkeypatch, run, alloy_store
):
    def predicted(*_, **__):
        raise AssertionError("something was predicted")

    monkeypatch.setattr(Ensemble, "load", predicted)
    command = ["predict", run, alloy_store.path, "-o"]
    (console.folder / "taken.csv").mkdir()
    for out in ("nowhere/out.csv", "taken.csv", "out.txt"):
        console.refuses(*command, console.folder / out, names=["--out", out])
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
    console.refuses(*command, console.folder / "out.csv", names=["--out", "written"])
