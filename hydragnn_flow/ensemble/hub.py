"""Ensembles on the Hugging Face hub: exported ones are sent there and fetched again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydragnn_flow.errors import InputError, lacking

PREFIX = "hf://"
"""Beginning of the name of an ensemble on the hub: ``hf://OWNER/NAME`` or ``…@REVISION``."""


def fetched(place: str) -> Path:
    """Return the directory with an ensemble of the hub, fetched unless it is there already.

    Raises
    ------
    InputError
        If the package `huggingface_hub` is not installed, or the hub has no such ensemble.
    """
    name, _, revision = place.removeprefix(PREFIX).partition("@")
    with _hub(f"{place}: cannot be fetched", "correct the name, or try again") as hub:
        return Path(hub.snapshot_download(name, revision=revision or None))


def make(name: str) -> None:
    """Make a private repository ``OWNER/NAME`` on the hub, unless it exists.

    Raises
    ------
    InputError
        If `huggingface_hub` is not installed, or the hub refuses it.
    """
    remedy = "correct the name, or log in with `hf auth login`"
    with _hub(f"{name}: the hub refused it", remedy) as hub:
        hub.create_repo(name, private=True, exist_ok=True)


def send(folder: Path, name: str) -> str:
    """Send an exported ensemble to a repository of the hub; return the address of the commit.

    Parameters
    ----------
    folder
        Directory of the exported ensemble; other files of the repository are deleted.
    name
        ``OWNER/NAME`` of the repository.

    Raises
    ------
    InputError
        If `huggingface_hub` is not installed, or the hub refuses the files.
    """
    kept = {"repo_id": name, "folder_path": folder, "delete_patterns": "*"}
    remedy = f"send it again with `hf upload {name} {folder}`"
    with _hub(f"{name}: the hub refused {folder}", remedy) as hub:
        return str(hub.upload_folder(**kept, commit_message="Ensemble").commit_url)


@contextmanager
def _hub(fault: str, remedy: str) -> Iterator[Any]:
    """Context manager: yield the hub, any error of which becomes ``fault`` and ``remedy``."""
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise InputError(lacking("huggingface_hub", "hub")) from error
    try:
        yield HfApi()
    except Exception as error:  # its own, the connection's, the disk's
        line = next((line for line in str(error).splitlines() if line), type(error).__name__)
        raise InputError(f"{fault} ({line}); {remedy}") from error
