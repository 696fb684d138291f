"""Trying out a file nothing is known about."""

from __future__ import annotations

from pathlib import Path

from hydragnn_flow.data.store.foreign import survey

BASE_SECONDS = 60.0


def probe(path: Path) -> None:
    """Look all of a BP5 file through before this process opens it; see :func:`survey`."""
    survey(path)
