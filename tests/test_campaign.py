"""The main job, end to end, as a user runs it: killed once, interrupted once, and finished."""

import copy
import json
import re
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import psutil
import pytest
from ase.build import bulk
from ase.io import write
from campaign_cases import CONFIG, MEMBERS, TRIALS, write_config
from driver_cases import (
    PATIENCE,
    assert_every_segment_ended_once,
    command_of,
    family_of,
    has_checkpoint,
    start,
    start_until,
    still_there,
)
from page_cases import REPOSITORY, blocks, follow, lines
from segment_cases import NETWORK
from typer.testing import CliRunner

from hydragnn_flow import Ensemble, GraphStore, cli
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import read_trials

pytestmark = pytest.mark.xdist_group("processes")


def flow(*arguments):
    """Give a command, in this process."""
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


class Started(NamedTuple):
    """One run directory, in the state a driver left it, and what that one left besides."""

    config: Path
    run: Path
    log: Path
    code: int | None = None
    family: Sequence[psutil.Process] = ()
    words: str = ""
    """Command lines of the family."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A driver was killed while segments trained."""
    folder = tmp_path_factory.mktemp("campaign")
    files = write_config(folder), folder / "run", folder / "output"
    driver = start_until(lambda run: has_checkpoint(run, 0), "a segment that trains", *files)
    family = family_of(driver, files[1])
    words = " ".join(map(command_of, family))
    driver.kill()
    return Started(*files, driver.wait(), family, words)


@pytest.fixture(scope="module")
def interrupted(killed):
    """The same command went on while the first one's workers were still there; then Ctrl-C."""
    files = killed[:3]
    driver = start_until(
        lambda run: (run / "ensemble/members/0/begun").exists(), "a member that trains", *files
    )
    family = family_of(driver, killed.run)
    driver.send_signal(signal.SIGINT)
    return Started(*files, driver.wait(timeout=PATIENCE), family)


@pytest.fixture(scope="module")
def finished(interrupted):
    """The directory of the run, which has come to its end."""
    log = interrupted.log
    last = start(interrupted.config, interrupted.run, log)
    assert last.wait(timeout=PATIENCE) == 0, log.read_text()
    assert "Mean absolute errors" in log.read_text()
    return interrupted.run


@pytest.mark.slow
def test_a_trial_is_seen_to_learn_long_before_its_rung_ends(tmp_path, monkeypatch):
    """In `status` and on the terminal."""
    network = copy.deepcopy(NETWORK)
    network["Training"]["num_epoch"] = 2_000
    changes = {"search": CONFIG["search"] | {"trials": 2, "min_epochs": 1_000}}
    changes["ensemble"] = CONFIG["ensemble"] | {"epochs": 2_000}
    config = write_config(tmp_path, network=network, **changes)
    monkeypatch.setenv("FORCE_COLOR", "1")  # to a terminal, as far as rich knows
    monkeypatch.setenv("COLUMNS", "80")
    learning = re.compile(r"^trial \d +[1-9]\d* of 1000 +\d\S* +\d\S* +\d\S* (s|min|h) *$", re.M)
    log = tmp_path / "output"

    def is_seen(run):
        told = run.exists() and flow("status", run).stdout
        frames = re.sub(r"\x1b\[[\d;?]*\w", "", log.read_text())
        return bool(told) and bool(learning.search(told)) and bool(learning.search(frames))

    driver = start_until(is_seen, "an epoch", config, tmp_path / "run", log)
    try:
        assert not (tmp_path / "run" / "segments.jsonl").exists()
    finally:
        family = family_of(driver, tmp_path / "run")
        driver.terminate()
        driver.wait(PATIENCE)
    assert still_there(family, PATIENCE) == []


def test_interrupted_it_cleans_up_and_says_how_to_go_on(interrupted):
    assert interrupted.code == 130
    assert interrupted.log.read_text().splitlines()[-1].endswith("continues from here")
    assert not still_there(interrupted.family, seconds=60)


def test_no_process_outlives_a_killed_driver_for_long(killed):
    # A trainer that starts, trains a trial, or waits for the next one.
    assert re.search(r"trainer_main|hydragnn_flow: (trial|trainer)", killed.words)
    assert not still_there(killed.family, seconds=60)


