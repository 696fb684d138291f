"""Results of the searches as tables: normalised regrets, and ours beside its peers'."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from results import Cell, Number, Table

from search_race.engines import ENGINES
from search_race.quality import Result, Setting

AHEAD = 2.0
"""Standard errors beyond which one engine is ahead of another."""
TARGET = 0.9
"""Largest allowed ratio of our regret to the best peer's."""
_TPES = ("tpe", "tpe_groups")
_JUDGED = {"auto": ("gp", "deephyper", "deephyper_default", *_TPES), "batched_tpe": _TPES}
_HALF, _END = 1, 3
"""Places in a result's regrets."""


@dataclass(frozen=True)
class Standing:
    """How an engine did in a setting, random search being 1."""

    engine: str
    setting: str
    end: Mapping[str, float]
    """Function → mean regret over seeds."""
    half: Mapping[str, float]
    seeds: int
    """That every function has."""
    seconds: float
    """CPU time of a search, the mean."""


@dataclass(frozen=True)
class Difference:
    """Ours less a peer, on the seeds that both have."""

    setting: str
    ours: str
    peer: str
    at: str
    """The end of the search, or half-way."""
    functions: int
    """That both have searched."""
    seeds: int
    mean: float
    error: float
    """Standard error of the mean over functions, from their scatter by functions and seeds."""
    ratio: float
    """Ratio of the mean regrets, ours over the peer's."""

    @property
    def verdict(self) -> str:
        """``ahead``, ``behind`` or ``equal``."""
        if abs(self.mean) <= AHEAD * self.error:
            return "equal"
        return "ahead" if self.mean < 0 else "behind"


class Report:
    """Searches of some functions, against random search's.

    Parameters
    ----------
    results
        All there are.
    functions
        Those to report on.
    settings
        In which.
    """

    def __init__(
        self, results: Iterable[Result], functions: Sequence[str], settings: Sequence[Setting]
    ) -> None:
        self._functions, self._settings = functions, settings
        self._regrets: dict[tuple[str, str, str], dict[int, tuple[float, ...]]] = {}
        self._seconds: dict[tuple[str, str], list[float]] = {}
        for result in results:
            if result.function in functions:
                key = result.setting, result.engine, result.function
                self._regrets.setdefault(key, {})[result.seed] = result.regret
                self._seconds.setdefault(key[:2], []).append(result.seconds)

    @property
    def count(self) -> int:
        """Functions that are reported on."""
        return len(self._functions)

    def standings(self) -> list[Standing]:
        """Of every engine that has searched any of the functions."""
        found = []
        for setting in self._settings:
            for engine in ENGINES:
                has = self._of(setting.name, engine)
                if not has:
                    continue
                found.append(
                    Standing(
                        engine,
                        setting.name,
                        self._means(setting.name, engine, _END),
                        self._means(setting.name, engine, _HALF),
                        min(len(self._regrets[setting.name, engine, name]) for name in has),
                        mean(self._seconds[setting.name, engine]),
                    )
                )
        return found

    def differences(self) -> list[Difference]:
        """Ours against the peers it is judged by, at the end and half-way.

        A peer that has searched fewer than two of our functions is left out: nothing says how
        sure a difference would be.
        """
        found = []
        for setting in self._settings:
            for ours, peers in _JUDGED.items():
                for peer in peers:
                    both = {*self._of(setting.name, ours)} & {*self._of(setting.name, peer)}
                    if len(both) > 1:
                        for at, place in (("end", _END), ("half-way", _HALF)):
                            found.append(self._difference(setting.name, ours, peer, at, place))
        return found

    def _difference(self, setting: str, ours: str, peer: str, at: str, place: int) -> Difference:
        per_function, means, counts = [], [], []
        for name in self._of(setting, ours):
            scale = self._scale(setting, name, place)
            mine = self._regrets[setting, ours, name]
            theirs = self._regrets.get((setting, peer, name), {})
            both = sorted(mine.keys() & theirs.keys())
            if not both:
                continue
            pairs = [(mine[s][place] / scale, theirs[s][place] / scale) for s in both]
            per_function.append(mean(a - b for a, b in pairs))
            means.append([mean(side) for side in zip(*pairs, strict=True)])
            counts.append(len(both))
        own, other = (mean(side) for side in zip(*means, strict=True))
        return Difference(
            setting,
            ours,
            peer,
            at,
            len(counts),
            min(counts),
            mean(per_function),
            stdev(per_function) / math.sqrt(len(per_function)),
            own / other,
        )

    def _of(self, setting: str, engine: str) -> list[str]:
        """The functions that an engine has searched."""
        return [name for name in self._functions if (setting, engine, name) in self._regrets]

    def _means(self, setting: str, engine: str, place: int) -> dict[str, float]:
        return {
            name: mean(regret[place] for regret in self._regrets[setting, engine, name].values())
            / self._scale(setting, name, place)
            for name in self._of(setting, engine)
        }

    def _scale(self, setting: str, function: str, place: int) -> float:
        """Random search's mean regret."""
        return mean(regret[place] for regret in self._regrets[setting, "random", function].values())


