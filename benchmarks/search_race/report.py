"""What the rows found, as tables and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from results import Line
from results.machine import load, machine, versions
from rich import box
from rich.table import Table

from search_race.functions import FUNCTIONS
from search_race.idle import AFTER
from search_race.latency import Latency
from search_race.quality import Result, Setting

_MODELS = ("gp", "deephyper")


@dataclass(frozen=True)
class Idle:
    """Of one engine: shares of GCD time lost while the driver was busy."""

    engine: str
    fractions: tuple[float, ...]
    """After the numbers of trials in `AFTER`."""

    @property
    def met(self) -> bool | None:
        """Ours is to lose at most a hundredth."""
        return self.fractions[-1] <= 0.01 if self.engine == "batched_tpe" else None


@dataclass(frozen=True)
class Standing:
    """How an engine did in a setting."""

    setting: str
    engine: str
    seeds: int
    """That every function has."""
    searches: int
    regret: dict[str, float]
    """Function → mean over seeds of the regret, over that of random search."""
    error: dict[str, float]
    """Standard errors."""
    mean: float | None
    """Over the functions; None where some have no result."""
    mean_error: float | None
    seconds: float
    """CPU time of a search."""


@dataclass(frozen=True)
class Verdict:
    """Ours against a peer, on the seeds that both have."""

    setting: str
    engine: str
    peer: str
    seeds: int
    difference: float
    """Mean over functions of normalised regret, ours less the peer's; negative is better."""
    error: float

    @property
    def met(self) -> bool:
        """Not worse within the standard error of the difference."""
        return self.difference <= self.error


def latency_lines(latencies: Sequence[Latency]) -> list[Line]:
    """Batched TPE against Optuna's, for each number of finished trials."""
    found = {(one.engine, one.finished): one for one in latencies}
    lines = []
    for finished in sorted({one.finished for one in latencies if one.engine == "tpe"}):
        ours, stock = found["batched_tpe", finished], found["tpe", finished]
        what = f"ask and tell, {finished:,} finished, {ours.running:,} running"
        most = {20_000: 1.5, 100_000: 5.0}.get(finished)
        lines.append(Line("latency", what, ours.milliseconds, "ms", at_most=most))
        lines.append(
            Line(
                "latency",
                what,
                1e3 / ours.milliseconds,
                "1/s",
                "TPESampler()",
                1e3 / stock.milliseconds,
                stock.milliseconds / ours.milliseconds,
                at_least=150.0 if finished == 20_000 else None,
            )
        )
        for name, shown in (("random", "RandomSampler()"), ("deephyper", "DeepHyper CBO")):
            if (name, finished) in found:
                rate = 1e3 / found[name, finished].milliseconds
                ratio = 1e3 / ours.milliseconds / rate
                lines.append(
                    Line("latency", what, 1e3 / ours.milliseconds, "1/s", shown, rate, ratio)
                )
    return lines


def idle_table(rows: Sequence[Idle]) -> Table:
    """Shares of GCD time in which the driver kept GCDs waiting."""
    shown = Table(box=box.MARKDOWN, title=None)
    shown.add_column("GCD time lost to the driver")
    for count in AFTER:
        shown.add_column(f"up to {count:,} trials", justify="right")
    shown.add_column("target")
    shown.add_column("")
    for row in rows:
        shown.add_row(
            row.engine,
            *(f"{100 * fraction:.2g} %" for fraction in row.fractions),
            "" if row.met is None else "≤ 1 %",
            {True: "met", False: "MISSED", None: ""}[row.met],
        )
    return shown


def standings(results: Sequence[Result], settings: Sequence[Setting]) -> list[Standing]:
    """How every engine did, as far as it has results."""
    found = []
    for setting in settings:
        scale = _random(results, setting)
        for engine in setting.engines:
            own = [r for r in results if r.setting == setting.name and r.engine == engine]
            if not own:
                continue
            regret, error, counts = {}, {}, []
            for function in FUNCTIONS:
                values = [r.regret[-1] for r in own if r.function == function]
                counts.append(len(values))
                if values and function in scale:
                    regret[function] = mean(values) / scale[function]
                    error[function] = _error(values) / scale[function]
            complete = len(regret) == len(FUNCTIONS)
            found.append(
                Standing(
                    setting.name,
                    engine,
                    min(counts),
                    len(own),
                    regret,
                    error,
                    mean(regret.values()) if complete else None,
                    math.hypot(*error.values()) / len(error) if complete else None,
                    mean(r.seconds for r in own),
                )
            )
    return found


