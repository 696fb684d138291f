"""Ensembles on the Hugging Face hub: exported ones are sent there and fetched again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydragnn_flow.errors import InputError

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
            f"{place}: cannot be fetched ({_line(error)}); correct the name"
        ) from error


def send(folder: Path, name: str) -> str:
    """Send an exported ensemble to the hub; return the address of the commit there.

    Parameters
    ----------
    folder
        Directory of the exported ensemble.
    name
        ``OWNER/NAME`` of the repository, which is made if there is none.

    Raises
    ------
    InputError
        If `huggingface_hub` is not installed, or the hub refuses the files.
    """
    hub = _hub()
    try:
        api = hub.HfApi()
        api.create_repo(name, exist_ok=True)
        commit = api.upload_folder(repo_id=name, folder_path=folder, commit_message="Ensemble")
    except Exception as error:  # its own, the connection's, the disk's
        raise InputError(
            f"{name}: the hub refused {folder} ({_line(error)}); log in with `hf auth login`"
        ) from error
    return str(commit.commit_url)


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise InputError(
            "huggingface_hub is not installed; give `pip install 'hydragnn_flow[hub]'`"
        ) from error
    return huggingface_hub


def _line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line), type(error).__name__)
