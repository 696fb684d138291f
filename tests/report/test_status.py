"""`hydragnn-flow status`: what a driver and its blocks are at; and what is logged of it."""

import io
import json
import os
import re
import shutil
import socket
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from report_cases import CONFIGURATION, RUNGS, Made, new_study
from rich.console import Console
from typer.testing import CliRunner

from hydragnn_flow import cli
from hydragnn_flow.energy_counters import Reading
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import sole_driver
from hydragnn_flow.execution.pools.node_energy import EnergyFile
from hydragnn_flow.execution.pools.workers_file import WORKERS_FILE
from hydragnn_flow.locks import locked
from hydragnn_flow.log import FILE, LastEpoch, Running
from hydragnn_flow.report.gcd_time import spent
from hydragnn_flow.report.html import write_report
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.report.stage import best_errors, stage_of, status_table
from hydragnn_flow.search import JOURNAL
from hydragnn_flow.segment import VERSION


def workers(**known):
    """Content of `workers.json` of a driver that is this process."""
    blocks = [("ended", 90, ""), ("running", 60, ""), ("pending", 3, "Resources")]
    told = {"driver_pid": os.getpid(), "host": socket.gethostname(), "workers": 16, "tasks": 12}
    told |= {"trouble": "the scheduler does not answer (Connection refused)", "blocks": []}
    for state, minutes, reason in (*blocks, ("pending", 12.1, "Priority")):
        since = time.time() - 60 * minutes
        told["blocks"].append({"state": state, "since": since, "reason": reason})
    return {**told, "bad_nodes": ["frontier00007"], **known}


@pytest.fixture
def run_directory(tmp_path):
    (tmp_path / "run.yaml").write_text(json.dumps(CONFIGURATION))
    (tmp_path / WORKERS_FILE).write_text(json.dumps(workers()))
    return tmp_path


def shown(run_directory):
    text = io.StringIO()
    Console(width=120, file=text).print(status_table(run_directory))
    return text.getvalue()


def test_blocks_that_run_and_wait_are_told_with_the_reason_and_energy(run_directory):
    with sole_driver(run_directory):
        text = shown(run_directory)
        assert f"driver: process {os.getpid()} on {socket.gethostname()}" in text
        blocks = "1 block running, 2 blocks in the queue since 12 min (Priority)"
        assert f"12 of 16 GCDs busy, {blocks}" in text and "Energy" not in text
        assert "segments ended badly there: frontier00007" in text
        assert "the scheduler does not answer (Connection refused); trying again" in text
        EnergyFile(run_directory).record([("a", Reading(7.2e6, 7_200.0, "pm_counters"))])
        assert "Energy: 2 kWh of the nodes in 2 node-hours" in shown(run_directory)


def test_what_another_driver_wrote_is_not_shown(run_directory):
    (run_directory / WORKERS_FILE).write_text(json.dumps(workers(driver_pid=1)))
    with sole_driver(run_directory):
        text = shown(run_directory)
    assert "driver: process" in text and "GCDs busy" not in text
    assert "no driver is at work" in shown(run_directory)


def test_the_last_decisions_of_the_driver_are_shown_on_request(run_directory):
    run = ["status", str(run_directory)]
    assert CliRunner().invoke(cli.app, [*run, "--log"]).exit_code == 0  # no driver has logged yet
    lines = [f"2026-11-23 05:00:{n:02}+0000 INFO    a.b: [decision] {n}\n" for n in range(30)]
    (run_directory / FILE).write_text("".join(lines))
    shown = CliRunner().invoke(cli.app, [*run, "--log"]).stdout
    assert shown.endswith("".join(lines[-20:]))
    assert lines[9] not in shown
    assert lines[-1] not in CliRunner().invoke(cli.app, run).stdout


