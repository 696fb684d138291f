"""Cost files: measured costs of segments on a site, so that the next campaign starts calibrated.

Each site has a file in the user's cache. It holds observations rather than fits, so that a better
fit can use old observations. Campaigns on the site add to it, one campaign at a time.
"""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import ExitStack, suppress
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
_logger = logging.getLogger(__name__)


class CostFile:
    """File with measured time, memory and energy of a site's segments, to predict later ones.

    It lies in the user's cache; a user without a home directory has none.

    Parameters
    ----------
    site
        Site of the segments. Observations with another name, kind of device, number of threads
        or version of torch are ignored.
    """

    def __init__(self, site: Site) -> None:
        node = site.node
        self._key = {
            "site": site.name,
            "device": node.device,
            "threads": node.cores_per_gcd,
            "torch": version("torch"),
        }
        # The name contains the whole key, so that each version of torch has its own file.
        name = re.sub(r"[^\w.-]", "-", "-".join(map(str, self._key.values())))
        cache = _cache()
        self._path = cache and cache / "hydragnn_flow" / "cost" / f"{name}.json"
        self._has_failed = False
        # Observations that the file already has.
        self._known: Experience | None = None

    def read(self) -> Experience | None:
        """Return the measurements in the file, if any; tell the user if the file is ignored."""
        found = self._found(self._path) if self._path else ""
        self._known = found if isinstance(found, Experience) else None
        if isinstance(found, str) and found:
            tell(_logger, "%s: %s; it is ignored, and costs are learned anew", self._path, found)
        return self._known

    def write(self, experience: Experience) -> None:
        """Add measurements to the file; tell the user once if it cannot be written.

        Observations that other campaigns have written meanwhile are kept, and count as older.
        """
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with ExitStack() as stack:
                # The file itself is replaced, and would lose its lock. Writing takes an instant.
                # Without locks another campaign may interfere, and observations may be lost.
                with suppress(Unlockable):
                    lock = self._path.with_name(f".{self._path.name}.lock")
                    stack.enter_context(locked(lock, 5.0))
                kept, there = experience, self._found(self._path)
                if isinstance(there, Experience):
                    if self._known is not None:
                        kept = kept.without(self._known)
                    kept = kept.after(there)
                write_json(self._path, {"version": VERSION, **self._key, **asdict(kept)})
            self._known = experience
        except (OSError, Held) as error:
            if not self._has_failed:
                tell(
                    _logger,
                    "%s: cannot be written (%s), so that the next campaign learns costs anew",
                    self._path,
                    error.strerror if isinstance(error, OSError) else "its lock is held",
                )
            self._has_failed = True

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
