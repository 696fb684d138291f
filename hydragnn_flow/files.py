"""Files that survive a crash: replaced at once, or appended to line by line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` at once; a crash leaves the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, values: Any) -> None:
    """Replace ``path`` by ``values`` as JSON at once."""
    write_text(path, json.dumps(values, indent=1) + "\n")


def same_file(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one that is at ``path`` now.

    Whoever has waited for a lock on a file that its holder may delete asks this.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def drop_torn_record(path: Path) -> int:
    """Cut a last line that a crash left without its newline; returns the bytes removed.

    Both of the run's append-only files hold one JSON record per line. A record without its newline
    was never acted on; left in place, the next record would be glued to it and neither could be
    read again.
    """
    if not path.exists():
        return 0
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        keep = end
        while keep > 0:
            start = max(0, keep - 4096)
            file.seek(start)
            newline = file.read(keep - start).rfind(b"\n")
            if newline >= 0:
                keep = start + newline + 1
                break
            keep = start
        if keep < end:
            file.truncate(keep)
            os.fsync(file.fileno())
    return end - keep