def test_a_terminal_does_not_obey_a_strangers_run(finished, tmp_path, monkeypatch, capsys):
    """Titles, colours and sequences of eight bits in a reason, a log, a name, an error."""
    harm, left = "\x1b]0;title\x07\x9b31m\x08\x7f\r", "]0;title31m"
    run = Path(shutil.copytree(finished.directory, tmp_path / "run"))
    segments = (run / "segments.jsonl").read_text().splitlines()
    failed = json.loads(segments[-1]) | {"status": "error", "reason": f"of {harm}harm"}
    (run / "segments.jsonl").write_text("\n".join([*segments, json.dumps(failed)]) + "\n")
    (run / FILE).write_text(f"a\tline {harm}of harm\n", newline="\n")
    file = run / "ensemble/ensemble.json"
    summary = json.loads(file.read_text())
    monkeypatch.setenv("FORCE_COLOR", "1")
    for errors in (summary["errors"], harm):
        file.write_text(json.dumps(summary | {"errors": errors}))
        monkeypatch.setattr("sys.argv", ["hydragnn-flow", "status", "--log", str(run)])
        with pytest.raises(SystemExit):
            cli.main()
        told = capsys.readouterr()
        plain = re.sub(r"\x1b\[[\d;]*m", "", told.out + told.err)  # without rich's own styles
        plain_words = " ".join(plain.split())
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", plain)
        if errors != harm:
            assert f"of {left} harm" in plain_words and f"line {left}" in plain_words
        else:
            assert "error: " in plain


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,  # tests/test_plain_files.py has what else is not read
        lambda path: path.write_text("[]\n"),
        lambda path: path.write_text('{"search": [1], "targets": 1, "failed": [1], "chosen": 1}\n'),
    ],
    ids=["fifo", "list", "types"],
)
@pytest.mark.parametrize(
    "name",
    [
        *("run.yaml", "segments.jsonl", JOURNAL, f"{JOURNAL}.end", "energy.json", WORKERS_FILE),
        *("driver.lock", "driver.json", "driver.log", "store.gs/manifest.json"),
        *("ensemble/selection.json", "ensemble/ensemble.json"),
    ],
)
def test_a_strangers_run_is_shown_or_the_file_is_named(finished, tmp_path, name, make):
    run = Path(shutil.copytree(finished.directory, tmp_path / "run"))
    file = run / name
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    make(file)
    told = CliRunner().invoke(cli.app, ["status", "--log", str(run)])
    assert told.exception is None or isinstance(told.exception, (InputError, SystemExit))
    assert str(run) in str(told.exception) or told.exit_code == 0


@pytest.mark.parametrize(
    ("path", "value"), [("errors.forces.mae", {}), ("best_member", 77), ("joules", [])]
)
def test_results_of_another_type_are_named(finished, tmp_path, path, value):
    run = Path(shutil.copytree(finished.directory, tmp_path / "run"))
    file = run / "ensemble" / "ensemble.json"
    values = inner = json.loads(file.read_text())
    *keys, last = path.split(".")
    for key in keys:
        inner = inner[key]
    inner[last] = value
    file.write_text(json.dumps(values))
    commands = [("status", file)] + [("report", run)] * (path == "best_member")  # it takes longer
    for command, named in commands:
        told = CliRunner().invoke(cli.app, [command, str(run)])
        assert isinstance(told.exception, InputError), (command, told.output)
        assert str(told.exception).startswith(f"{named}: is damaged (")


def test_the_last_failures_are_shown_and_what_was_passed_over(searching):
    text = shown(searching.directory)
    assert "smallest validation errors: energy 0.100 (trial 0), forces 0.0500 (trial 0)" in text
    lost = [
        {**searching.segments[0], "number": n, "status": "lost", "reason": f"node is\ngone {n}"}
        for n in range(2, 7)
    ]
    # One that passed a checkpoint over, and did what it should, has not failed.
    lost.append({**searching.segments[0], "number": 6, "passed_over": "c.pt: is damaged"})
    with (searching.directory / "segments.jsonl").open("a") as file:
        file.writelines(json.dumps(segment) + "\n" for segment in lost)
    lines = shown(searching.directory).splitlines()
    first = lines.index("failed segments: 6, the last:")
    for n, line in zip((4, 5, 6), lines[first + 1 :], strict=False):
        assert line.endswith(f"trial {n} on host: lost: node is gone {n}")
    assert "passed over: trial 6: c.pt: is damaged" in lines


def test_nothing_runs_without_a_driver_and_the_whole_command_continues_it(searching):
    running = [searching.study.ask().number for _ in range(2)]
    with sole_driver(searching.directory):
        assert f"{len(running)} running" in shown(searching.directory)
    text = shown(searching.directory)
    assert f"{len(running)} stopped" in text and "running" not in text
    assert "`hydragnn-flow run 'a b.yaml' --site local` continues it" in text
    told = CliRunner().invoke(cli.app, ["trials", str(searching.directory)]).stdout
    assert f"{len(running)} stopped" in told and "running" not in told
    page = write_report(searching.directory).read_text(encoding="utf-8")
    assert f", {len(running)} stopped" in page and "running</" not in page
    for command, told in (
        ("hydragnn-flow prepare a.yaml --run-dir b", "`hydragnn-flow run a.yaml --run-dir b`"),
        ("ipykernel_launcher.py -f /tmp/a.json", "the same command, script or notebook"),
    ):
        recorded = {**CONFIGURATION, "commands": [command]}
        (searching.directory / "run.yaml").write_text(json.dumps(recorded))
        assert f"{told} continues it" in shown(searching.directory)


