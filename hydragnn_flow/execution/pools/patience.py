"""Patience with a scheduler: when a pool requests its next block, and when it gives up."""

from __future__ import annotations

import logging
import time

from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution.pools.parsl_executor import NoAnswer, ParslExecutor, Refused
from hydragnn_flow.execution.pools.waits import WAITS
from hydragnn_flow.log import NOTICE

# Numbers of fruitless blocks, and of refusals, in a row before the campaign stops.
MOST_FRUITLESS, MOST_REFUSALS = 3, 6

_logger = logging.getLogger(__name__)


class Patience:
    """Waits of one pool after blocks that were refused or did no work.

    Parameters
    ----------
    site
        Name of the site, for messages.
    parsl
        Parsl executor of the pool.
    """

    def __init__(self, site: str, parsl: ParslExecutor) -> None:
        self._site, self._parsl = site, parsl
        self.trouble = ""
        """Reason why the next block has to wait, in words."""
        self.was_granted = self.was_refused = False
        """True if the scheduler has ever accepted a job; and if it has refused one or given no
        answer."""
        self._not_before = 0.0
        self._fruitless = self._refused = 0

    @property
    def may_request(self) -> bool:
        """True if the next block may be requested."""
        return time.monotonic() >= self._not_before

    @property
    def is_wary(self) -> bool:
        """True if the scheduler refused the last block, or has not accepted one yet."""
        return not self.was_granted or bool(self._refused)

    def grant(self) -> None:
        """Record that the scheduler accepted a job."""
        self._refused, self.was_granted, self.trouble = 0, True, ""

    def worked(self) -> None:
        """Record that a task was done."""
        self._fruitless, self.trouble = 0, ""

    def fruitless(self, said: str, is_anything_at_work: bool, least_wait: float = 0.0) -> None:
        """Record that a block ended without a result or a checkpoint.

        Parameters
        ----------
        said
            Last words of its standard error.
        is_anything_at_work
            True if another block works, so that there is hope.
        least_wait
            Least time before the next block [s].

        Raises
        ------
        CampaignStopped
            If too many blocks in a row did.
        """
        self._fruitless += 1
        if self._fruitless >= MOST_FRUITLESS and not is_anything_at_work:
            raise CampaignStopped(
                f"site {self._site}: {MOST_FRUITLESS} blocks in a row ended without a result or a "
                f"checkpoint ({said}); see {self._parsl.scripts}, and give the same command again"
            )
        seconds = max(least_wait, WAITS.fruitless * 3 ** min(self._fruitless - 1, 9))
        self._put_off(seconds, f"the last block ended without a result or a checkpoint ({said})")

    def refuse(self, refusal: Refused, has_blocks: bool) -> None:
        """Record that the scheduler refused a job, or gave no answer.

        Parameters
        ----------
        refusal
            Exception with the scheduler's reason.
        has_blocks
            True if there are blocks; a queue may limit their number.

        Raises
        ------
        InputError
            If it has not accepted a job yet, so account or queue may be wrong.
        CampaignStopped
            If it keeps refusing.
        """
        self._refused += 1
        sentence = f"site {self._site}: gets no workers: {refusal}; see {self._parsl.scripts}"
        is_silent = isinstance(refusal, NoAnswer)
        if not is_silent and not self.was_granted:
            raise InputError(sentence)
        if self._refused > MOST_REFUSALS and not has_blocks:
            raise CampaignStopped(f"{sentence}, and give the same command again")
        did = "does not answer" if is_silent else "refused a block"
        self._put_off(
            WAITS.refusal * 2 ** min(self._refused - 1, 9),
            f"the scheduler {did} ({refusal})",
            logging.INFO if has_blocks else NOTICE,
        )

    def _put_off(self, seconds: float, trouble: str, level: int = logging.INFO) -> None:
        seconds = min(seconds, 300.0)
        self.trouble, self._not_before = trouble, time.monotonic() + seconds
        _logger.log(level, "%s; the next is asked for in %.0f s", trouble, seconds)