def summary(report: Report, settings: Sequence[Setting], at: str) -> Table:
    """Mean regret of every engine in every setting, over all functions."""
    standings = {(one.setting, one.engine): one for one in report.standings()}
    rows: list[list[Cell]] = []
    for engine, what in ENGINES.items():
        cells: list[Cell] = []
        searched = {len(one.end) for one in standings.values() if one.engine == engine}
        for setting in settings:
            one = standings.get((setting.name, engine))
            if one is None:
                cells.append(None)
                continue
            values = list((one.end if at == "end" else one.half).values())
            error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
            cells.append(Number(mean(values), error=error))
        if any(cell is not None for cell in cells):
            few = max(searched) < report.count
            shown = f"`{engine}`: {what}"
            rows.append([f"{shown} ({max(searched)} functions)" if few else shown, *cells])
    columns = ("engine", *(setting.name for setting in settings))
    when = "at the end" if at == "end" else "half-way"
    title = f"Mean regret {when}, random search 1 (in flight:evaluations; ± over functions)"
    return Table(columns, rows, at, title)


def compared(differences: Sequence[Difference]) -> Table:
    """Ours less its peers, and what may be said."""
    rows: list[list[Cell]] = [
        [
            one.setting,
            f"`{one.ours}`",
            f"`{one.peer}`",
            one.at,
            one.functions,
            one.seeds,
            Number(one.mean, error=one.error),
            one.ratio,
            one.verdict,
        ]
        for one in differences
    ]
    columns = (
        "setting",
        "ours",
        "less",
        "at",
        "functions",
        "seeds",
        "difference",
        "ratio",
        "verdict",
    )
    return Table(columns, rows, "differences", "Ours less its peers, on the same seeds")


def by_function(report: Report, setting: Setting, functions: Sequence[str]) -> Table:
    """Mean regret at the end, function by function."""
    standings = [one for one in report.standings() if one.setting == setting.name]
    rows: list[list[Cell]] = [
        [one.engine, *(one.end.get(name) for name in functions), one.seeds, one.seconds]
        for one in standings
    ]
    columns = ("engine", *functions, "seeds", "CPU s of a search")
    name = f"functions-{setting.in_flight}"
    title = f"{setting.name}, by function"
    return Table(columns, rows, name, title)


def verdicts(report: Report, settings: Sequence[Setting]) -> list[str]:
    """Which targets are met: a ratio to the best peer, and not being behind TPE half-way."""
    said = []
    differences = report.differences()
    for setting in settings:
        ends = {
            one.peer: one
            for one in differences
            if (one.setting, one.ours, one.at) == (setting.name, "auto", "end")
        }
        if not ends:
            continue
        best = max(ends.values(), key=lambda one: one.ratio)
        met = "met" if best.ratio <= TARGET else "MISSED"
        said.append(
            f"{setting.name}: regret {best.ratio:.2f} of the best peer's, `{best.peer}`, "
            f"among {', '.join(f'`{peer}`' for peer in ends)} (target ≤ {TARGET:g}: {met})"
        )
        for one in differences:
            key = one.setting, one.ours, one.at
            if key == (setting.name, "auto", "half-way") and one.peer in _TPES:
                met = "MISSED" if one.verdict == "behind" else "met"
                said.append(
                    f"{setting.name}: half-way {one.verdict}, beside `{one.peer}` "
                    f"(target: not behind, {met})"
                )
    return said
