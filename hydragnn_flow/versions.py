"""Versions of all that the numbers of a run depend on."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

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


def versions() -> dict[str, str]:
    """Version of Python and of each of these packages that is installed, by name.

    No package is imported for it.
    """
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
