"""Base class of every section of a configuration: unknown keys are refused with the nearest
right one, and a pydantic report becomes one sentence naming file and key.
"""

from __future__ import annotations

import difflib
import importlib
import re
import reprlib
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from hydragnn_flow.errors import InputError

_WHOLE = (int, int | None)
_NUMBER = (float, float | None)
# Pydantic's names of the members of unions.
_TYPES = {"bool", "constrained-int", "tuple[constrained-int, ...]"}
# Pydantic's words for the types of a YAML or JSON file.
_IN_PLAIN_WORDS = {
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "path_type": "must be a path",
    "string_type": "must be text",
    "too_short": "must not be empty",
    "too_long": "has too many values",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
}


class Section(BaseModel):
    """Base class of a configuration file's sections: immutable, and unknown keys are refused."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,  # the reference in docs/ is generated from them
    )

    unused: ClassVar[Mapping[str, str]] = {}
    """Reason by key, for keys that are accepted but change nothing."""
    refused: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Reason and remedy by key, for keys that must switch their feature off."""

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        return check_keys(cls, values)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for conflict in self._conflicts():
            raise ValueError(conflict)
        return self

    def _conflicts(self) -> Iterator[str]:
        """Yield sentences about values that are impossible, or do not go together."""
        return iter(())


def check_keys(section: type[Section], values: Any) -> Any:
    """Check the keys of a section as given in a file; return the values of keys that are read.

    Values that are not a dict are returned unchanged.

    Raises
    ------
    ValueError
        If a key is unknown, a refused key is not off, a number is out of range, or pydantic would
        convert a value to the type of its key. The message names the key.
    """
    if isinstance(values, dict):
        fields = section.model_fields  # a slow property
        for key in values.keys() & section.refused.keys():
            if not _is_off(values[key]):
                reason, remedy = section.refused[key]
                raise ValueError(f"{key!r} cannot be honoured: {reason}; {remedy}")
        unread = {*section.unused, *section.refused}
        values = {key: value for key, value in values.items() if key not in unread}
        for key, value in values.items():
            if key not in fields:
                raise ValueError(unknown_key(key, fields, section.unused))
            # Pydantic would read `yes` as 1; a whole number in quotes is an error as well.
            kind = fields[key].annotation
            if kind in _WHOLE and isinstance(value, (bool, str)):
                raise ValueError(f"{key} must be a whole number, got {value!r}")
            if kind in _NUMBER and isinstance(value, bool):
                raise ValueError(f"{key} must be a number, got {value!r}")
            # Larger whole numbers are not exact as floats, and no count gets so large.
            if isinstance(value, int) and abs(value) > 2**53:
                raise ValueError(f"{key} is out of range, got {reprlib.repr(value)}")
    return values


def _is_off(value: Any) -> bool:
    if isinstance(value, dict) and "enable" in value:
        value = value["enable"]
    return value in (None, False, 0, "", [], {})


def unknown_key(key: object, known: Iterable[str], unused: Mapping[str, str] | None = None) -> str:
    """Return the message that a key is unknown, with the known key that was probably meant.

    Parameters
    ----------
    key
        Key in the user's file.
    known
        Keys that the section reads.
    unused
        Reason by key, for keys that are accepted too but change nothing.
    """
    unused = unused or {}
    names, given = list(known), _bare(str(key))
    # HydraGNN's keys are in several styles: `early_stopping` is most likely `EarlyStopping`.
    near = [name for name in [*names, *unused] if _bare(name) == given]
    if not near and len(given) > 3:  # enough to guess a longer one from
        near = [name for name in [*names, *unused] if _bare(name).startswith(given)]
    near = near or difflib.get_close_matches(str(key), [*names, *unused], n=1, cutoff=0.5)
    if not near:
        return f"unknown key {key!r}; known keys: {', '.join(sorted(names))}"
    said = f"unknown key {key!r}; did you mean {near[0]!r}?"
    if near[0] in unused:
        said += f" It is accepted and changes nothing: {unused[near[0]]}"
    return said


def _bare(key: str) -> str:
    return key.replace("_", "").lower()


def explain(error: ValidationError, source: object) -> InputError:
    """Convert pydantic's report into an error with one sentence about the first mistake.

    Parameters
    ----------
    error
        Report of pydantic's validation.
    source
        File or other origin of the values, with which the sentence begins.
    """
    errors = error.errors(include_url=False)
    # For a list, report the error of the union's member that takes lists, not of the number.
    meant = (e for e in errors if e["type"] != "int_type" or not isinstance(e["input"], list))
    first = next(meant, errors[0])
    # The member of a union that pydantic tried is in its location but not in the user's file.
    place = [str(key) for key in first["loc"] if str(key) not in _TYPES]
    kind = first["type"]
    if kind == "missing" and isinstance(first["loc"][-1], int):
        place.pop()
        message = "has too few values"
    elif kind == "missing":
        message = "this key is required"
    elif kind == "value_error":
        message = first["msg"].removeprefix("Value error, ")
    elif first["loc"][-1:] == ("bool",):
        message = f"must be a number, a word, true or false, got {reprlib.repr(first['input'])}"
    else:
        # "Input should be less than 1", "String should have at least 1 character"
        said = re.sub(r"^\w+ should ", "must ", first["msg"])
        message = f"{_IN_PLAIN_WORDS.get(kind, said)}, got {reprlib.repr(first['input'])}"
    key = ".".join(place)
    return InputError(f"{source}: {key}: {message}" if key else f"{source}: {message}")


def validate(model: type[Section], values: Any, source: object) -> Any:
    """Build a configuration section of the class ``model`` from the values of its keys.

    Raises
    ------
    InputError
        If a value is wrong. The message is one sentence that begins with ``source``, the file or
        other origin of the values.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise explain(error, source) from None


def import_class(name: str) -> Any:
    """Import and return the class or function that ``name`` gives as ``module:Class``.

    Raises
    ------
    ValueError
        If there is no such module or class, or the module cannot be imported.
    """
    module, _, attribute = name.partition(":")
    try:
        home = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"there is no module {error.name!r}; install it, or add its folder to PYTHONPATH"
        ) from None
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise ValueError(f"{module!r} cannot be imported: {one_line(error)}") from None
    if not hasattr(home, attribute):
        raise ValueError(f"{module} has no {attribute!r}; correct the name")
    return getattr(home, attribute)


def check_callable(name: str, what: str) -> str:
    """Return a name, `module:function`, after checking that it names a callable.

    Raises
    ------
    ValueError
        If it does not, or cannot be imported; the message ends with ``what`` the user is to name.
    """
    if not callable(import_class(name)):
        raise ValueError(f"{name} cannot be called; name {what}")
    return name


def with_place(error: BaseException) -> str:
    """Describe a raised error in words: its type, the file and line that raised it, its message."""
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(innermost.filename).name}, line {innermost.lineno}"
    return f"{type(error).__name__} in {place}: {one_line(error)}"


def one_line(error: BaseException) -> str:
    """Return the message of an error without line breaks, or its type if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__
