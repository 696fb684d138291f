"""Cost of keeping a search on disk, and of opening one again."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
from optuna.storages.journal import JournalFileBackend
from results import Line

from hydragnn_flow.config import SearchConfig
from hydragnn_flow.search import JOURNAL, Outcome, Search
from hydragnn_flow.search.space import suggest
from search_race.histories import SPACE

GROUP = 32
"""Results that come in together and share an fsync."""
_STOCK = "JournalStorage"


def lines(folder: Path, n_trials: int, rounds: int, say: Callable[[str], None]) -> list[Line]:
    """Measure the last groups of a search, its reopening, and Optuna's own.

    Parameters
    ----------
    folder
        On the disk to measure.
    n_trials
        Trials of the search.
    rounds
        Groups of ours that are measured, and trials of Optuna's storage.
    say
        Told what is being done.
    """
    say(f"a search of {n_trials:,} trials")
    journal = folder / JOURNAL
    config = SearchConfig(trials=n_trials, sampler="random", rungs="none", space=SPACE)
    search = Search(journal, config, num_epoch=1, seed=0)
    groups = max(n_trials // GROUP, 1)
    ask, tell = 0.0, 0.0
    with _counted_fsyncs() as fsyncs:
        for group in range(groups):
            if group == max(groups - rounds, 0):
                ask, tell, before = 0.0, 0.0, fsyncs[0]
            start = time.process_time()
            asked = [search.ask().number for _ in range(GROUP)]
            search.commit()
            middle = time.process_time()
            for number in asked:
                search.report(number, 0, Outcome((1.0 / (1 + number),)))
            search.commit()
            ask, tell = ask + middle - start, tell + time.process_time() - middle
        counted = min(rounds, groups) * GROUP
        ours = [1e3 * tell / counted, 1e3 * (ask + tell) / counted, (fsyncs[0] - before) / counted]
    search.close()

    say(f"opening {n_trials:,} trials")
    start = time.process_time()
    search = Search(journal, config, num_epoch=1, seed=0)
    opening = time.process_time() - start
    assert search.states == {"complete": groups * GROUP}
    search.close()

    say(f"Optuna's storage with {n_trials:,} trials")
    copy = folder / "copy.journal"
    shutil.copy(journal, copy)
    start = time.process_time()
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(copy)))
    (known,) = storage.get_all_studies()
    study = optuna.load_study(
        study_name=known.study_name, storage=storage, sampler=optuna.samplers.RandomSampler(seed=0)
    )
    assert len(study.get_trials(deepcopy=False)) == groups * GROUP
    stock_opening = time.process_time() - start
    ask, tell = 0.0, 0.0
    with _counted_fsyncs() as fsyncs:
        for _ in range(rounds):
            start = time.process_time()
            trial = study.ask()
            suggest(trial, SPACE)
            middle = time.process_time()
            study.tell(trial, 1.0)
            ask, tell = ask + middle - start, tell + time.process_time() - middle
        stock = [1e3 * tell / rounds, 1e3 * (ask + tell) / rounds, fsyncs[0] / rounds]
    of = f"of {n_trials:,} trials"
    return [
        Line("storage", f"result durable, {of}", ours[0], "ms", _STOCK, stock[0], at_most=1.0),
        Line("storage", f"trial durable, asked and told, {of}", ours[1], "ms", _STOCK, stock[1]),
        Line("storage", "fsyncs of a trial", ours[2], "", _STOCK, stock[2]),
        Line("storage", f"opening a run {of}", opening, "s", _STOCK, stock_opening, at_most=5.0),
    ]


@contextmanager
def _counted_fsyncs() -> Iterator[list[int]]:
    """How many there have been."""
    count, fsync = [0], os.fsync

    def counting(file: int) -> None:
        count[0] += 1
        fsync(file)

    os.fsync = counting  # type: ignore[assignment]
    try:
        yield count
    finally:
        os.fsync = fsync
