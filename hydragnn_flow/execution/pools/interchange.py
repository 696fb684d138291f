"""Parsl's interchange for thousands of nodes, ending with the driver that started it.

Parsl's own gives a task to whichever worker pool is free. This one also gives it to the worker pool
that the driver has chosen, which knows where work goes best.

Parsl's own takes one message of a worker pool in a turn, and in each turn goes through all pools
twice. A message costs the more the more nodes there are, and more nodes send more: from about 6,000
on it falls behind their heartbeats and counts nodes as lost that are not. This one takes all
messages that wait, and looks for lost pools once a second.

Parsl's own also lives on when its driver is killed, and keeps the worker pools alive with it:
processes on a shared login node and idle nodes, until a person notices. This one is given its
driver's number and ends within seconds of it; the pools then miss its heartbeat and end too.

Each worker pool that is connected takes a file descriptor. When a process has no descriptor left,
libzmq lets no more pools in and says nothing, so this one takes all that it may have.
"""

from __future__ import annotations

import logging
import pickle
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import zmq
from parsl.app.errors import RemoteExceptionWrapper
from parsl.executors.high_throughput import interchange as parsls
from parsl.executors.high_throughput.errors import ManagerLost
from parsl.executors.high_throughput.interchange import Interchange
from parsl.serialize import serialize as serialize_object
from parsl.utils import setproctitle

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.pools.calls import STEADY_TIME, node_of
from hydragnn_flow.processes import end_with_parent

READINGS = "READINGS"
"""Command that asks for what nodes have used, by worker pool, as JSON of a `Reading`."""
HOLD = "HOLD_MANAGERS"
"""Command, before a list of worker pools that get no more tasks."""
MANAGER = "manager"
"""Key, in a task's context, of the worker pool that it is for."""
MAY_BE_HELD = "may_be_held"
"""Key for whether the task also goes to a pool that gets no more work."""
_logger = logging.getLogger("parsl.executors.high_throughput.interchange")
# Descriptors beside those of worker pools.
SPARE_DESCRIPTORS = 100
# Longest time for which messages of one kind keep others waiting [s].
_SECONDS_OF_MESSAGES = 0.1
_SECONDS_BETWEEN_LOOKS = 1.0
# A turn that takes longer was kept from the processor: what pools said meanwhile is on its way.
_SECONDS_OF_A_TURN = 1.0
cast(Any, parsls).time = STEADY_TIME


class NeverCame(ManagerLost):
    """A task's worker pool was gone, or took no more tasks, before it came there."""


