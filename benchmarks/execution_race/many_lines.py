"""A driver that has worked for days, and begins again: a long study and its ledger are opened."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
from graph_store.workspace import in_fresh_process
from results import Line

from execution_race.on_paper import nothing_done
from execution_race.workplace import config
from hydragnn_flow.campaign.ledger import Ledger
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import Outcome, Search
from hydragnn_flow.segment import SegmentSpec

_ROW = "days"
# Trials that are written together: how does not matter to whoever opens the files.
_AT_ONCE = 1_000


def lines(folder: Path, trials: int, say: Callable[[str], None]) -> list[Line]:
    """Write records of trials, and open them in new processes.

    Parameters
    ----------
    folder
        To work in.
    trials
        How many; each has one segment.
    say
        Told what is being done.
    """
    say(f"{trials:,} trials are written")
    directory = RunDirectory(folder / "run")
    _write(directory, trials)
    say("they are opened")
    found: list[Line] = []
    for name, file, open_it in (
        ("ledger", directory.segments, open_ledger),
        ("study", directory.journal, open_study),
    ):
        with file.open("rb") as opened:
            count = sum(1 for _ in opened)
        seconds, cpu, memory = in_fresh_process(open_it, directory.path, trials)
        what = f"{name}, {count:,} lines"
        found += [
            Line(_ROW, f"{what}: open after", seconds, "s"),
            Line(_ROW, f"{what}: CPU time for a line", 1e6 * cpu / count, "µs"),
            Line(_ROW, f"{what}: memory for a trial", memory / trials / 1e3, "kB"),
        ]
    return found


def _write(directory: RunDirectory, trials: int) -> None:
    made = config(2 * trials, "random")
    directory.record_start(made)
    search = _search(directory, trials)
    with search:
        for begin in range(0, trials, _AT_ONCE):
            asked = [search.ask() for _ in range(min(_AT_ONCE, trials - begin))]
            results = [
                nothing_done(
                    SegmentSpec(
                        kind="trial",
                        number=trial.number,
                        directory=str(directory.trial(trial.number)),
                        store=str(directory.store),
                        network=made.network_with(trial.parameters),
                        until_epoch=made.num_epoch,
                        rung=0,
                        seed=trial.number,
                    ),
                    node="frontier00001",
                    gcds=["0"],
                    parameters=trial.parameters,
                    checkpoint="checkpoint-0123456789ab.pt",
                )
                for trial in asked
            ]
            directory.record(results)
            for result in results:
                assert result.best_val_error is not None
                search.report(result.number, 0, Outcome((result.best_val_error,)))
            search.commit()


def _search(directory: RunDirectory, trials: int) -> Search:
    made = config(2 * trials, "random")
    return Search(directory.journal, made.search, made.num_epoch, made.seed, made.ensemble_size)


def open_ledger(path: Path, trials: int) -> tuple[float, float, float]:
    """Wall time [s], CPU time [s] and memory [B] of opening a ledger."""
    directory, seen = RunDirectory(path), deque[Sequence[object]](maxlen=1)

    def open_it() -> object:
        ledger = Ledger(directory, "")
        ledger.load(seen.append)
        assert len(ledger.trials) == trials
        return ledger

    return _taken(open_it)


def open_study(path: Path, trials: int) -> tuple[float, float, float]:
    """The same of a study."""

    def open_it() -> object:
        search = _search(RunDirectory(path), trials)
        assert search.asked == trials
        return search

    return _taken(open_it)


def _taken(action: Callable[[], object]) -> tuple[float, float, float]:
    process = psutil.Process()
    memory, cpu, wall = process.memory_info().rss, time.process_time(), time.perf_counter()
    kept = action()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    memory = process.memory_info().rss - memory
    del kept
    return wall, cpu, float(memory)
