"""The check of strategy searches finds what a made-up table holds, and notices what it does not."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from parallel_checks import strategy
from parallel_checks.strategy import SPACE, Measured, configured, judged
from results import Line

FACTORS = {
    "Training.sharding.strategy": (1.0, 1.05, 1.1, 1.15),
    "Training.batch_size": (1.3, 1.0),
    "Training.accumulation_steps": (1.0, 1.1, 1.3),
    "Training.precision": (1.0, 1.2, 3.0),
    "Training.conv_checkpointing": (1.0, 1.2),
}


def made(noise: float) -> Measured:
    """Strategies whose costs are products of factors, of which the precision's are the largest."""
    random, rounds = np.random.default_rng(0), {}
    for places in itertools.product(*(range(len(values)) for values in SPACE.values())):
        cost = float(np.prod([FACTORS[n][i] for n, i in zip(SPACE, places, strict=True)]))
        of = tuple(values[i] for values, i in zip(SPACE.values(), places, strict=True))
        rounds[of] = [cost * float(np.exp(noise * abs(random.normal()))) for _ in range(3)]
    return Measured(rounds)


def test_the_main_effect_is_that_of_the_largest_factor() -> None:
    table = made(0.0)
    effects = table.main_effects()
    assert max(effects, key=effects.__getitem__) == "Training.precision"
    assert sum(effects.values()) == pytest.approx(1.0), "nothing but main effects is in it"
    assert table.noise == 1.0


def test_searches_are_judged_by_the_table(tmp_path: Path) -> None:
    pytest.importorskip("shap")
    config = configured(tmp_path)
    found = [one for one in judged(made(0.02), config, tmp_path, seeds=2) if isinstance(one, Line)]
    lines = {line.what: line for line in found}
    ours = [line for what, line in lines.items() if what.endswith("auto: CPU time over the best's")]
    assert [line.met for line in ours] == [True]
    assert lines["fANOVA ranks Training.precision first, auto"].value == 1.0
    assert lines["fANOVA ranks Training.precision first, auto"].met
    (noise,) = (line for what, line in lines.items() if what.startswith("dearest round"))
    assert 1.0 < noise.value < 1.1


def test_what_found_nothing_misses_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(tmp_path)
    monkeypatch.setattr(strategy, "search", lambda *_: strategy.Found(1.5, "Training.batch_size"))
    found = [one for one in judged(made(0.0), config, tmp_path, seeds=2) if isinstance(one, Line)]
    assert [line.met for line in found if line.met is not None] == [False, False]
