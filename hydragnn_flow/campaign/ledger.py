"""Ledger: the segments of a run that have ended, and the way to its directory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from hydragnn_flow.errors import CampaignStopped
from hydragnn_flow.execution import check_driver
from hydragnn_flow.files import patiently
from hydragnn_flow.log import tell
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import SegmentResult

_logger = logging.getLogger(__name__)


class Ledger:
    """Every segment of a run that has ended; written to disk before it is acted on.

    Parameters
    ----------
    directory
        Of the run.
    token
        Of this driver; a newer one keeps it from writing.
    """

    def __init__(self, directory: RunDirectory, token: str) -> None:
        self._directory, self._token = directory, token
        self.results: list[SegmentResult] = list(directory.results())
        """Results in the order they ended."""
        self._bundles = max((int(r.bundle[1:]) for r in self.results if r.bundle), default=0)

    def next_bundle(self) -> str:
        """A name that no bundle has."""
        self._bundles += 1
        return f"b{self._bundles}"

    def record(self, results: Sequence[SegmentResult]) -> None:
        """Put results on disk; only then may they be acted on.

        Raises
        ------
        CampaignStopped
            If the run directory cannot be written to for minutes.
        """
        self.write(lambda: self._directory.record(results))
        self.results += results

    def write(self, action: Callable[[], None]) -> None:
        """Change a file of the run directory; waits for a disk that is full or gone for a while.

        Raises
        ------
        CampaignStopped
            If that takes minutes, or a newer driver is in charge.
        """
        path = self._directory.path

        def act() -> None:
            check_driver(path, self._token)
            action()

        try:
            patiently(act, self._tell_of_waiting)
        except OSError as error:
            raise CampaignStopped(
                f"{path}: cannot be written to ({error.strerror}); cure that and give the same "
                f"command again, nothing recorded is lost"
            ) from error

    def _tell_of_waiting(self, error: OSError) -> None:
        path = self._directory.path
        tell(_logger, "%s: cannot be written to (%s); waiting for it", path, error.strerror)
