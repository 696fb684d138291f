"""Tasks that workers run to their end, again where a process or a node was lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Protocol

from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.retries import MOST_TRIES, Retries

_CHECK_SECONDS = 1.0


class NoWorkers(InputError):
    """No worker will come; the input may be in order."""


class TaskFailed(RuntimeError):
    """A task was cut short, and its input need not be at fault.

    Parameters
    ----------
    node
        Where it ran.
    reason
        What happened.
    """

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(reason)
        self.node = node


class TaskLost(TaskFailed):
    """The node, batch job or disk of a task is gone, which says nothing of the task."""


class Workers(Protocol):
    """Processes that run tasks of one kind, such as those of a site's pool."""

    nodes: int
    """Nodes they may be on."""

    def submit(self, request: Mapping[str, Any]) -> Future[None]:
        """Have one of them run a task; an InputError there is one here."""
        ...

    def check(self) -> None:
        """Raise an InputError where no worker will come."""
        ...


def run_all(
    workers: Workers,
    requests: Mapping[int, Mapping[str, Any]],
    done: Callable[[int], None],
    work: str,
) -> None:
    """Run every task to its end.

    A task whose process is lost is run again, until it has failed on several nodes. So it commits
    what it writes whole or not at all.

    Parameters
    ----------
    workers
        Who runs them.
    requests
        The tasks by number; ``what`` of each says in errors what it is about.
    done
        Called with the number of each as it ends.
    work
        What the tasks do, as the subject of an error: "preparing the store".

    Raises
    ------
    InputError
        Of a task whose input is at fault.
    NoWorkers
        If no worker will come.
    CampaignStopped
        If the process of a task was lost again and again.
    """
    retries: defaultdict[int, Retries] = defaultdict(Retries)
    failed_on: defaultdict[int, set[str]] = defaultdict(set)
    waiting = {_submit(workers, request): number for number, request in requests.items()}
    while waiting:
        ended, _ = wait(waiting, timeout=_CHECK_SECONDS, return_when=FIRST_COMPLETED)
        if not ended:
            _check(workers)
        for future in ended:
            number = waiting.pop(future)
            error = future.exception()
            if error is None:
                done(number)
                continue
            if isinstance(error, InputError):
                _cancel(waiting)
                raise error
            _check(workers)  # a pool without workers fails whatever it is given
            nodes, node = failed_on[number], error.node if isinstance(error, TaskFailed) else ""
            # A node where tasks fail at once is the first to be free again.
            is_lost = node in nodes and len(nodes) < min(MOST_TRIES, workers.nodes)
            is_lost = is_lost or isinstance(error, TaskLost)
            retries[number] = retries[number].lost() if is_lost else retries[number].failed()
            nodes.add(node)
            if retries[number].is_hopeless:
                _cancel(waiting)
                on = ", ".join(sorted(nodes - {""})) or "nodes not known"
                raise CampaignStopped(
                    f"{work} failed {retries[number].total} times at {requests[number]['what']}, "
                    f"on {on}: {error}; see whether these nodes are in order and have enough "
                    f"memory, then start again"
                ) from error
            waiting[_submit(workers, requests[number])] = number


def _submit(workers: Workers, request: Mapping[str, Any]) -> Future[None]:
    try:
        return workers.submit(request)
    except InputError as error:
        raise NoWorkers(str(error)) from error


def _check(workers: Workers) -> None:
    try:
        workers.check()
    except InputError as error:
        raise NoWorkers(str(error)) from error


def _cancel(futures: Iterable[Future[None]]) -> None:
    for future in futures:
        future.cancel()
