"""Exported ensembles predict what the run does, to the last bit, and hold nothing else."""

import shutil
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pytest
import torch
from ase.build import bulk
from ase.io import write
from ensemble_cases import untrained_ensemble

from hydragnn_flow import Ensemble, InputError
from hydragnn_flow.config.network import read_json
from hydragnn_flow.ensemble import ensemble as export_module
from hydragnn_flow.ensemble.ensemble import export_ensemble
from hydragnn_flow.ensemble.summary import CHECKSUMS, write_checksums
from hydragnn_flow.ensemble.uncertainty.calibration import save_calibrations
from hydragnn_flow.models.leverage import LEVERAGE
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint, save_checkpoint

STRUCTURES = [bulk("Cu", cubic=True), bulk("Au") * (2, 1, 1)]


@pytest.fixture(scope="module")
def run(alloy_store, tmp_path_factory):
    """A finished run whose checkpoints hold more than predicts."""
    run = untrained_ensemble(tmp_path_factory.mktemp("run") / "run", alloy_store, 3)
    folder = run / "ensemble"
    for file in folder.glob(f"members/*/{FILE}"):
        state = load_checkpoint(file)
        more = {"model": state["best"], "optimizer": {"exp_avg": torch.randn(5000)}}
        save_checkpoint(file, {**state, **more})
    write_checksums(folder, read_json(folder / CHECKSUMS)["sha256"])
    (run / "run.yaml").write_text("name: copper\nversions: {torch: '2.8'}\n")
    return run


@pytest.fixture(scope="module")
def exported(run):
    out = run.with_name("exported")
    export_ensemble(run, out, "a card\n")
    return out


def test_it_predicts_what_the_run_does_wherever_it_is(run, exported, alloy_store, tmp_path):
    moved = Path(shutil.copytree(exported, tmp_path / "elsewhere"))
    ensembles = [Ensemble.load(place) for place in (run, moved)]
    for predictions in (
        [one.predict(STRUCTURES, members=True) for one in ensembles],
        [one.predict(alloy_store, split="testset") for one in ensembles],
    ):
        for kind in ("graphs", "nodes"):
            then, now = (getattr(one, kind) for one in predictions)
            pd.testing.assert_frame_equal(then, now, check_exact=True)


def test_it_holds_what_predicts_and_nothing_else(run, exported):
    files = {str(file.relative_to(exported)) for file in exported.rglob("*") if file.is_file()}
    members = {f"members/{k}/{name}" for k in (0, 1, 2) for name in (FILE, "config.json")}
    of_all = {"ensemble.json", "manifest.json", "applicability.json"}
    assert files == {"README.md", CHECKSUMS, *of_all, *members}
    file = exported / "members" / "0" / FILE
    assert load_checkpoint(file).keys() == {"version", "best", "progress", "predicted"}
    assert load_checkpoint(file)["predicted"].keys() == {LEVERAGE}
    whole = run / "ensemble" / "members" / "0" / FILE
    assert file.stat().st_size < whole.stat().st_size / 2


def test_it_is_written_whole_or_not_at_all(run, tmp_path, monkeypatch):
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(export_module, "write_checksums", full)
    with pytest.raises(OSError, match="No space"):
        export_ensemble(run, tmp_path / "out", "a card\n")
    assert list(tmp_path.iterdir()) == []


def test_what_the_command_refuses(run, exported, tmp_path, flow):
    damaged, new = tmp_path / "damaged", tmp_path / "new"
    shutil.copytree(run, damaged)
    (damaged / "ensemble" / "manifest.json").write_text("{}")
    new.mkdir()
    for words, says in (
        ([run, run], "run: exists already"),
        ([run, new / "nowhere" / "out"], "there is no directory"),
        ([exported, new / "out"], "is an exported ensemble already"),
        ([new, new / "out"], "is neither the directory of a run"),
        ([damaged, new / "out"], "manifest.json: has changed since"),
    ):
        code, _, wrong = flow("export", *words)
        assert code == 2 and says in wrong, wrong
        assert list(new.iterdir()) == []


def test_the_commands_take_what_the_command_writes(run, tmp_path, flow):
    out = tmp_path / "copper-model"
    code, said, wrong = flow("export", run, out)
    assert code == 0 and "copper-model: 0." in said, wrong
    card = (out / "README.md").read_text()
    for words in ("copper: an ensemble of 3", "80 % interval holds", 'load("copper-model")'):
        assert words in card
    write(tmp_path / "new.extxyz", STRUCTURES)
    table, frames = tmp_path / "table.csv", tmp_path / "table.extxyz"
    words = ["predict", out, tmp_path / "new.extxyz", "-o", table, "-o", frames]
    code, said, wrong = flow(*words, "--without", 1, "--members")
    assert code == 0 and "left out: 1; intervals are those calibrated with all members" in said
    assert {str(table), str(frames)} < set(said.splitlines()) and frames.is_file()
    found = pd.read_csv(table)
    assert len(found) == len(STRUCTURES)
    assert {"energy_member_0", "energy_member_2"} < set(found) and "energy_member_1" not in found


@pytest.mark.parametrize("name", ["applicability.json", "members/1", "calibration.json", ""])
def test_links_out_of_a_run_are_not_exported(run, tmp_path, name):
    """Somebody's own files must not come into what they hand on."""
    strange = Path(shutil.copytree(run, tmp_path / "run"))
    place, outside = strange / "ensemble" / name, tmp_path / "outside"
    if name == "calibration.json":
        found = Ensemble.load(strange).calibrations
        save_calibrations(place.parent, found, {"structures": {"energy": 9}})
    place.rename(outside)
    place.symlink_to(outside)
    with pytest.raises(InputError, match="is a link out of"):
        export_ensemble(strange, tmp_path / "out", "a card\n")
    assert not (tmp_path / "out").exists()
    # Links within it are as good as files.
    place.unlink()
    outside.rename(strange / "kept")
    place.symlink_to(strange / "kept")
    export_ensemble(strange, tmp_path / "out", "a card\n")
    assert not any(found.is_symlink() for found in (tmp_path / "out").rglob("*"))
