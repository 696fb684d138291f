"""Who does the work of preparing a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Protocol

from hydragnn_flow.data.preparing.tasks import run_task
from hydragnn_flow.errors import CampaignStopped, InputError

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many are done, and of how many."""

_ATTEMPTS = 3
_CHECK_SECONDS = 1.0


class Workers(Protocol):
    """Processes that run tasks, such as those of a site's pool."""

    def submit(self, request: Mapping[str, Any]) -> Future[dict[str, Any]]:
        """Have one of them run :func:`run_task`; an InputError there is one here."""
        ...

    def check(self) -> None:
        """Raise an InputError where no worker will come."""
        ...


class InProcess:
    """This process alone, one task after the other."""

    def submit(self, request: Mapping[str, Any]) -> Future[dict[str, Any]]:
        future: Future[dict[str, Any]] = Future()
        try:
            future.set_result(run_task(request))
        except Exception as error:
            future.set_exception(error)
        return future

    def check(self) -> None:
        """Always here."""


def run_all(
    workers: Workers,
    requests: Mapping[int, Mapping[str, Any]],
    done: Callable[[int], None],
) -> None:
    """Run every task to its end.

    A task whose process is lost is run again elsewhere; what it wrote is committed whole or not at
    all, so that nothing is done twice.

    Parameters
    ----------
    workers
        Who runs them.
    requests
        The tasks by number.
    done
        Called with the number of each as it ends.

    Raises
    ------
    InputError
        Of a task whose input is at fault.
    CampaignStopped
        Where the process of a task was lost again and again.
    """
    waiting: dict[Future[dict[str, Any]], int] = {}
    attempts = dict.fromkeys(requests, 1)
    numbers = iter(requests)
    if isinstance(workers, InProcess):  # each ends before the next begins, and is shown then
        for number in numbers:
            workers.submit(requests[number]).result()
            done(number)
        return
    for number in numbers:
        waiting[workers.submit(requests[number])] = number
    while waiting:
        ended, _ = wait(waiting, timeout=_CHECK_SECONDS, return_when=FIRST_COMPLETED)
        if not ended:
            workers.check()
        for future in ended:
            number = waiting.pop(future)
            error = future.exception()
            if isinstance(error, InputError):
                _cancel(list(waiting))
                raise error
            if error is None:
                done(number)
            elif attempts[number] < _ATTEMPTS:
                attempts[number] += 1
                waiting[workers.submit(requests[number])] = number
            else:
                _cancel(list(waiting))
                raise CampaignStopped(
                    f"preparing the store failed {_ATTEMPTS} times at {requests[number]['what']}: "
                    f"{error}; see whether the nodes have enough memory, then start again"
                ) from error


def _cancel(futures: Sequence[Future[dict[str, Any]]]) -> None:
    for future in futures:
        future.cancel()
