"""Classes of the user's own, named ``module:Class`` in a configuration."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path
from typing import Any


def import_class(name: str) -> Any:
    """Import the class or function that ``module:Class`` names.

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


def with_place(error: BaseException) -> str:
    """Return type, message and innermost line of a raised error, as no traceback is shown."""
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(innermost.filename).name}, line {innermost.lineno}"
    return f"{type(error).__name__} in {place}: {one_line(error)}"


def one_line(error: BaseException) -> str:
    """Return the message of an error without line breaks, or its type if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__
