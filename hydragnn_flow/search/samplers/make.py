"""The samplers a search can name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from optuna import samplers
from optuna.samplers import BaseSampler

from hydragnn_flow.config import Parameter
from hydragnn_flow.search.samplers.auto import AutoSampler
from hydragnn_flow.search.samplers.batched_tpe import BatchedTPESampler

_MAKERS: dict[str, Callable[[int], BaseSampler]] = {
    "batched_tpe": lambda seed: BatchedTPESampler(seed=seed),
    "tpe": lambda seed: samplers.TPESampler(
        multivariate=True, group=True, constant_liar=True, seed=seed
    ),
    # Conditional parameters are drawn at random, which is no news to who chose it.
    "gp": lambda seed: samplers.GPSampler(seed=seed, warn_independent_sampling=False),
    "nsga2": lambda seed: samplers.NSGAIISampler(seed=seed),
    "qmc": lambda seed: samplers.QMCSampler(
        scramble=True, seed=seed, warn_independent_sampling=False
    ),
    "random": lambda seed: samplers.RandomSampler(seed=seed),
}


def make_sampler(name: str, space: Mapping[str, Parameter], seed: int) -> BaseSampler:
    """The sampler of `search.sampler`.

    Parameters
    ----------
    name
        ``auto``; ``batched_tpe``; or one of Optuna's: ``tpe``, ``gp``, ``nsga2``, ``qmc`` and
        ``random``.
    space
        Dotted path -> domain.
    seed
        Of its random numbers.
    """
    return AutoSampler(space, seed=seed) if name == "auto" else _MAKERS[name](seed)
