"""Function that a search minimises: its space, its losses and the time of its trials."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna

from hydragnn_flow.config import Parameter
from hydragnn_flow.search.space import suggest

Params = Mapping[str, Any]


@dataclass(frozen=True)
class Curves:
    """Data of the trainings behind a function, beside their final loss."""

    rungs: tuple[int, ...]
    """Epochs at which a training may be judged; the last is its end."""
    losses: Callable[[Params], tuple[float, ...]]
    """The smallest loss up to each rung, without scatter."""
    length: Callable[[Params], float]
    """CPU time of the whole training, over the median of random configurations."""


@dataclass(frozen=True)
class Function:
    """Something to minimise."""

    name: str
    what: str
    """Its character, in a few words."""
    space: dict[str, Parameter]
    """Name → domain; names that `when` mentions come first."""
    value: Callable[[Params], float]
    """The true loss of a configuration."""
    best: float
    """The smallest loss there is."""
    noise: float = 0.0
    """Standard deviation of the noise that is added to an observed loss."""
    scatter: float = 0.0
    """Standard deviation of the noise that is added to the loss's logarithm."""
    curves: Curves | None = None

    def observed(self, params: Params, seed: int, number: int) -> float:
        """The loss as trial ``number`` of a search sees it, the same for every engine."""
        return self._seen(self.value(params), seed, number)

    def seen_at_rungs(self, params: Params, seed: int, number: int) -> tuple[float, ...]:
        """The losses at the rungs as trial ``number`` sees them; one draw for all of them."""
        assert self.curves is not None
        return tuple(self._seen(loss, seed, number) for loss in self.curves.losses(params))

    def _seen(self, loss: float, seed: int, number: int) -> float:
        if not self.noise and not self.scatter:
            return loss
        drawn = float(np.random.default_rng([seed, number]).normal())
        return loss * math.exp(self.scatter * drawn) + self.noise * drawn

    def suggest(self, trial: optuna.Trial) -> dict[str, Any]:
        """Ask for the parameters one by one, those of a branch only inside it."""
        return suggest(trial, self.space)

    def fingerprint(self) -> str:
        """Changes when the values or the space do; results of another function are stale."""
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        values = [f"{self.value(self.suggest(study.ask())):.9e}" for _ in range(64)]
        space = {name: domain.model_dump(mode="json") for name, domain in self.space.items()}
        domains = {
            name: {key: value for key, value in domain.items() if value}
            for name, domain in space.items()
        }
        content = [values, domains, self.best, self.noise]
        if self.scatter:
            content.append(self.scatter)
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]
