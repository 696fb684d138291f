"""Parsl's interchange for thousands of nodes, ending with the driver that started it.

Parsl's interchange gives a task to any free worker pool. This one can also give a task to the
worker pool that the driver names, since the driver knows where work runs best.

Parsl's interchange takes one message of a worker pool per round, and visits all pools twice in each
round. With more nodes a message costs more, and there are more messages: from about 6,000 nodes on
it falls behind the heartbeats, and counts nodes as lost that are not. This one takes all waiting
messages, and looks for lost pools once a second.

Parsl's interchange outlives a killed driver, and keeps the worker pools alive: processes on a
shared login node and idle nodes, until a person notices. This one gets its driver's process id and
ends within seconds of the driver; the pools then miss its heartbeat and end too.

Each connected worker pool takes a file descriptor. Without free descriptors libzmq silently admits
no further pools, so this process raises its limit to the maximum.
"""

from __future__ import annotations

import logging
import pickle
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, cast

import zmq

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.parsl_internals import (
    ManagerLost,
    RemoteExceptionWrapper,
    serialize,
    setproctitle,
)
from hydragnn_flow.execution.parsl_internals import interchange as parsls
from hydragnn_flow.execution.pools.calls import STEADY_TIME, node_of
from hydragnn_flow.processes import end_with_parent

READINGS = "READINGS"
"""Command that returns the energy of nodes by worker pool, as JSON of a `Reading`."""
EPOCHS = "LAST_EPOCHS"
"""Command that returns the last epochs of trainings by worker pool, as JSON of a `LastEpoch` by
attempt. It is followed by the largest number of pools to return."""
HOLD = "HOLD_MANAGERS"
"""Command, followed by a list of worker pools that get no further tasks."""
MANAGER = "manager"
"""Key, in a task's context, of the worker pool that the task is for."""
MAY_BE_HELD = "may_be_held"
"""Key, in a task's context; True to send the task also to a pool that gets no further tasks."""
_logger = logging.getLogger("parsl.executors.high_throughput.interchange")
# Number of descriptors not used by worker pools.
SPARE_DESCRIPTORS = 100
cast(Any, parsls).time = STEADY_TIME


class NeverCame(ManagerLost):
    """Error: a task did not reach its worker pool, which was lost or takes no more tasks."""


