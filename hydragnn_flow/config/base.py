"""What every section of a configuration has in common: unknown keys are refused with the nearest
right one, and a pydantic report becomes one sentence naming file and key."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from hydragnn_flow.errors import InputError


class Section(BaseModel):
    """A section of a configuration file; immutable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        if isinstance(values, dict):
            for key in values:
                if key not in cls.model_fields:
                    raise ValueError(unknown_key(key, cls.model_fields))
        return values


def unknown_key(key: object, known: Iterable[str]) -> str:
    """Say that a key is unknown, and which known one was probably meant."""
    names = list(known)
    near = difflib.get_close_matches(str(key), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(names))}"
    return f"unknown key {key!r}; {hint}"


def explain(error: ValidationError, source: object) -> InputError:
    """Turn pydantic's report into one sentence about the first mistake.

    Parameters
    ----------
    error
        What pydantic found.
    source
        The file, or other origin, the values came from.
    """
    first = error.errors(include_url=False)[0]
    # Tags of discriminated unions appear in pydantic's location but not in the user's file.
    known_tags = {"emt_alloys", "extxyz", "mlearn", "choices", "int", "float"}
    place = [str(part) for part in first["loc"]]
    if len(place) > 1 and place[-1] in known_tags:
        place = place[:-1]
    place = [part for i, part in enumerate(place) if i == 0 or part not in known_tags]
    key = ".".join(place)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        message = "this key is required"
    elif first["type"] != "value_error":
        message = f"{message}, got {first['input']!r}"
    return InputError(f"{source}: {key}: {message}" if key else f"{source}: {message}")


def validate(model: type[Section], values: Any, source: object) -> Any:
    """Build ``model`` from ``values``; a mistake becomes one sentence that names ``source``."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise explain(error, source) from None