def test_every_segment_ends_once(finished):
    assert_every_segment_ended_once(finished, TRIALS, MEMBERS, [2, 6])


def test_no_two_trials_shared_a_core_and_members_shared_the_gcds(finished):
    trials = [r for r in RunDirectory(finished).results() if r.kind == "trial"]
    assert len(trials) >= TRIALS and {result.together for result in trials} == {1.0}
    members = [r for r in RunDirectory(finished).results() if r.kind == "member"]
    assert sorted(member.gcds for member in members) == [["0"], ["1"]]


def test_folders_are_those_of_the_design(finished):
    for name in ("run.yaml", "study.journal", "segments.jsonl", "report.html"):
        assert (finished / name).is_file()
    for trial in (finished / "trials").iterdir():
        (file,) = trial.iterdir()
        assert re.fullmatch(r"checkpoint-[0-9a-f]{12}\.pt", file.name)
    for member in (finished / "ensemble" / "members").iterdir():
        assert {file.name for file in member.iterdir()} == {"config.json", "checkpoint.pt"}
    assert finished.stat().st_mode & 0o777 == 0o700


def test_prediction_tables(finished):
    graphs = pd.read_parquet(finished / "predictions" / "test.parquet")
    test = GraphStore.open(finished / "store.gs")["testset"]
    assert graphs["graph_id"].tolist() == test.graph_id.tolist()
    np.testing.assert_allclose(graphs["energy"], test.target("energy").ravel())
    assert graphs.attrs["units"]["energy_mean"] == "eV"
    assert graphs.attrs["coverage"] == 0.9
    assert (graphs["energy_lo"] < graphs["energy_mean"]).all()
    assert (graphs["energy_mean"] < graphs["energy_hi"]).all()
    assert (graphs["energy_epistemic_std"] <= graphs["energy_std"] * (1 + 1e-9)).all()
    nodes = pd.read_csv(finished / "predictions" / "test_nodes.csv")
    assert len(nodes) == test.n_atoms.sum()
    assert {"graph_id", "node_index", "forces_x", "forces_z_hi"} <= set(nodes)


def test_python_and_command_line_agree(finished, tmp_path):
    """The same structures give the same numbers by every way there is."""
    import ase.io

    structures = [bulk("Cu", cubic=True) * (2, 1, 1), bulk("Au", cubic=True)]
    structures[0].rattle(0.1, seed=1)
    ase.io.write(tmp_path / "some.extxyz", structures)
    done = flow("predict", finished, tmp_path / "some.extxyz", "-o", tmp_path / "out.csv")
    assert done.exit_code == 0, done.output
    ensemble = Ensemble.load(finished)
    ours = ensemble.predict(structures, members=True)
    table = pd.read_csv(tmp_path / "out.csv")
    np.testing.assert_allclose(table["energy_mean"], ours.graphs["energy_mean"], rtol=1e-5)
    assert len(pd.read_csv(tmp_path / "out_nodes.csv")) == len(ours.nodes) == 12
    members = ours.graphs[[f"energy_member_{k}" for k in range(MEMBERS)]]
    np.testing.assert_allclose(ours.graphs["energy_mean"], members @ ensemble.weights)
    # Alone or in company, and what the run itself wrote for its test split.
    alone = ensemble.predict(structures[1:]).graphs
    np.testing.assert_allclose(
        alone["energy_mean"].iloc[0], ours.graphs["energy_mean"].iloc[1], rtol=1e-5
    )
    store = GraphStore.open(finished / "store.gs")
    again = ensemble.predict(store, split="testset").graphs
    saved = pd.read_parquet(finished / "predictions" / "test.parquet")
    np.testing.assert_allclose(again["energy_lo"], saved["energy_lo"], rtol=1e-6, atol=1e-6)
    copy = shutil.copytree(finished, tmp_path / "elsewhere")
    copied = Ensemble.load(copy).predict(structures).graphs
    np.testing.assert_allclose(copied["energy_std"], ours.graphs["energy_std"], rtol=1e-6)


