"""Ledger: the ended segments of a run, and guarded writing to its directory."""

from __future__ import annotations

import logging
import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydragnn_flow.errors import CampaignStopped
from hydragnn_flow.execution import DriverFile
from hydragnn_flow.files import passing, patiently
from hydragnn_flow.garbage import no_collection
from hydragnn_flow.log import tell
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import SegmentResult, trial_kwh

_logger = logging.getLogger(__name__)


@contextmanager
def answering(path: Path, is_disks: Callable[[OSError], object] = passing) -> Iterator[None]:
    """Stop a campaign with one sentence if the disk of its directory is full or unreachable.

    Raises
    ------
    CampaignStopped
        Instead of the disk's error.
    """
    try:
        yield
    except OSError as error:
        if not is_disks(error):
            raise
        raise CampaignStopped(
            f"{error.filename or path}: cannot be used ({error.strerror}); cure that and give the "
            f"same command again, nothing recorded is lost"
        ) from error


class Ledger:
    """Ended segments of a run; written to disk before they are acted on.

    A driver that works for days records millions. For an ended trial it keeps in memory only what
    its members may need; the rest is on disk.

    Parameters
    ----------
    directory
        Run directory of the campaign.
    token
        Token of this driver; a newer driver prevents it from writing.
    """

    def __init__(self, directory: RunDirectory, token: str) -> None:
        self._directory, self.token = directory, token
        self._driver = DriverFile(directory.path)
        self.trials: defaultdict[int, list[SegmentResult]] = defaultdict(list)
        """Segments of each trial, in the order in which they ended."""
        self.members: list[SegmentResult] = []
        """Segments of members, in the order in which they ended."""
        self.counts_energy = False
        """True if the energy of any segment was measured."""
        self.trial_kwh = 0.0
        """Total counted energy of the segments of trials [kWh]."""

    def load(self, learn: Callable[[Sequence[SegmentResult]], None]) -> None:
        """Read the records of earlier drivers; for each trial keep only what an ended one needs.

        Parameters
        ----------
        learn
            Function called with every complete record.

        Raises
        ------
        InputError
            If the file is damaged.
        """
        with no_collection():
            for result in self._directory.results():
                learn([result])
                self._add(result)
                if result.kind == "trial":
                    self.settle(result.number)

    def load_whole(self, trials: Collection[int]) -> None:
        """Read all segments of trials that have not ended."""
        for number in trials:
            self.trials.pop(number, None)
        for result in self._directory.results(trials) if trials else ():
            self.trials[result.number].append(result)

    def settle(self, trial: int) -> None:
        """Drop what members of an ended trial do not need."""
        judged = whole = False
        kept = deque[SegmentResult]()
        for result in reversed(self.trials[trial]):
            is_last = (is_judged(result) and not judged) or (result.is_whole and not whole)
            if is_last or result.status == "out_of_memory":
                judged, whole = judged or is_judged(result), whole or result.is_whole
                result.drop_details()
                kept.appendleft(result)
        self.trials[trial] = list(kept)

    def record(self, results: Sequence[SegmentResult]) -> None:
        """Write results to disk; only then may they be acted on.

        Raises
        ------
        CampaignStopped
            If the run directory cannot be written for minutes.
        """
        self.write(lambda: self._directory.record(results))
        for result in results:
            self._add(result)

    def _add(self, result: SegmentResult) -> None:
        of = self.members if result.kind == "member" else self.trials[result.number]
        of.append(result)
        self.counts_energy |= result.joules is not None
        self.trial_kwh += trial_kwh([result])

    def write(self, action: Callable[[], None]) -> None:
        """Change a file of the run directory; wait while the disk is full or unreachable.

        Raises
        ------
        CampaignStopped
            If that takes minutes, or a newer driver is in charge.
        """

        def act() -> None:
            self._driver.check(self.token)
            action()

        with answering(self._directory.path, bool):
            patiently(act, self._tell_of_waiting)

    def _tell_of_waiting(self, error: OSError) -> None:
        path = self._directory.path
        tell(_logger, "%s: cannot be written to (%s); waiting for it", path, error.strerror)


def is_judged(result: SegmentResult) -> bool:
    """True if a segment ended with validated weights."""
    return result.best_val_error is not None and math.isfinite(result.best_val_error)
