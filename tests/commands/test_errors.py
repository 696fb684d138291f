"""Errors of the system and of the program are one sentence, as is every mistake of usage."""

from typing import Any

import pytest
import typer
from campaign_cases import CONFIG

from hydragnn_flow import cli
from hydragnn_flow.config import load_config
from hydragnn_flow.errors import CampaignStopped
from hydragnn_flow.run_directory import RunDirectory


@pytest.fixture
def broken(console, monkeypatch):
    """Has `report` end with an error."""
    RunDirectory(console.run).record_start(load_config(console.write(CONFIG)))

    def broken_by(error):
        def broken(*_):
            raise error

        monkeypatch.setattr("hydragnn_flow.report.html.write_report", broken)

    return broken_by


@pytest.mark.parametrize(
    ("number", "said", "file"),
    [(13, "Permission denied", "report.html"), (28, "No space left on device", None)],
)
def test_a_place_the_system_refuses(console, broken, number, said, file):
    broken(OSError(number, said, file and str(console.run / file)))
    console.refuses("report", console.run, names=[str(console.run), said])


def test_a_campaign_that_had_to_stop_says_why(console, broken):
    broken(CampaignStopped("the disk is full; make room and give the same command again"))
    said = "error: the disk is full; make room and give the same command again\n"
    assert console.says("report", console.run, code=1) == said


@pytest.mark.parametrize(
    ("error", "said", "words"),
    [
        (RuntimeError("\n first [bold]line\nsecond line"), "first [bold]line", ["report", "RUN"]),
        (AssertionError(), "no message", ["--debug", "report", "RUN"]),
        (FileNotFoundError(2, "No", "/elsewhere"), "[Errno 2] No", ["report", "RUN", "--debug"]),
    ],
)
def test_other_errors_are_one_sentence_without_debug(console, broken, error, said, words):
    """What is no fault of the user's ends with exit code 1; `--debug` may stand anywhere."""
    broken(error)
    given = [word.replace("RUN", str(console.run)) for word in words]
    *trace, last = console.says(*given, code=1).strip().splitlines()
    assert last.startswith(f"error: {type(error).__name__}: {said}")
    assert last.endswith("; --debug shows where")
    assert any("in broken" in line for line in trace) == bool(trace) == ("--debug" in words)


def test_help_explains_every_word(console, monkeypatch):
    group: Any = typer.main.get_command(cli.app)
    commands = {**group.commands, **group.commands["store"].commands}
    for name, command in commands.items():
        assert command.help, name
        assert all(getattr(p, "help", "") for p in command.params), name
    monkeypatch.setenv("COLUMNS", "100")
    assert "[default: runs/NAME]" in console.says("run", "--help")
    alone = console.says("store", code=2)
    assert "Inspect a GraphStore." in alone and "error" not in alone


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
        (["site", "check", "local", "--store", "{folder}/none"], "does not exist"),
        (["site", "check", "local", "--store", "{folder}"], "manifest.json is missing"),
    ],
)
def test_wrong_usage_is_one_sentence(console, arguments, said):
    filled = [argument.format(folder=console.folder) for argument in arguments]
    console.refuses(*filled, names=[said])