def verdicts(results: Sequence[Result], settings: Sequence[Setting]) -> list[Verdict]:
    """Ours against the peers it must not be worse than, paired by seed."""
    found = []
    for setting in settings:
        ours, scale = setting.engines[0], _random(results, setting)
        if len(scale) < len(FUNCTIONS):
            continue
        regrets = {
            (r.engine, r.function, r.seed): r.regret[-1]
            for r in results
            if r.setting == setting.name
        }
        for peer in setting.engines:
            if peer not in (_MODELS if ours == "auto" else ("tpe",)):
                continue
            differences, variances, seeds = [], [], []
            for function in FUNCTIONS:
                pairs = [
                    (value - regrets[peer, function, seed]) / scale[function]
                    for (engine, of, seed), value in regrets.items()
                    if engine == ours and of == function and (peer, of, seed) in regrets
                ]
                seeds.append(len(pairs))
                if pairs:
                    differences.append(mean(pairs))
                    variances.append(_error(pairs) ** 2)
            if min(seeds):
                error = math.sqrt(sum(variances)) / len(variances)
                found.append(
                    Verdict(setting.name, ours, peer, min(seeds), mean(differences), error)
                )
    return found


def quality_table(rows: Sequence[Standing]) -> Table:
    """Mean regrets, random search being 1."""
    shown = Table(box=box.MARKDOWN, title=None)
    shown.add_column("in flight:evaluations")
    shown.add_column("engine")
    for name in (*FUNCTIONS, "mean", "seeds", "CPU-s"):
        shown.add_column(name, justify="right")
    for row in rows:
        shown.add_row(
            row.setting,
            row.engine,
            *(
                f"{row.regret[name]:.2f} ± {row.error[name]:.2f}" if name in row.regret else ""
                for name in FUNCTIONS
            ),
            "" if row.mean is None else f"{row.mean:.3f} ± {row.mean_error:.3f}",
            f"{row.seeds}",
            f"{row.seconds:.3g}",
        )
    return shown


def verdict_table(rows: Sequence[Verdict]) -> Table:
    """Differences on the seeds that both have."""
    shown = Table(box=box.MARKDOWN, title=None)
    for heading in ("in flight:evaluations", "ours", "against"):
        shown.add_column(heading)
    for heading in ("seeds", "difference", "target"):
        shown.add_column(heading, justify="right")
    shown.add_column("")
    for row in rows:
        shown.add_row(
            row.setting,
            row.engine,
            row.peer,
            str(row.seeds),
            f"{row.difference:+.3f} ± {row.error:.3f}",
            "≤ its error",
            "met" if row.met else "MISSED",
        )
    return shown


def about() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    return {**machine(), "load": load(), **versions(["numpy", "optuna", "torch"])}


def write_json(path: Path, **content: Any) -> None:
    """Write everything that is known about the run."""
    text = json.dumps(_finite({"machine": about(), **content}), indent=1, ensure_ascii=False)
    path.write_text(text + "\n")


def plain(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Rows as plain values, with whether their target is met."""
    return [{**asdict(row), "met": getattr(row, "met", None)} for row in rows]


def _finite(content: Any) -> Any:
    """With null for the standard error of a single value, of which JSON knows no number."""
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if content == math.inf else content


def _random(results: Sequence[Result], setting: Setting) -> dict[str, float]:
    """Random search's mean regret of each function."""
    scale = {}
    for function in FUNCTIONS:
        values = [
            r.regret[-1]
            for r in results
            if (r.setting, r.engine, r.function) == (setting.name, "random", function)
        ]
        # A function that random search solves tells engines apart no longer.
        if any(values):
            scale[function] = mean(values)
    return scale


def _error(values: Sequence[float]) -> float:
    """Standard error of the mean; infinite for one value, of which nothing is known."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