def test_a_function_says_how_long_it_has_been_at_work(run_directory):
    study = new_study(run_directory)
    for number, seconds in enumerate((30, 75, 5000)):
        study.ask()
        lock = run_directory / "trials" / str(number) / "lock"
        lock.parent.mkdir(parents=True)
        lock.touch()
        os.utime(lock, 2 * (time.time() - seconds,))
    with sole_driver(run_directory), ExitStack() as stack:
        assert "longest at work" not in shown(run_directory)
        for number in range(2):
            stack.enter_context(locked(run_directory / "trials" / str(number) / "lock", 60))
        assert re.search(r"longest at work: trial 1, for \d+ s", shown(run_directory))


def test_the_phase_follows_from_what_is_there(tmp_path, finished):
    """A member has a record when it ends; a file says that it was sent."""

    def phase(run):
        return next(line for line in shown(run).splitlines() if line.startswith("phase: "))[7:]

    assert phase(finished.directory) == "finished"
    (tmp_path / "run.yaml").write_text(json.dumps(CONFIGURATION))
    assert phase(tmp_path) == "preparation of the data"
    (tmp_path / "store.gs").mkdir()
    assert phase(tmp_path) == "search: 0 of 16 trials have ended"
    made = Made(tmp_path / "run")
    members = made.directory / "ensemble" / "members"
    for k in range(2):
        (members / str(k)).mkdir(parents=True)
        (members / str(k) / "begun").touch()
    assert phase(made.directory) == "members: 0 of 3 are trained, 2 stopped"
    with sole_driver(made.directory):
        assert phase(made.directory) == "members: 0 of 3 are trained, 2 in training"
    made.add_members()
    ledger = made.directory / "segments.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines[:-2]))
    assert phase(made.directory) == "members: 1 of 3 are trained, 1 stopped"
    failed = [{"member": 1, "trial": 4, "reason": "diverged: loss is nan"}]
    (members.parent / "selection.json").write_text(json.dumps({"failed": failed}))
    assert phase(made.directory) == "members: 1 of 3 are trained, 0 stopped, 1 failed"
    ledger.write_text("".join(lines))
    # One that began early and was not chosen has left nothing but its record.
    assert phase(made.directory).startswith("members: 2 of 3 are trained")
    (members / "2").mkdir()
    assert phase(made.directory) == "calibration and test: all 3 members are trained"


def test_errors_of_sums_are_per_atom_in_the_unit_of_the_store(searching):
    targets = {"energy": {"unit": "eV"}, "forces": {"unit": "eV/Å"}}
    store = searching.directory / "store.gs"
    store.mkdir()
    (store / "manifest.json").write_text(json.dumps({"targets": targets}))
    metrics = {"energy_mae": 1.0, "energy_mae_per_atom": 0.0125, "forces_mae": 0.25}
    (result,) = [r for r in stage_of(searching.directory).results if r.number == 5]
    results = [replace(result, metrics=metrics), replace(result, number=6, metrics={})]
    unknown, known = (best_errors(place, results) for place in (store, searching.directory))
    assert unknown == ["energy per atom 0.0125 (trial 5)", "forces 0.250 (trial 5)"]
    assert known == ["energy per atom 12.5 meV/atom (trial 5)", "forces 0.250 eV/Å (trial 5)"]


def line(number, gcd, began, epoch=RUNGS[0]):
    """A trial sent to a GCD that many hours ago, as `workers.json` has it."""
    about = {"kind": "trial", "number": number, "rung": 0, "to_epoch": epoch, "node": "n0"}
    return {**about, "gcds": [str(gcd)], "started": time.time() - 3600 * began}


def live(folder, asked, ended, at_work, **known):
    """A run of 16 trials; those that ended ran on a GCD from so many hours ago to so many."""
    (folder / "store.gs").mkdir()
    (folder / "run.yaml").write_text(json.dumps(CONFIGURATION))
    study, now = new_study(folder), time.time()
    trials = [study.ask() for _ in range(asked)]
    with (folder / "segments.jsonl").open("w") as ledger:
        for number, gcd, began, end in ended:
            study.tell(trials[number], 0.1)
            times = {"ended": now - 3600 * end, "away_seconds": 3600 * (began - end)}
            well = {"waited_seconds": 0.0, "status": "ok", "busy": 1.0, "version": VERSION}
            print(json.dumps(line(number, gcd, began) | times | well), file=ledger)
    told = workers(segments=[line(*of) for of in at_work], **{"written": now, **known})
    (folder / WORKERS_FILE).write_text(json.dumps(told))


