"""Preparing a run's store on the pools of its site."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from hydragnn_flow.execution.pools.pools import Pools
from hydragnn_flow.execution.sites.site import Node
from hydragnn_flow.execution.workers.worker import run_preparation


class PoolWorkers:
    """The workers of a site's `gcd` pool, which are started when the first task comes.

    Parameters
    ----------
    node
        What the site's nodes have.
    pools
        Starts the pools, or gives those that run already.
    """

    def __init__(self, node: Node, pools: Callable[[], Pools]) -> None:
        self._node, self._pools = node, pools

    def submit(self, request: Mapping[str, Any]) -> Future[None]:
        """Have a worker run a task of the preparation."""
        answer: Future[None] = Future()

        def pass_on(task: Future[Any]) -> None:
            if not answer.set_running_or_notify_cancel():
                return
            error = task.exception()
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(None)

        task = self._pools().submit("gcd", run_preparation, self._node, dict(request))
        task.add_done_callback(pass_on)
        return answer

    def check(self) -> None:
        """See whether the pools still get workers."""
        self._pools().tend()