class ManyPools(parsls.Interchange):
    """Parsl's interchange, the process that passes tasks from the driver to worker pools.

    The cost per message does not depend on the number of worker pools, one per node.
    """

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        # A worker pool tests the address by one connection and registers by another of the same
        # name. If that comes before the end of the first, its messages would be dropped, and it
        # would wait for an answer until its batch job ends.
        self.manager_sock.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._is_behind = False
        self._readings: dict[str, bytes] = {}
        self._epochs: dict[str, bytes] = {}
        self._turned = self._emptied = self._looked = time.monotonic()

    def process_command(self, *arguments: Any) -> None:
        """Answer one command of the driver if one waits; Parsl passes the ``arguments``."""
        channel = self.command_channel
        if self.socks.get(channel) != zmq.POLLIN:
            return
        request = channel.recv_pyobj()
        if isinstance(request, tuple) and request[0] == HOLD:
            self._hold(request[1])
            channel.send_pyobj(None)
            return
        if isinstance(request, tuple) and request[0] == EPOCHS:
            some = dict(islice(self._epochs.items(), request[1]))
            channel.send_pyobj(some)
            for name in some:
                if name.encode() not in self._ready_managers:
                    del self._epochs[name]
            return
        if request == READINGS:
            channel.send_pyobj(self._readings)
            # Readings of pools that have ended are sent once more, and then dropped.
            there = {manager.decode() for manager in self._ready_managers}
            self._readings = {name: of for name, of in self._readings.items() if name in there}
            return
        with self._received("command_channel", request):
            super().process_command(*arguments)

    def _keep(self, name: str, reading: bytes, epochs: bytes = b"", *_: bytes) -> None:
        """Keep the energy and last epochs in a worker pool's heartbeat, each empty if unknown.

        Nodes with a copy of the environment may send the parts of another version.
        """
        if reading:
            self._readings[name] = reading
        if epochs:
            self._epochs[name] = epochs
        else:
            self._epochs.pop(name, None)

    def process_task_incoming(self) -> None:
        """Take all waiting tasks; send each task that names a worker pool to that pool."""
        self._take(self.task_incoming, self._take_task)

    def process_manager_socket_message(self, *arguments: Any) -> None:
        """Take all waiting messages of worker pools."""
        take = super().process_manager_socket_message

        def take_one() -> None:
            manager, message, *parts = self.manager_sock.recv_multipart()
            if parts and manager in self._ready_managers:
                self._keep(manager.decode(), *parts)
            known = self._ready_managers.get(manager)
            with self._received("manager_sock", [manager, message]):
                take(*arguments)
            record = self._ready_managers.get(manager)
            if record is not None and record is not known:  # its times are by the node's clock
                record["drain_time"] += STEADY_TIME.time() - time.time()

        self._is_behind = not self._take(self.manager_sock, take_one)
        if not self._is_behind:
            self._emptied = time.monotonic()

    def expire_bad_managers(self, *arguments: Any) -> None:
        """End worker pools that have done their last task; give up pools without heartbeats."""
        now = time.monotonic()
        # A longer round means that this process got no CPU time: messages of that time are still
        # coming.
        was_kept_waiting, self._turned = now - self._turned > 1.0, now
        if was_kept_waiting:
            self._looked = now
        if now - self._looked < 1.0:
            return
        self._looked = now
        super().expire_drained_managers(*arguments)
        # Heartbeats may be among messages that still wait, though not for ever.
        if not self._is_behind or now - self._emptied > self.heartbeat_threshold:
            super().expire_bad_managers(*arguments)

    def expire_drained_managers(self, *arguments: Any) -> None:
        """Do nothing: :meth:`expire_bad_managers` ends drained worker pools."""

    def _take_task(self) -> None:
        task = self.task_incoming.recv_pyobj()
        manager = task["context"].get(MANAGER)
        if manager is not None:
            self._send(task, manager.encode())
            return
        with self._received("task_incoming", task):
            super().process_task_incoming()

    def _send(self, task: dict[str, Any], manager: bytes) -> None:
        """Send a task to a worker pool, or report :class:`NeverCame` if the pool takes no tasks."""
        record, number = self._ready_managers.get(manager), task["task_id"]
        is_held = record is not None and (record["draining"] or not record["active"])
        if record is None or (is_held and not task["context"].get(MAY_BE_HELD)):
            try:
                raise NeverCame(manager, node_of(manager.decode()))
            except NeverCame:
                error = serialize(RemoteExceptionWrapper(*sys.exc_info()))
            result = {"type": "result", "task_id": number, "exception": error}
            self.results_outgoing.send(pickle.dumps(result))
            return
        self.manager_sock.send_multipart([manager, pickle.dumps([task])])
        self.count += 1
        record["tasks"].append(number)
        record["idle_since"] = None

    @contextmanager
    def _received(self, name: str, message: Any) -> Iterator[None]:
        """Context manager: let Parsl's code read ``message``, already read here, from a channel.

        ``name`` is the name of the attribute with the channel.
        """
        channel = getattr(self, name)
        received = _Received(channel, message)
        setattr(self, name, received)
        self.socks[cast(Any, received)] = zmq.POLLIN
        try:
            yield
        finally:
            del self.socks[cast(Any, received)]
            setattr(self, name, channel)

    def _take(self, socket: zmq.Socket[bytes], take_one: Callable[[], None]) -> bool:
        """Call ``take_one`` per waiting message, for at most 0.1 s; return True if none is left."""
        # Messages of one kind delay others no longer than this.
        end = time.monotonic() + 0.1
        while self.socks.get(socket) == zmq.POLLIN:
            if time.monotonic() > end:
                return False
            take_one()
            self.socks[socket] = socket.poll(0, zmq.POLLIN)
        return True

    def _hold(self, managers: Sequence[str]) -> None:
        known = [self._ready_managers.get(manager.encode()) for manager in managers]
        for record in filter(None, known):
            record["active"] = False
        _logger.info(
            "%d worker pools get no more tasks, %d are gone", len(known), known.count(None)
        )


class _Received:
    """Channel whose next message was already read."""

    def __init__(self, channel: zmq.Socket[bytes], message: Any) -> None:
        self._message = message
        self.send_pyobj, self.send_multipart = channel.send_pyobj, channel.send_multipart

    def recv_pyobj(self) -> Any:
        return self._message

    recv_multipart = recv_pyobj


def check_descriptors(site: str, nodes: int) -> None:
    """Raise an error if a site has more nodes than one process of this host can connect to.

    Parameters
    ----------
    site
        Name of the site, for messages.
    nodes
        Number of nodes of the site.

    Raises
    ------
    InputError
        If this host's hard limit of file descriptors in a process is too low.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < nodes + SPARE_DESCRIPTORS:
        raise InputError(
            f"site {site}: {nodes} nodes take {nodes + SPARE_DESCRIPTORS} file descriptors, and a "
            f"process of this host may have {most} (`ulimit -Hn`); give fewer `nodes`, or have the "
            "limit raised"
        )


def _take_descriptors() -> None:
    """Raise this process's soft limit of file descriptors, often 1024, to the hard limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS refuses an unlimited number
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    _take_descriptors()
    end_with_parent(int(sys.argv[1]))
    setproctitle("parsl: HTEX interchange")
    # Under its full name, by which the driver recognises its exceptions.
    from hydragnn_flow.execution.pools.interchange import ManyPools as Named

    Named(**pickle.load(sys.stdin.buffer)).start()
