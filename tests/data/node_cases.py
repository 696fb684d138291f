"""Directories of a node that the tests of shared memory look into."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

USER = f"hydragnn_flow-{os.getuid()}"


def entries(base: Path) -> list[str]:
    return sorted(path.name for path in (base / USER).glob("*") if path.is_dir())


def in_child(what: Callable[[], object]) -> int:
    """Run something in a fork of this process that ends at once after it; its wait status."""
    child = os.fork()
    if child == 0:
        try:
            what()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]
