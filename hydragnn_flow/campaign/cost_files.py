"""Cost files: measured costs of segments on a site, so that the next campaign starts calibrated.

There are two files: the site's in the user's cache, and the run's in the run directory. They hold
observations rather than fits, so that a better fit can use old observations. Campaigns that share
the site's file add to it, one campaign at a time.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from hydragnn_flow.execution import Site
from hydragnn_flow.files import write_json
from hydragnn_flow.locks import Held, Unlockable, locked
from hydragnn_flow.log import tell
from hydragnn_flow.placement import Experience

VERSION = 2
"""Version of the format of cost files."""
FILE = "cost.json"
"""Name of the file in a run directory."""
_logger = logging.getLogger(__name__)


class CostFiles:
    """Files with measured time, memory and energy of segments, to predict those of later ones.

    One file belongs to the site and lies in the user's cache; the other lies in the run directory.

    Parameters
    ----------
    site
        Site of the segments. Observations with another name, kind of device, number of threads
        or version of torch are ignored.
    run_directory
        Run directory; None to read and write only the site's file.
    """

    def __init__(self, site: Site, run_directory: Path | None = None) -> None:
        node = site.node
        self._key = {
            "site": site.name,
            "device": node.device,
            "threads": node.cores_per_gcd,
            "torch": version("torch"),
        }
        # The name contains the whole key, so that each version of torch has its own file.
        name = re.sub(r"[^\w.-]", "-", "-".join(map(str, self._key.values())))
        self._paths: list[Path] = []
        if cache := _cache():
            self._paths.append(cache / "hydragnn_flow" / "cost" / f"{name}.json")
        if run_directory is not None:
            self._paths.append(run_directory / FILE)
        self._failed: set[Path] = set()
        # Observations that a file already has: written before, or read from another file.
        self._known: dict[Path, list[Experience]] = {}

    def read(self) -> list[Experience]:
        """Read the measurements in the cost files; tell the user of each file that is ignored."""
        read: list[Experience] = []
        for path in self._paths:
            found = self._found(path)
            if isinstance(found, Experience):
                read.append(found)
            elif found:
                told = "%s: %s; it is ignored, and costs are learned anew"
                tell(_logger, told, path, found)
        self._known = dict.fromkeys(self._paths, read)
        return read

    def write(self, experience: Experience) -> None:
        """Add measurements to the cost files; tell the user once of a file that cannot be written.

        Observations that other campaigns have written meanwhile are kept, and count as older.
        """
        for path in self._paths:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with _alone(path):
                    kept, there = experience, self._found(path)
                    if isinstance(there, Experience):
                        for known in self._known.get(path, ()):
                            kept = kept.without(known)
                        kept = kept.after(there)
                    write_json(path, {"version": VERSION, **self._key, **asdict(kept)})
                self._known[path] = [experience]
            except (OSError, Held) as error:
                if path not in self._failed:
                    tell(
                        _logger,
                        "%s: cannot be written (%s), so that the next campaign learns costs anew",
                        path,
                        error.strerror if isinstance(error, OSError) else "its lock is held",
                    )
                self._failed.add(path)

    def _found(self, path: Path) -> Experience | str:
        """Return the content of a file, or the reason to ignore it; "" if there is no file."""
        try:
            return self._experience(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        except ValueError as error:
            return f"is damaged ({error})"

    def _experience(self, values: Any) -> Experience | str:
        """Return the measurements in a file's JSON values, or the reason to ignore the file.

        Raises
        ------
        ValueError
            If the file is damaged.
        """
        if not isinstance(values, dict):
            raise ValueError("it is no JSON object")
        if values.get("version") != VERSION:
            return f"is of version {values.get('version')}, this package reads {VERSION}"
        for name, mine in self._key.items():
            if values.get(name) != mine:
                return f"is of {name} {values.get(name)}, here it is {mine}"
        return msgspec.convert(values, Experience)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Context manager: keep other campaigns from writing the file at ``path``.

    On a file system without locks another campaign may interfere, and observations may be lost.
    """
    with ExitStack() as stack:
        # The file itself is replaced, and would lose its lock. Writing takes an instant.
        with suppress(Unlockable):
            stack.enter_context(locked(path.with_name(f".{path.name}.lock"), 5.0))
        yield


def _cache() -> Path | None:
    """Return the user's cache directory (XDG Base Directory Specification 0.8).

    The result is None if the user has no home directory.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():
        return given
    with suppress(RuntimeError):
        return Path.home() / ".cache"
    return None
