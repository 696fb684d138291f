"""Runs of earlier versions are read, gone on with, and predict what they did.

`tests/golden/run_*` hold the files of a campaign that outlive its processes. CONTRIBUTING.md says
what to do when a format changes.
"""

import json
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import optuna
import pandas as pd
import pytest
import yaml
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from segment_cases import make_spec

from hydragnn_flow import InputError, cli, trials_frame
from hydragnn_flow.config import RunConfig
from hydragnn_flow.config.network import read_json
from hydragnn_flow.data import prepare_store
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import JOURNAL, Search, read_trials
from hydragnn_flow.search.storage import STUDY
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.runner import run_segment

_FOLDER = Path(__file__).parent / "golden"
RUNS = sorted(_FOLDER.glob("run_*"))


make = SimpleNamespace(**runpy.run_path(str(_FOLDER / "make.py")))


@pytest.fixture(params=RUNS, ids=lambda run: run.name)
def run(request, tmp_path):
    """A copy of a golden run: to read it may write a lock."""
    copy = tmp_path / "run"
    shutil.copytree(request.param, copy)
    return copy


@pytest.fixture
def config(run):
    """What the run was asked for, as its own `run.yaml` has it."""
    values = yaml.safe_load((run / "run.yaml").read_text(encoding="utf-8"))
    known = (key for key in RunConfig.model_fields if key in values)  # some are new since
    return RunConfig.model_validate({key: values[key] for key in known})


def test_there_is_one_and_they_are_small():
    assert RUNS
    sizes = [f.stat().st_size for run in RUNS for f in run.rglob("*") if f.is_file()]
    assert sum(sizes) < 200_000 * len(RUNS)


def test_the_ensemble_predicts_what_it_did(run):
    expected = json.loads((run / make.EXPECTED).read_text())
    now = make.predictions(run)
    assert now.keys() == expected.keys()
    for name, columns in expected.items():
        then = pd.DataFrame(columns)
        again = pd.DataFrame(now[name])[list(columns)]  # there may be more by now
        pd.testing.assert_frame_equal(again, then, rtol=1e-4, atol=1e-6)


def test_the_run_is_known_and_complete(run, config):
    directory = RunDirectory(run)
    directory.check(config)
    assert directory.is_complete(config)
    with pytest.raises(InputError, match="seed differs"):
        directory.check(config.model_copy(update={"seed": config.seed + 1}))


def test_every_segment_is_read(run, config):
    results = list(RunDirectory(run).results())
    lines = (run / "segments.jsonl").read_text().splitlines()
    assert len(results) == len(lines)
    for result, line in zip(results, lines, strict=True):
        written = json.loads(line)
        known = result.to_dict()
        assert {key: known[key] for key in written} == written
    ended = {(result.kind, result.number) for result in results if result.status == "ok"}
    assert {("trial", n) for n in range(config.search.trials)} <= ended
    assert {("member", n) for n in range(config.ensemble.size)} <= ended


def test_optuna_reads_the_study_and_the_search_goes_on(run, config):
    storage = JournalStorage(JournalFileBackend(str(run / JOURNAL)))
    study = optuna.load_study(study_name=STUDY, storage=storage)
    assert len(study.trials) == config.search.trials
    before = read_trials(run)
    assert [trial.number for trial in before] == list(range(config.search.trials))
    assert {trial.state for trial in before} <= {"complete", "pruned"}
    search = Search(run / JOURNAL, config.search, config.num_epoch, config.seed)
    try:
        asked = search.ask()
        search.commit()
    finally:
        search.close()
    assert asked.number == config.search.trials
    assert asked.parameters.keys() == config.search.space.keys()
    assert read_trials(run)[: len(before)] == before


def test_training_goes_on_from_a_checkpoint(run, config, tmp_path):
    folder = run / "ensemble" / "members" / "0"
    network = read_json(folder / "config.json")["NeuralNetwork"]
    base = config.network_with({}).Architecture
    store = prepare_store(
        config.data, base.radius, base.max_neighbours, config.seed, tmp_path / "store.gs"
    )
    before = load_checkpoint(folder / FILE)
    until, of_member = config.ensemble.epochs + 1, {"kind": "member", "seed": before["seed"]}
    result = run_segment(make_spec(folder, store, until, network=network, **of_member))
    assert (result.status, result.reason) == ("ok", "")
    assert (result.from_epoch, result.to_epoch) == (until - 1, until)
    assert load_checkpoint(folder / FILE)["progress"] != before["progress"]


def test_commands_show_it(run, config, monkeypatch, capsys):
    assert len(trials_frame(run)) == config.search.trials
    for command in ("status", "report", "trials"):
        monkeypatch.setattr("sys.argv", ["hydragnn-flow", command, str(run)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 0, capsys.readouterr().err
    assert "Mean absolute errors" in capsys.readouterr().out
