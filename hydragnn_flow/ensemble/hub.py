"""Ensembles on the Hugging Face hub: exported ones are sent there and fetched again."""

from __future__ import annotations

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
    hub, (name, _, revision) = _hub(), place.removeprefix(PREFIX).partition("@")
    try:
        return Path(hub.HfApi().snapshot_download(name, revision=revision or None))
    except Exception as error:  # its own, the connection's, the disk's
        raise InputError(
            f"{place}: cannot be fetched ({_line(error)}); correct the name, or try again"
        ) from error


def make(name: str) -> None:
    """Make a private repository ``OWNER/NAME`` on the hub, unless it exists.

    Raises
    ------
    InputError
        If `huggingface_hub` is not installed, or the hub refuses it.
    """
    hub = _hub()
    try:
        hub.HfApi().create_repo(name, private=True, exist_ok=True)
    except Exception as error:  # its own, the connection's, the disk's
        raise InputError(
            f"{name}: the hub refused it ({_line(error)}); correct the name, or log in with "
            f"`hf auth login`"
        ) from error


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
    hub = _hub()
    try:
        return str(hub.HfApi().upload_folder(**kept, commit_message="Ensemble").commit_url)
    except Exception as error:  # its own, the connection's, the disk's
        raise InputError(
            f"{name}: the hub refused {folder} ({_line(error)}); send it again with "
            f"`hf upload {name} {folder}`"
        ) from error


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise InputError(lacking("huggingface_hub", "hub")) from error
    return huggingface_hub


def _line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line), type(error).__name__)