class ManyPools(Interchange):
    """Parsl's interchange; what a message costs does not grow with the number of worker pools."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        # A worker pool tries the address by one connection and comes by another of the same name.
        # Where that is faster than the end of the first, its messages would be thrown away, and it
        # would wait for an answer as long as its batch job lasts.
        self.manager_sock.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._is_behind = False
        self._readings: dict[str, bytes] = {}
        self._turned = self._emptied = self._looked = time.monotonic()

    def process_command(self, *arguments: Any) -> None:
        """Answer the driver."""
        channel = self.command_channel
        if self.socks.get(channel) != zmq.POLLIN:
            return
        request = channel.recv_pyobj()
        if isinstance(request, tuple) and request[0] == HOLD:
            self._hold(request[1])
            channel.send_pyobj(None)
            return
        if request == READINGS:
            channel.send_pyobj(self._readings)
            # Those that have ended are told once more, and then known.
            there = {manager.decode() for manager in self._ready_managers}
            self._readings = {name: of for name, of in self._readings.items() if name in there}
            return
        with self._received("command_channel", request):
            super().process_command(*arguments)

    def process_task_incoming(self) -> None:
        """Take the tasks that wait, and send those that are for one worker pool."""
        self._take(self.task_incoming, self._take_task)

    def process_manager_socket_message(self, *arguments: Any) -> None:
        """Take the messages of worker pools that wait."""
        take = super().process_manager_socket_message

        def take_one() -> None:
            manager, message, *reading = self.manager_sock.recv_multipart()
            if reading and manager in self._ready_managers:
                self._readings[manager.decode()] = reading[0]
            known = self._ready_managers.get(manager)
            with self._received("manager_sock", [manager, message]):
                take(*arguments)
            record = self._ready_managers.get(manager)
            if record is not None and record is not known:  # it told a time by the nodes' clock
                record["drain_time"] += STEADY_TIME.time() - time.time()

        self._is_behind = not self._take(self.manager_sock, take_one)
        if not self._is_behind:
            self._emptied = time.monotonic()

    def expire_bad_managers(self, *arguments: Any) -> None:
        """End worker pools that have done their last task, and give up those that are silent."""
        now = time.monotonic()
        was_kept_waiting, self._turned = now - self._turned > _SECONDS_OF_A_TURN, now
        if was_kept_waiting:
            self._looked = now
        if now - self._looked < _SECONDS_BETWEEN_LOOKS:
            return
        self._looked = now
        super().expire_drained_managers(*arguments)
        # Signs of life may be among messages that still wait, though not for ever.
        if not self._is_behind or now - self._emptied > self.heartbeat_threshold:
            super().expire_bad_managers(*arguments)

    def expire_drained_managers(self, *arguments: Any) -> None:
        """Nothing: :meth:`expire_bad_managers` has done it."""

    def _take_task(self) -> None:
        task = self.task_incoming.recv_pyobj()
        manager = task["context"].get(MANAGER)
        if manager is not None:
            self._send(task, manager.encode())
            return
        with self._received("task_incoming", task):
            super().process_task_incoming()

    def _send(self, task: dict[str, Any], manager: bytes) -> None:
        """Send a task to the worker pool that it is for, or back where that takes none."""
        record, number = self._ready_managers.get(manager), task["task_id"]
        is_held = record is not None and (record["draining"] or not record["active"])
        if record is None or (is_held and not task["context"].get(MAY_BE_HELD)):
            try:
                raise NeverCame(manager, node_of(manager.decode()))
            except NeverCame:
                error = serialize_object(RemoteExceptionWrapper(*sys.exc_info()))
            result = {"type": "result", "task_id": number, "exception": error}
            self.results_outgoing.send(pickle.dumps(result))
            return
        self.manager_sock.send_multipart([manager, pickle.dumps([task])])
        self.count += 1
        record["tasks"].append(number)
        record["idle_since"] = None

    @contextmanager
    def _received(self, name: str, message: Any) -> Iterator[None]:
        """Have Parsl's own code, which reads from a channel, find a message that was read."""
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
        """Take messages until none waits, for a time; returns whether none does."""
        end = time.monotonic() + _SECONDS_OF_MESSAGES
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
    """A channel whose next message has been read."""

    def __init__(self, channel: zmq.Socket[bytes], message: Any) -> None:
        self._message = message
        self.send_pyobj, self.send_multipart = channel.send_pyobj, channel.send_multipart

    def recv_pyobj(self) -> Any:
        return self._message

    recv_multipart = recv_pyobj


def check_descriptors(site: str, nodes: int) -> None:
    """Refuse more nodes than an interchange may be connected with.

    Raises
    ------
    InputError
        If the hard limit of this host's processes is too low.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < nodes + SPARE_DESCRIPTORS:
        raise InputError(
            f"site {site}: {nodes} nodes take {nodes + SPARE_DESCRIPTORS} file descriptors, and a "
            f"process of this host may have {most} (`ulimit -Hn`); give fewer `nodes`, or have the "
            "limit raised"
        )


def _take_descriptors() -> None:
    """Raise the soft limit, often 1024, to the hard one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS takes no unlimited number
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    _take_descriptors()
    end_with_parent(int(sys.argv[1]))
    setproctitle("parsl: HTEX interchange")
    # Under its own name, by which the driver knows what it raises.
    from hydragnn_flow.execution.pools.interchange import ManyPools as Named

    Named(**pickle.load(sys.stdin.buffer)).start()
