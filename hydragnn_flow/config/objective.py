"""Search over any Python function, without data and networks of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from hydragnn_flow.config.base import Section, explain, import_class
from hydragnn_flow.config.origins import absolute
from hydragnn_flow.config.run import RunConfig, is_file_name, resolve_config
from hydragnn_flow.config.search import MOST_OBJECTIVES, SearchConfig
from hydragnn_flow.errors import InputError
from hydragnn_flow.plain_files import PlainLoader, read_yaml

SECONDS = "seconds"
"""Name of the objective that is measured if the user's function does not return its value."""
_LIMITS = (SECONDS, "gcd_hours")
# Keys of `search` that apply only to networks trained by this package.
_OF_NETWORKS = (
    "budget",
    "energy_kwh",
    "keep_checkpoints",
    "learning_curve",
    "validation_samples",
)


class ObjectiveSearch(SearchConfig):
    """`search` of a campaign that calls a user's function."""

    objective: str
    """Function of your own, as ``module:function``. It is called with a ``Job`` (a trial with its
    parameters), and returns a number, or a mapping with a number for each of ``objectives``."""
    epochs: int = Field(ge=1)
    """Length of a trial that no rung ends, in whatever unit the function counts. The first rung is
    at ``min_epochs``, in the same unit."""
    objectives: tuple[str, ...] = ("value",)
    """Names of the quantities to minimise, at most three; ``throughput`` is maximised. ``seconds``
    is measured if the function does not return that quantity."""

    @model_validator(mode="after")
    def _of_functions(self) -> ObjectiveSearch:
        for key in _OF_NETWORKS:
            if getattr(self, key) != SearchConfig.model_fields[key].default:
                raise ValueError(
                    f"{key} is for networks that are trained here, not for an objective of your "
                    f"own; remove it"
                )
        return self

    @field_validator("objective")
    @classmethod
    def _a_function(cls, name: str) -> str:
        if not callable(import_class(name)):
            raise ValueError(f"{name} cannot be called; name a function of a job")
        return name

    @field_validator("objectives")
    @classmethod
    def _few_known_objectives(cls, objectives: tuple[str, ...]) -> tuple[str, ...]:
        if not 1 <= len(objectives) <= MOST_OBJECTIVES:
            raise ValueError(f"must be one to {MOST_OBJECTIVES} objectives, got {len(objectives)}")
        if len(set(objectives)) < len(objectives):
            raise ValueError(f"{', '.join(objectives)}: one is given twice; remove it")
        if objectives[0] == SECONDS:
            raise ValueError(
                "the first is 'seconds', but rungs judge by the first; begin with an error"
            )
        return objectives

    @field_validator("constraints")
    @classmethod
    def _known_limits(cls, constraints: dict[str, float]) -> dict[str, float]:
        if unknown := constraints.keys() - {*_LIMITS}:
            known = ", ".join(_LIMITS)
            raise ValueError(f"{min(unknown)!r} is not measured of a function; known: {known}")
        return constraints


class ObjectiveConfig(Section):
    """Configuration of a campaign that calls a function: no data, network or ensemble."""

    name: str
    """Name of the run; its directory is ``runs/<name>`` unless the command line says otherwise."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the search, from which each job's own seed follows."""
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

    @field_validator("name")
    @classmethod
    def _is_a_file_name(cls, name: str) -> str:
        return is_file_name(name)


def load_campaign(
    path: str | Path, *, data: str | Path | None = None
) -> RunConfig | ObjectiveConfig:
    """Read and validate the configuration of a campaign, over networks or a user's function.

    Parameters
    ----------
    path, data
        Arguments of :func:`~hydragnn_flow.config.load_config`.

    Raises
    ------
    InputError
        If anything in the file is wrong; the message names file, key and remedy.
    """
    path = Path(path)
    values = read_yaml(path, PlainLoader)
    search = values.get("search")
    if not isinstance(search, dict) or "objective" not in search:
        return resolve_config(values, path, data=data)
    if data is not None:
        raise InputError(f"{path}: search.objective reads its own data; remove --data")
    if isinstance(search.get("warm_start"), list):
        search = {**search, "warm_start": absolute(search["warm_start"], path)}
    try:
        return ObjectiveConfig.model_validate({**values, "search": search})
    except ValidationError as error:
        raise explain(error, path) from None