def hours_of(run_directory):
    """GCD-hours by cause; seconds that pass meanwhile are none."""
    found = stage_of(run_directory).gcd_time
    hours = {} if found is None else {cause: round(s / 3600) for cause, s in spent(found).items()}
    return {cause: of for cause, of in hours.items() if of}


TWO = [(0, 0, 100, 60), (1, 1, 100, 40)]
MANY = [(n, 1, 100 - 4 * n, 96 - 4 * n) for n in range(15)]


@pytest.mark.parametrize(
    ("asked", "ended", "at_work", "expected", "says"),
    [
        (2, [], [(0, 0, 60), (1, 1, 60)], {"at work": 120}, "100.0 % at work; 0.0 % starting"),
        (3, TWO, [(2, 0, 60)], {"busy": 100, "at work": 60, "no work": 40}, "20.0 % idle, most of"),
        (4, TWO, [(2, 0, 60)], {"busy": 100, "at work": 60, "ready": 40}, "ready, not sent"),
        # The last trial to be asked for may be continued, unless it is in its last rung.
        (16, MANY, [(15, 0, 100)], {"at work": 100, "busy": 60, "no work": 40}, "no work is ready"),
        (16, MANY, [(15, 0, 100, RUNGS[-1])], {"at work": 100, "busy": 60, "tail": 40}, "the tail"),
    ],
)
def test_segments_in_flight_are_at_work_and_idle_gcds_have_a_reason(
    tmp_path, asked, ended, at_work, expected, says
):
    live(tmp_path, asked, ended, at_work)
    with sole_driver(tmp_path):
        assert hours_of(tmp_path) == expected
        assert says in " ".join(shown(tmp_path).split())


@pytest.mark.parametrize(("started", "waited"), [(0, {}), (10, {"away": 20})])
def test_a_trial_that_is_ready_waits_from_the_start_of_the_driver_that_continues(
    tmp_path, started, waited
):
    """Not since the last segment ended, two days ago."""
    live(tmp_path, 3, [(0, 0, 60, 58), (1, 1, 60, 58)], [])
    starts = [time.time() - 3600 * hours for hours in (60, started)]
    (tmp_path / "run.yaml").write_text(json.dumps({**CONFIGURATION, "started": starts}))
    with sole_driver(tmp_path):
        assert hours_of(tmp_path) == {"busy": 4, **waited}


def test_what_a_driver_that_is_gone_had_at_work_ends_with_its_last_word(tmp_path):
    written, at_work = time.time() - 3600 * 4950, [(1, 1, 5000), (2, 0, 4960)]
    live(tmp_path, 3, [(0, 0, 5000, 4960)], at_work, written=written, driver_pid=1)
    expected = {"busy": 40, "at work": 60}
    assert hours_of(tmp_path) == expected
    with sole_driver(tmp_path):  # it has sent nothing yet
        assert hours_of(tmp_path) == expected
        told = workers(segments=[line(1, 1, 20)], written=time.time())
        (tmp_path / WORKERS_FILE).write_text(json.dumps(told))
        assert hours_of(tmp_path)["at work"] == 20


def at_work(number, last_epoch=None, kind="trial", **known):
    """A running segment, as `workers.json` has it."""
    about = {"kind": kind, "number": number, "rung": 0, "to_epoch": 18, "node": "n0", "gcds": ["0"]}
    return {**about, "started": time.time(), "attempt": "a", "last_epoch": last_epoch, **known}


def lines_at(width, run_directory):
    """What `status` shows on a terminal, whose lines are all whole."""
    text = io.StringIO()
    with sole_driver(run_directory):
        Console(width=width, file=text).print(status_table(run_directory))
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    return lines


