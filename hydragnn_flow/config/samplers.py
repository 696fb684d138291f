"""Short names of samplers in `search.sampler`; a new one is a line of the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

_OURS = "hydragnn_flow.search.samplers"


class NamedSampler(NamedTuple):
    """Sampler with a short name."""

    about: str
    """Description for the table in docs/search.md."""
    options: Mapping[str, Any]
    """``type`` and arguments, as a configuration could give them."""


SAMPLERS: dict[str, NamedSampler] = {
    "auto": NamedSampler(
        "a quasi-random start; then a Gaussian process over the whole space, conditions included, "
        "in a process beside the driver; beyond 2,000 trials `batched_tpe`",
        {"type": f"{_OURS}.auto:AutoSampler"},
    ),
    "batched_tpe": NamedSampler(
        "multivariate TPE by groups, running trials counted as bad ones, one fit for a batch of "
        "suggestions",
        {"type": f"{_OURS}.batched_tpe:BatchedTPESampler"},
    ),
    "tpe": NamedSampler(
        "Optuna's TPE, multivariate, by groups, with running trials counted as bad ones",
        {"type": "TPESampler", "multivariate": True, "group": True, "constant_liar": True},
    ),
    "gp": NamedSampler("Optuna's Gaussian process", {"type": "GPSampler"}),
    "nsga2": NamedSampler("Optuna's genetic algorithm", {"type": "NSGAIISampler"}),
    "qmc": NamedSampler("Optuna's quasi-random points", {"type": "QMCSampler", "scramble": True}),
    "random": NamedSampler("random points", {"type": "RandomSampler"}),
}
"""Sampler by short name; the first is the default."""
