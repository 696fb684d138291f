"""Engines: builders of networks that this package does not implement.

An engine is a function ``build(network, manifest)`` that returns a module; see
:mod:`hydragnn_flow.engines`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from inspect import isclass
from typing import Any

from pydantic import ConfigDict, Field, ValidationError, model_validator

from hydragnn_flow.config.base import Section, check_keys, explain
from hydragnn_flow.config.domain import did_you_mean
from hydragnn_flow.config.network.architecture import CommonArchitecture
from hydragnn_flow.config.network.hydragnn_keys import default_weights
from hydragnn_flow.config.user_classes import import_class

ENGINES: dict[str, str] = {"hydragnn": "hydragnn_flow.engines.hydragnn:build"}
"""Engines that have a short name."""


@lru_cache(maxsize=16)
def engine_of(name: str) -> Any:
    """Import the build function of an engine.

    Parameters
    ----------
    name
        Key of :data:`ENGINES`, or ``module:build``.

    Raises
    ------
    ValueError
        If there is no such function, or its `options` are not a schema.
    """
    if name not in ENGINES and ":" not in name:
        known = ", ".join(map(repr, ENGINES))
        raise ValueError(
            f"must be one of {known}, or module:build, got {name!r}{did_you_mean(name, ENGINES)}"
        )
    build = import_class(ENGINES.get(name, name))
    if not callable(build):
        raise ValueError(f"{name} cannot be called; name a function build(network, manifest)")
    schema = getattr(build, "options", None)
    if schema is not None and not (isclass(schema) and issubclass(schema, Section)):
        raise ValueError(
            f"{name}.options is no schema: derive it from {Section.__module__}.Section, or remove "
            f"it"
        )
    return build


class EngineArchitecture(CommonArchitecture):
    """`NeuralNetwork.Architecture` of an engine: its own keys, and those of store and loss."""

    model_config = ConfigDict(extra="allow")

    branches: int = Field(default=1, ge=1)
    """Number of branches: data sets whose reference energies, means and spreads differ. By default
    the number of ``data.sources``."""

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        fields = cls.model_fields
        own = {key: value for key, value in values.items() if key not in fields}
        # HydraGNN writes null for keys that are not given.
        ours = {k: v for k, v in values.items() if k in fields and v is not None}
        return {**check_keys(cls, ours), **own} | default_weights(ours)

    @property
    def own(self) -> Mapping[str, Any]:
        """Keys that belong to the engine."""
        return self.__pydantic_extra__ or {}

    def check(self, engine: str) -> None:
        """Validate the engine's own keys by its schema, if it has one.

        Raises
        ------
        ValueError
            If a key is wrong; the message names the first.
        """
        schema = getattr(engine_of(engine), "options", None)
        if schema is None:
            return
        try:
            schema.model_validate(dict(self.own))
        except ValidationError as error:
            raise ValueError(str(explain(error, "Architecture"))) from None
