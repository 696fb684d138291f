"""Calls to the file system of a run directory, which on a cluster all nodes share."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from results import Line

from execution_race.workplace import config
from hydragnn_flow.run_directory import RunDirectory

_ROW = "files"
STRACE = shutil.which("strace")
# Those that ask the server for a name or a file's state; data come from other servers.
_TRACED = "trace=%file,close,getdents64"
_CALL = re.compile(r"(?:\d+ +)?(\w+)\(")
# Of a file that is open, the state is known.
_OF_AN_OPEN_FILE = re.compile(r'newfstatat\(\d+<[^>]*>, ""')
_PROGRAM = Path(sys.executable).with_name("hydragnn-flow")
# For a checkpoint: a file is opened, closed, and given its name.
_CALLS_TO_WRITE = 3
_EPOCHS = 9


@dataclass(frozen=True)
class _Counted:
    """What agents and trainers of a campaign did in the trials' folders."""

    calls: int
    """But for checkpoints on the way, whose number a whole machine limits."""
    segments: int


def lines(
    folder: Path,
    trials: tuple[int, int],
    segments: float,
    on_the_way: float,
    driver: float | None,
    say: Callable[[str], None],
) -> list[Line]:
    """Count calls for a segment, real ones of small campaigns, and from them those of a machine.

    Parameters
    ----------
    folder
        For run directories.
    trials
        Of two campaigns, whose difference is counted.
    segments
        Segments that end on a whole machine [1/s].
    on_the_way
        Checkpoints that they write before their ends [1/s].
    driver
        Calls of a driver with such a machine [1/s]; None if not measured.
    say
        Told what is being done.
    """
    each, with_rungs = (_calls(folder, trials, rungs, say) for rungs in ("none", "stopping"))
    found = [
        Line(_ROW, "calls for a trial of one segment", each, ""),
        Line(_ROW, "calls for a segment where rungs stop trials", with_rungs, ""),
    ]
    if driver is not None:
        parts = {
            f"{segments:.0f} trials of one segment a second": each * segments,
            f"{on_the_way:.1f} checkpoints on the way a second": _CALLS_TO_WRITE * on_the_way,
            "the driver": driver,
        }
        found += [Line(_ROW, f"calls for {what}", value, "1/s") for what, value in parts.items()]
        found.append(Line(_ROW, "calls, all together", sum(parts.values()), "1/s", at_most=500))
    return found


def _calls(folder: Path, trials: tuple[int, int], rungs: str, say: Callable[[str], None]) -> float:
    """Calls of agents and trainers for a segment, by campaigns with few and with more of them."""
    few, many = (_of_campaign(folder / f"{rungs}_{n}", n, rungs, say) for n in trials)
    return (many.calls - few.calls) / (many.segments - few.segments)


def _of_campaign(folder: Path, trials: int, rungs: str, say: Callable[[str], None]) -> _Counted:
    say(f"{trials} trials are trained under strace, rungs: {rungs}")
    folder.mkdir(parents=True)
    values: dict[str, Any] = config(trials, "random").model_dump(mode="json", exclude_unset=True)
    values["search"] |= {"rungs": rungs}
    values["network"]["Training"] |= {"num_epoch": _EPOCHS}
    # Which does not read what trials have predicted; other strategies do, of the best.
    values["ensemble"] = {"size": 2, "epochs": _EPOCHS, "coverage": 0.7, "strategy": "top"}
    (folder / "run.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    run, trace = folder / "run", folder / "trace"
    command: list[str | Path] = [_PROGRAM, "run", folder / "run.yaml", "--run-dir", run]
    subprocess.run([*_traced(trace), *command], check=True, stdout=subprocess.DEVNULL)
    segments = sum(result.kind == "trial" for result in RunDirectory(run).results())
    found = calls(trace, run.resolve() / "trials")
    on_the_way = sum(found[call] for call in ("rename", "renameat", "renameat2")) - segments
    assert on_the_way >= 0  # each leaves a checkpoint
    return _Counted(found.total() - _CALLS_TO_WRITE * on_the_way, segments)


def calls_per_second(pid: int, directory: Path, seconds: float, trace: Path) -> float:
    """Calls of a running process for files of a directory [1/s].

    Raises
    ------
    RuntimeError
        If strace may not watch it.
    """
    command = [*_traced(trace), "-p", str(pid)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        _, said = process.communicate(timeout=seconds)
        raise RuntimeError(f"strace has ended: {said.decode()}")
    except subprocess.TimeoutExpired:
        process.terminate()
        process.communicate()
    return calls(trace, directory).total() / seconds


def _traced(trace: Path) -> list[str | Path]:
    return [STRACE or "strace", "-f", "-y", "-qq", "-e", _TRACED, "-o", trace]


def calls(trace: Path, directory: Path) -> Counter[str]:
    """Calls for files of a directory, by name, of those that strace has seen."""
    found, place = Counter[str](), str(directory)
    with trace.open(encoding="utf-8", errors="replace") as opened:
        for line in opened:
            call = _CALL.match(line)
            if call and place in line and not _OF_AN_OPEN_FILE.search(line):
                found[call.group(1)] += 1
    return found