@pytest.mark.parametrize("width", [80, 120])
def test_running_segments_are_shown_with_what_they_have_reached(searching, width):
    """A gang once, and of many those that have told anything."""
    end = time.time() + 3001.0
    gang = [at_work(1234, [17, 12.3456, 0.054321, end], to_epoch=1234) for _ in range(8)]
    some = [at_work(n, [n, 1.5e-6, 123456.0, end + 7000 * (n == 3)]) for n in range(3, 9)]
    silent = [at_work(n) for n in range(20, 40)]
    member = at_work(2, [1, 0.5, 0.25, 0.0], "member")
    told = workers(segments=[*silent, *gang, *some, member], bad_nodes=[])
    (searching.directory / WORKERS_FILE).write_text(json.dumps(told))
    lines = lines_at(width, searching.directory)
    first = next(n for n, line in enumerate(lines) if line.startswith("at work"))
    assert lines[first].endswith("  training loss  validation error  time left")
    assert [" ".join(line.split()) for line in lines[first + 2 : first + 13]] == [
        "trial 1234 17 of 1234 12.35 0.05432 50 min",
        "trial 3 3 of 18 1.5e-06 1.235e+05 2.8 h",
        *(f"trial {n} {n} of 18 1.5e-06 1.235e+05 50 min" for n in range(4, 9)),
        "member 2 1 of 18 0.5 0.25 0 s",
        *(f"trial {n} none yet, of 18" for n in (20, 21)),
        "and 18 more",
    ]
    assert "the best 5 of 7 trials: 4 pruned, 2 complete, 1 failed" in lines
    words = " ".join(lines)
    for word in ("SchNet", "learning_rate", "hidden_dim", "num_gaussians"):
        assert re.search(rf"\b{word}\b", words), f"{word} is cut"


LINE = {"kind": "trial", "number": 2, "to_epoch": 18}


@pytest.mark.parametrize(
    "segments",
    [
        7,
        [7],
        [{}],
        [{"kind": "trial", "number": 2}],
        [LINE | {"number": "two"}],
        [LINE | {"number": [2]}],
        [LINE | {"last_epoch": "x"}],
        [LINE | {"last_epoch": [1, 2.0]}],
        [LINE | {"last_epoch": [1, "x", 2.0, 3.0]}],
    ],
    ids=str,
)
def test_a_damaged_list_of_segments_is_left_out(run_directory, segments):
    (run_directory / WORKERS_FILE).write_text(json.dumps(workers(segments=segments)))
    lines = lines_at(80, run_directory)
    assert any("12 of 16 GCDs busy" in line for line in lines)
    assert not any(line.startswith("at work") for line in lines)
    good = LINE | {"number": 3, "last_epoch": [1, 2.0, 3.0, 4.0]}
    if isinstance(segments, list):
        (run_directory / WORKERS_FILE).write_text(json.dumps(workers(segments=[*segments, good])))
        assert any(line.startswith("trial 3  1 of 18") for line in lines_at(80, run_directory))


def last_frame(output):
    """Lines that are left on a terminal."""
    text = output.getvalue()
    begin = max(text.rfind("\x1b[2K"), 0)
    return re.sub(r"\x1b\[[\d;?]*\w", "", text[begin:]).splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_view_shows_every_number_whole(width):
    output = io.StringIO()
    end = time.time() + 3001.0
    segments = [Running("trial", n, 18) for n in range(3)]
    segments += [Running("trial", n, 1234, LastEpoch(n, 0.5, 0.25, end)) for n in range(1000, 1500)]
    with CampaignView(Console(file=output, width=width, force_terminal=True)) as view:
        view.search({"running": 3, "complete": 3456, "pruned": 5678}, 1, 0.0506912, 10_000)
        view.step("ensemble", 1, 3)
        view.running(segments, 70_000)
    lines = last_frame(output)
    assert len(lines[-1]) < width - len("^C"), "or its echo would move the next frame"
    lines = [line.rstrip() for line in lines]
    assert max(map(len, lines)) <= width
    assert re.search(r"^search +[━╸╺ ]+ 9134/10000 +\d:\d\d:\d\d left \S+$", lines[0]), lines[0]
    assert re.search(r"^ensemble +[━╸╺ ]+ 1/3 +\d:\d\d:\d\d left \S+$", lines[1]), lines[1]
    assert lines[2] == "            2 running  3456 complete  5678 pruned  best 0.05069"
    rows = [" ".join(line.split()) for line in lines[6:]]
    told = [f"trial {n} {n} of 1234 0.5 0.25 50 min" for n in range(1000, 1005)]
    assert rows == [*told, "and 69,995 more"]
    output.truncate(0)
    with CampaignView(Console(file=output, width=width)) as view:
        view.running(segments, 70_000)
    assert not output.getvalue().strip("\0"), "a log has no table"


@pytest.mark.parametrize("total", [1, 3, 29, 1000])
def test_the_last_line_is_always_there_and_once(total):
    """What is logged where there is no terminal."""
    output = io.StringIO()
    with CampaignView(Console(file=output)) as view:
        for done in range(total + 1):
            view.step("structures", done, total)
        view.step("structures", total, total)
    lines = output.getvalue().splitlines()
    assert lines[-1] == f"structures: {total}/{total}"
    assert len(set(lines)) == len(lines) <= 11
