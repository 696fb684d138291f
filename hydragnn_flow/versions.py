"""Versions of everything that the numbers of a run depend on."""

from __future__ import annotations

import hashlib
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

_PACKAGES = (
    "hydragnn_flow",
    "torch",
    "torch-geometric",
    "optuna",
    "parsl",
    "adios2",
    "ase",
    "vesin",
    "numpy",
    "pandas",
)
try:
    __version__ = version("hydragnn_flow")
except PackageNotFoundError:  # a tree that is not installed
    __version__ = "unknown"
_CLASS = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_]\w*")


def versions(values: Any = None) -> dict[str, str]:
    """Return the versions of Python and of the installed packages that results depend on, by name.

    No package is imported for this.

    Parameters
    ----------
    values
        Configuration as plain values. Packages of the classes that it names as ``module:Class`` are
        added if they were imported. A module that belongs to no installed package is listed with
        the SHA-256 of its file.
    """
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    for module in sorted(set(_imported_modules(values))):
        packages = packages_distributions().get(module.partition(".")[0], ())
        found |= {package: version(package) for package in packages}
        file = getattr(sys.modules[module], "__file__", None)
        if not packages and file is not None:
            with suppress(OSError):  # in an archive, or deleted since it was imported
                found[module] = f"sha256 {hashlib.sha256(Path(file).read_bytes()).hexdigest()}"
    return found


def _imported_modules(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        named = _CLASS.fullmatch(values)
        if named and named[1] in sys.modules:
            yield named[1]
    elif isinstance(values, (dict, list)):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _imported_modules(value)
