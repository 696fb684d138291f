"""Directories under construction, built next to their final name and committed by a rename."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from hydragnn_flow.data.store.integrity import fsync_path, fsync_tree
from hydragnn_flow.errors import StoreError
from hydragnn_flow.locks import Held, Unlockable, locked

Work = Literal["preparing", "writing"]


def building_of(path: Path, work: Work) -> Path:
    """Return the directory next to ``path`` in which it is built."""
    return path.with_name(f".{path.name}.{work}")


@contextmanager
def alone(path: Path, work: Work) -> Iterator[Path]:
    """Create the directory in which ``path`` is built, for one process at a time.

    It stays when the block ends or the process is killed, so that the next process finds it.

    Raises
    ------
    StoreError
        If another process builds ``path`` or has just built it, or the directory cannot be made or
        locked.
    """
    building = building_of(path, work)
    busy = StoreError(f"another process is {work} {path}; wait for it, or choose another directory")
    with ExitStack() as stack:
        try:
            building.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(building / "lock", 0.0))
        except (Held, FileNotFoundError):  # deleted by a process that has just finished
            raise busy from None
        except Unlockable as error:
            raise StoreError(
                f"{path} is on a file system that cannot lock files ({error.strerror}); "
                "choose a directory on another"
            ) from error
        except OSError as error:
            raise StoreError(
                f"{path} cannot be created ({error.strerror}); choose a directory you can write to"
            ) from error
        if path.exists():
            raise busy
        yield building


def commit(staging: Path, path: Path) -> None:
    """Give a finished directory its final name, durably.

    Raises
    ------
    StoreError
        If another writer was faster; its directory is kept.
    """
    fsync_tree(staging)
    try:
        staging.rename(path)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be put in place ({error.strerror}); "
            "choose another name or delete what is there"
        ) from error
    fsync_path(path.parent)


def cannot_write(path: Path, error: OSError) -> StoreError:
    """Return the error for a disk that is full or not writable."""
    return StoreError(
        f"{path} cannot be written ({error.strerror or error}); "
        "free space on its disk or choose another directory"
    )
