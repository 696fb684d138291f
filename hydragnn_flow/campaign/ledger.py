"""Ledger: the segments of a run that have ended, and the way to its directory."""

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
    """Stop a campaign, in one sentence, where the disk of its directory is full or away.

    Raises
    ------
    CampaignStopped
        In place of what the disk raised.
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
    """The segments of a run that have ended; written to disk before they are acted on.

    A driver that works for days records millions. Of a trial that has ended it keeps in memory what
    its members may need; the rest is on disk.

    Parameters
    ----------
    directory
        Of the run.
    token
        Of this driver; a newer one keeps it from writing.
    """

    def __init__(self, directory: RunDirectory, token: str) -> None:
        self._directory, self.token = directory, token
        self._driver = DriverFile(directory.path)
        self.trials: defaultdict[int, list[SegmentResult]] = defaultdict(list)
        """Segments of each trial, in the order they ended."""
        self.members: list[SegmentResult] = []
        """Those of members, in the order they ended."""
        self.counts_energy = False
        """Whether the energy of any was measured."""
        self.trial_kwh = 0.0
        """Energy of all segments of trials [kWh], as far as it was counted."""

    def load(self, learn: Callable[[Sequence[SegmentResult]], None]) -> None:
        """Read what earlier drivers recorded; of trials only what those that ended are kept by.

        Parameters
        ----------
        learn
            Is given every segment, whole.

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
        """Keep of a trial that has ended what its members need."""
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
        """Put results on disk; only then may they be acted on.

        Raises
        ------
        CampaignStopped
            If the run directory cannot be written to for minutes.
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
        """Change a file of the run directory; waits for a disk that is full or gone for a while.

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
    """Whether a segment ended with weights that were validated."""
    return result.best_val_error is not None and math.isfinite(result.best_val_error)
