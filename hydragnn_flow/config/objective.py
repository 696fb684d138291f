"""Search over any Python function, without data and networks of this package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator, model_validator

from hydragnn_flow.config.base import Section, check_callable
from hydragnn_flow.config.search import Objectives, SearchConfig

SECONDS = "seconds"
"""Name of the objective that is measured if the user's function does not return its value."""
# Keys of `search` that apply only to networks trained by this package.
_OF_NETWORKS = ("budget", "energy_kwh", "keep_checkpoints", "validation_samples")


class ObjectiveSearch(SearchConfig):
    """Section `search` of a campaign that optimises a user's own function instead of networks."""

    objective: Annotated[str, AfterValidator(partial(check_callable, what="a function of a job"))]
    """Function of your own, as ``module:function``. It is called with a ``Job`` (a trial with its
    parameters), and returns a number, or a mapping with a number for each of ``objectives``."""
    epochs: int = Field(ge=1)
    """Length of a trial that no rung ends, in whatever unit the function counts. The first rung is
    at ``min_epochs``, in the same unit."""
    objectives: Objectives = ("value",)
    """Names of the quantities to minimise, at most three; ``throughput`` is maximised. ``seconds``
    is measured if the function does not return that quantity."""
    limits = (SECONDS, "gcd_hours")

    def _conflicts(self) -> Iterator[str]:
        yield from super()._conflicts()
        for key in _OF_NETWORKS:
            if getattr(self, key) != SearchConfig.model_fields[key].default:
                yield (
                    f"{key} is for networks that are trained here, not for an objective of your "
                    f"own; remove it"
                )

    @field_validator("objectives")
    @classmethod
    def _few_known_objectives(cls, objectives: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(objectives)) < len(objectives):
            raise ValueError(f"{', '.join(objectives)}: one is given twice; remove it")
        if objectives[0] == SECONDS:
            raise ValueError(
                "the first is 'seconds', but rungs judge by the first; begin with an error"
            )
        return objectives


class CampaignConfig(Section):
    """Configuration keys that every campaign has: its name and the seed of its random numbers."""

    name: str
    """Name of the run; its directory is ``runs/<name>`` unless the command line says otherwise."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of every random number of the run. Two runs still differ, because the search depends on
    which trials finish first."""

    @field_validator("name")
    @classmethod
    def _is_a_file_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise ValueError("must be made of letters, digits, '.', '_' and '-'")
        return name


class ObjectiveConfig(CampaignConfig):
    """Configuration of a campaign that optimises a user's function, without data or network."""

    search: ObjectiveSearch
    """Search space, sampler, objectives and rungs."""

    @model_validator(mode="before")
    @classmethod
    def _of_functions(cls, values: Any) -> Any:
        for key in ("data", "network", "ensemble", "resources"):
            if isinstance(values, dict) and key in values:
                raise ValueError(
                    f"{key} does not go with search.objective, whose function reads its own data "
                    f"on one GCD and makes no ensemble; remove one of them"
                )
        return values
