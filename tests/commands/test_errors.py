"""Errors of the system and of the program are one sentence, as is every mistake of usage."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from campaign_cases import CONFIG

from hydragnn_flow import cli
from hydragnn_flow.config import load_config
from hydragnn_flow.errors import CampaignStopped
from hydragnn_flow.run_directory import RunDirectory


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied", "{run}/report.html"), "Permission denied"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_a_place_the_system_refuses(console, monkeypatch, error, said):
    RunDirectory(console.run).record_start(load_config(console.write(CONFIG)))
    if error.filename:
        error.filename = str(console.run / "report.html")

    def refused(*_):
        raise error

    monkeypatch.setattr("hydragnn_flow.report.html.write_report", refused)
    console.refuses(monkeypatch, "report", console.run, names=[str(console.run), said])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("\n first [bold]line\nsecond line"), "RuntimeError: first [bold]line"),
        (AssertionError(), "AssertionError: no message"),
        (FileNotFoundError(2, "No such file", "/elsewhere"), "FileNotFoundError: [Errno 2] No"),
    ],
)
@pytest.mark.parametrize("debug", [None, 0, 2])
def test_other_errors_are_one_sentence_without_debug(
    console, monkeypatch, capsys, error, said, debug
):
    """What is no fault of the user's ends with exit code 1; `--debug` may stand anywhere."""
    RunDirectory(console.run).record_start(load_config(console.write(CONFIG)))

    def broken(*_):
        raise error

    monkeypatch.setattr("hydragnn_flow.report.html.write_report", broken)
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


def test_help_explains_every_word(monkeypatch, capsys):
    group: Any = typer.main.get_command(cli.app)
    commands = {**group.commands, **group.commands["store"].commands}
    for name, command in commands.items():
        assert command.help, name
        assert all(getattr(p, "help", "") for p in command.params), name
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.argv", ["hydragnn-flow", "run", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "[default: runs/NAME]" in capsys.readouterr().out


def test_the_workflow_refuses_in_one_sentence(tmp_path):
    script = Path(__file__).parents[2] / "workflows" / "ensemble_hpo.py"
    options = ["--config", "configs/no.yaml", "--run-dir", "run"]
    done = subprocess.run(
        [sys.executable, str(script), *options], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: configs/no.yaml: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_campaign_that_had_to_stop_says_why(console, monkeypatch, capsys):
    def stopped(*_):
        raise CampaignStopped("the disk is full; make room and give the same command again")

    monkeypatch.setattr("hydragnn_flow.campaign.run_campaign", stopped)
    monkeypatch.setattr("sys.argv", ["hydragnn-flow", "run", str(console.write(CONFIG))])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1
    said = capsys.readouterr().err
    assert said == "error: the disk is full; make room and give the same command again\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["runn"], "No such command 'runn'. Did you mean 'run'?; see `hydragnn-flow --help`"),
        (["run"], "Missing argument 'CONFIG'; see `hydragnn-flow run --help`"),
        (["run", "x.yaml", "--sit", "local"], "--site"),
        (["run", "x.yaml", "--nodes", "two"], "'--nodes'"),
        (["site", "check", "local", "--walltime"], "--walltime"),
        (["dashboard", "{folder}", "--port", "99999"], "'--port'"),
        (["profile", "{folder}", "--gcds", "0"], "'--gcds'"),
        (["scaling", "{folder}", "--gcds", "1;2"], "--gcds 1;2: give numbers with commas"),
        (["store", "foo"], "see `hydragnn-flow store --help`"),
        (["--verison"], "--version"),
    ],
)
def test_wrong_usage_is_one_sentence(console, monkeypatch, arguments, said):
    filled = [argument.format(folder=console.folder) for argument in arguments]
    console.refuses(monkeypatch, *filled, names=[said])


def test_a_command_alone_prints_the_help(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["hydragnn-flow", "store"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr()
    assert end.value.code == 2
    assert "Inspect a GraphStore." in said.out + said.err
    assert "error" not in said.err


def test_a_store_that_a_check_of_a_site_is_to_read_is_looked_for_first(console, monkeypatch):
    monkeypatch.chdir(console.folder)
    (console.folder / "empty").mkdir()
    for store, said in (("none", "does not exist"), ("empty", "manifest.json is missing")):
        command = ("site", "check", "local", "--store", store)
        console.refuses(monkeypatch, *command, names=[store, said])
