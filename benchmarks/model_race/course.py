"""Running one case: both sides in turns for speed, each alone in a process for memory."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from graph_store.footprint import CannotMeasure
from graph_store.race import Contender, Rates, race
from graph_store.workspace import in_fresh_process
from peers.hydragnn_model import HydraGNNModel
from peers.hydragnn_package import CannotRun

from hydragnn_flow import GraphStore, InputError
from model_race.alloys import write_alloys
from model_race.networks import BATCH, Case, network
from model_race.report import Figures, Ratio, Row
from model_race.sides import Ours, Side

OURS, THEIRS = "ours", "HydraGNN"
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # malloc.h
_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    rounds: int
    """Turns of each side."""
    seconds: float
    """CPU time of a turn, of one step at least."""
    batches: int = 4
    """Different batches, which a side takes one after the other."""


class Course:
    """Where the sides race.

    Parameters
    ----------
    folder
        For the graphs; deleted after the run.
    settings
        How much to measure.
    hydragnn
        A checkout of HydraGNN, if there is one.
    say
        Told what is being done.

    Attributes
    ----------
    left_out
        What could not be measured here, and why.
    """

    def __init__(
        self, folder: Path, settings: Settings, hydragnn: Path | None, say: Callable[[str], None]
    ) -> None:
        self._folder, self._settings, self._hydragnn, self._say = folder, settings, hydragnn, say
        self.left_out: list[str] = []
        self._store = cache(self._write)
        _keep_freed_memory()

    def run(self, case: Case) -> Row:
        """Measure whichever sides there are."""
        sides: dict[str, Side] = {}
        store = self._store(case.columns, case.periodic)
        for name in [OURS, THEIRS] if self._hydragnn else [OURS]:
            self._say("building")
            try:
                sides[name] = build(name, store, case, case.batch_size, self._hydragnn)
            except (CannotRun, InputError) as error:
                self.left_out.append(f"{case.mpnn_type}, {case.mode}, {name}: {error}")
        training = self._race({name: side.train for name, side in sides.items()}, "training")
        inference = self._race({name: side.predict for name, side in sides.items()}, "inference")
        figures = {
            name: Figures(
                training=training.of(name),
                inference=inference.of(name),
                parameters=side.parameters,
                memory=self._memory(name, store, case),
            )
            for name, side in sides.items()
        }
        both = len(figures) == 2
        return Row(
            case,
            ours=figures.get(OURS),
            theirs=figures.get(THEIRS),
            training=_ratio(training) if both else None,
            inference=_ratio(inference) if both else None,
        )

    def _race(self, work: dict[str, Callable[[float], int]], what: str) -> Rates:
        def contender(name: str, turn: Callable[[float], int]) -> Contender:
            return Contender(name, lambda _, seconds: turn(seconds))  # always in the same order

        return race(
            [contender(name, turn) for name, turn in work.items()],
            self._settings.rounds,
            self._settings.seconds,
            lambda text: self._say(f"{what}, {text}"),
        )

    def _memory(self, name: str, store: Path, case: Case) -> float | None:
        self._say(f"memory, {name}")
        try:
            return in_fresh_process(peak_memory, name, store, case, self._hydragnn)
        except CannotMeasure as error:
            self.left_out.append(f"{case.mpnn_type}, {case.mode}, memory of {name}: {error}")
            return None

    def _write(self, columns: int, periodic: bool) -> Path:
        self._say("writing graphs")
        path = self._folder / f"{'crystals' if periodic else 'clusters'}-{columns}.gs"
        write_alloys(path, self._settings.batches * BATCH, columns, periodic=periodic)
        return path


def build(name: str, store: Path, case: Case, batch_size: int, hydragnn: Path | None) -> Side:
    """Make one side ready.

    Raises
    ------
    InputError
        Where this package has no such network.
    CannotRun
        Where HydraGNN cannot be imported.
    """
    if name == OURS or hydragnn is None:
        return Ours(store, case, batch_size)
    split = GraphStore.open(store)["trainset"]
    graphs = [split[index] for index in range(len(split))]
    return HydraGNNModel(hydragnn, graphs, network(case, batch_size))


def peak_memory(name: str, store: Path, case: Case, hydragnn: Path | None) -> float:
    """Peak memory that building one side and two training steps add to a process [MB].

    A step of one graph goes before, so that imports and the libraries' buffers do not count.

    Raises
    ------
    CannotMeasure
        Where the system does not say how much a process uses.
    """
    build(name, store, case, 1, hydragnn).train(0)
    gc.collect()
    try:
        _CLEAR_REFS.write_text("5", encoding="utf-8")  # forget the highest so far
    except OSError as error:
        raise CannotMeasure(f"{_CLEAR_REFS} cannot be written ({error.strerror})") from None
    before = _kib("VmRSS")
    side = build(name, store, case, case.batch_size, hydragnn)
    for _ in range(2):
        side.train(0)
    return (_kib("VmHWM") - before) * 1.024e-3


def _ratio(rates: Rates) -> Ratio:
    return Ratio(rates.ratio(OURS, THEIRS), *rates.spread(OURS, THEIRS))


def _keep_freed_memory() -> None:
    """Have the C library keep freed memory for the next allocation.

    By default glibc returns large blocks to the system and gets them back as empty pages, in every
    step anew or not at all, as chance has laid out the heap. That took up to a third of a step of
    either side, most often of HydraGNN's, and made its speed differ from run to run.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # of glibc
        mallopt(_TRIM_THRESHOLD, -1)
        mallopt(_MMAP_MAX, 0)


def _kib(name: str) -> int:
    lines = _STATUS.read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