def test_the_same_command_says_it_is_complete(finished):
    config = finished.parent / "small.yaml"
    before = (finished / "segments.jsonl").read_bytes()
    done = flow("run", config, "--run-dir", finished)
    assert done.exit_code == 0, done.output
    assert "is complete" in done.output
    assert (finished / "segments.jsonl").read_bytes() == before


def test_ensemble_json(finished):
    summary = json.loads((finished / "ensemble" / "ensemble.json").read_text())
    assert len(summary["members"]) == MEMBERS
    assert sum(member["weight"] for member in summary["members"]) == pytest.approx(1)
    trials = [member["trial"] for member in summary["members"]]
    records = {record.number: record for record in read_trials(finished)}
    assert trials[0] == min(records, key=lambda number: records[number].value or np.inf)
    assert all(records[number].state in ("complete", "pruned") for number in trials)
    table = pd.read_parquet(finished / "predictions" / "test.parquet")
    holds = table["energy"].between(table["energy_lo"], table["energy_hi"])
    assert summary["errors"]["energy per atom"]["coverage"] == pytest.approx(holds.mean())


# Commands of the pages that look at a run. What trains, waits or needs a cluster is only checked to
# exist, by test_pages. test_tutorial follows the tutorial, and the last test here the how-tos.
_FOLLOWED = r"docs/(tutorial|how-to)"
HOW_TOS = sorted((REPOSITORY / "docs" / "how-to").glob("*.md"))
LOOKING = [
    line
    for line in lines("hydragnn-flow")
    if line.whole
    and not re.match(_FOLLOWED, line.place)
    and line.words[1] in ("status", "predict", "evaluate", "trials", "report", "store", "site")
    if line.words[1:3] != ("site", "check") and "-A" not in line.words
]
# One block of docs/store.md is HydraGNN's; tests/data/test_hydragnn_reader.py does what it says.
RUNNABLE = [
    block
    for block in blocks("python")
    if "hydragnn.utils" not in block.text
    if not re.match(rf"{_FOLLOWED}|docs/parsl\.md", block.place)
]


@pytest.fixture
def stand(finished, tmp_path, monkeypatch):
    """A folder in which the pages' commands mean the finished run."""
    (tmp_path / "runs").mkdir()
    for name in ("quickstart", "quickstart-simulated", "mlearn_si"):
        (tmp_path / "runs" / name).symlink_to(finished)
    (tmp_path / "configs").mkdir()
    network = json.loads((REPOSITORY / "configs" / "potential.json").read_text())
    network["NeuralNetwork"]["Architecture"]["radius"] = 4.0  # the run's
    (tmp_path / "configs" / "potential.json").write_text(json.dumps(network))
    [site] = [block for block in blocks("yaml") if block.text.startswith("# site.yaml")]
    (tmp_path / "site.yaml").write_text(site.text)
    (tmp_path / "quickstart-model").symlink_to(finished)
    (tmp_path / "new-cifs").mkdir()
    for file in ("new-cifs/copper.cif", "structures.xyz"):
        write(tmp_path / file, bulk("Cu", cubic=True))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("line", LOOKING, ids=lambda line: line.place)
@pytest.mark.usefixtures("stand")
def test_commands_of_the_pages(line, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", list(line.words))
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr()
    assert end.value.code == 0, said.err
    assert said.out


@pytest.mark.parametrize("block", RUNNABLE, ids=lambda block: block.place)
@pytest.mark.usefixtures("stand")
def test_python_of_the_pages(block):
    exec(compile(block.text, block.place, "exec"), {"__name__": "page"})


@pytest.mark.slow
@pytest.mark.parametrize("page", HOW_TOS, ids=lambda page: page.stem)
def test_how_tos_word_by_word(page, finished, tmp_path):
    text = page.read_text(encoding="utf-8")
    assert text.count("\n") <= 80
    for packages in re.findall(r"`pip install ([\w ]+)`", text):
        for package in packages.split():
            pytest.importorskip(package)
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    shutil.copytree(finished, tmp_path / "runs" / "quickstart")  # a page may change it
    follow(page, tmp_path)
