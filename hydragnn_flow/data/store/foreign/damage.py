"""The error for a file without checksums."""

from __future__ import annotations

from pathlib import Path

from hydragnn_flow.errors import StoreError


def damaged(path: Path, what: str) -> StoreError:
    """The error for a file that cannot be trusted; ``what`` follows its name."""
    return StoreError(f"{path} {what}: the file is damaged; restore it from a copy")
