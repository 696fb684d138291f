"""Tasks on the pool of a site."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from parsl.executors.high_throughput.errors import ManagerLost, WorkerLost

from hydragnn_flow.execution import Site
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.execution.workers.worker import TaskEnd, run_function
from hydragnn_flow.tasks import TaskFailed, TaskLost


class PoolWorkers:
    """The workers of a site's pool, which are started when the first task comes.

    Parameters
    ----------
    site
        The machine.
    pool
        Starts the pool, or gives the one that runs already.
    function
        What runs a task, `module:function`; called with the task's request in a process that has
        torch imported. Its errors of input are the caller's.
    waiting
        Told what the work waits for while there are no workers; an empty text once there are.
    """

    def __init__(
        self,
        site: Site,
        pool: Callable[[], Pool],
        function: str,
        waiting: Callable[[str], None] = lambda why: None,
    ) -> None:
        self.nodes = site.nodes
        self._node, self._pool, self._function = site.node, pool, function
        self._waiting = waiting
        # Written by the threads that receive results.
        self._ended: SimpleQueue[tuple[str, TaskEnd]] = SimpleQueue()

    def submit(self, request: Mapping[str, Any]) -> Future[None]:
        """Have a worker run a task."""
        answer: Future[None] = Future()

        def pass_on(task: Future[Any]) -> None:
            if not answer.set_running_or_notify_cancel():
                return
            error = task.exception()
            if isinstance(error, ManagerLost | WorkerLost):
                error = TaskLost(error.hostname, str(error))
            if error is None:
                end: TaskEnd = task.result()
                self._ended.put((request["directory"], end))
                if end.status != "ok":
                    failed = TaskFailed if end.status == "failed" else TaskLost
                    error = failed(end.node, end.reason)
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(None)

        task = self._pool().submit(run_function, self._node, self._function, dict(request))
        task.add_done_callback(pass_on)
        return answer

    def check(self) -> None:
        """See whether the pool still gets workers, and keep it off nodes that do badly.

        Raises
        ------
        InputError, CampaignStopped
            As :meth:`Pool.update`.
        """
        pool = self._pool()
        while not self._ended.empty():
            directory, end = self._ended.get()
            if end.status == "refused":
                pool.avoid(end.node, end.reason)
            elif end.status != "lost":
                pool.record(end.node, directory, worked=end.status == "ok")
        pool.update()
        self._waiting(pool.waiting())
