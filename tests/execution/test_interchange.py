"""The interchange with many worker pools: nobody counts as lost who lives, and nothing is slow."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path

import psutil
import pytest
import zmq
from interchange_cases import (
    HEARTBEAT,
    LIVES,
    SECONDS,
    Interchange,
    flush,
    received,
    registration,
    worker_pools,
)
from parsl.serialize import deserialize
from trainer_cases import until

from hydragnn_flow.energy_counters import Reading
from hydragnn_flow.execution.pools.interchange import (
    EPOCHS,
    HOLD,
    MANAGER,
    MAY_BE_HELD,
    READINGS,
    NeverCame,
)

NODES = 400
# Silence after which a worker pool counts as lost, and time between two heartbeats [s].
THRESHOLD, BEAT = 5.0, 0.5


class Registered:
    """Worker pools that are registered."""

    def __init__(self, interchange, sockets):
        self.sockets = sockets
        self._beat = 0.0
        for name, socket in sockets.items():
            socket.send(registration(name))
        until(lambda: len(interchange.managers()) == len(sockets))

    def live(self, silent=()):
        """Say so, once in a while."""
        if time.monotonic() - self._beat > BEAT:
            self._beat = time.monotonic()
            for name in self.sockets.keys() - set(silent):
                self.sockets[name].send(HEARTBEAT)


def given_work(interchange, tasks):
    for number in range(tasks):
        interchange.tasks.put({"task_id": number, "context": {}, "buffer": b""})


def send_to(interchange, name, number, may_be_held=False):
    context = {MANAGER: name, MAY_BE_HELD: may_be_held}
    interchange.tasks.put({"task_id": number, "context": context, "buffer": b""})


def test_a_worker_pool_is_answered_though_its_first_connection_has_not_ended(tmp_path):
    """It tries the address by one, and comes by another at once, under the same name."""
    with Interchange(tmp_path) as interchange, zmq.Context() as context:
        port, sockets = interchange.port, []
        for _ in range(2):
            socket = context.socket(zmq.DEALER)
            sockets.append(socket)
            socket.setsockopt(zmq.IDENTITY, b"node0")
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RECONNECT_IVL, -1)  # the first is about to end
            socket.connect(f"tcp://127.0.0.1:{port}")
            socket.send(pickle.dumps({"type": "connection_probe"}))
            assert socket.poll(1000 * SECONDS), "no answer"
        sockets[1].send(registration("node0"))
        until(lambda: [*interchange.managers()] == ["node0"])
        for socket in sockets:
            socket.close()


def test_signs_of_life_that_wait_are_read_and_tasks_of_lost_worker_pools_come_back(tmp_path):
    """As on a login node that had no time for the interchange."""
    with (
        Interchange(tmp_path, THRESHOLD) as interchange,
        worker_pools(interchange.port, NODES) as sockets,
    ):
        pools = Registered(interchange, sockets)
        silent = set(list(sockets)[:7])
        interchange.process.send_signal(signal.SIGSTOP)
        time.sleep(THRESHOLD + 1)
        pools.live(silent)
        flush(sockets)
        interchange.process.send_signal(signal.SIGCONT)

        def some_lost():
            pools.live(silent)
            return len(interchange.managers()) < NODES

        until(some_lost)
        there = set(sockets) - silent
        assert set(interchange.managers()) == there

        tasks = range(8 * len(there))
        given_work(interchange, len(tasks))
        sent: dict[str, list[int]] = {name: [] for name in there}

        def all_sent():
            pools.live(silent)
            for name in there:
                for message in map(pickle.loads, received(sockets[name])):
                    sent[name] += [task["task_id"] for task in message] if message != LIVES else []
            return sum(map(len, sent.values())) == len(tasks)

        until(all_sent)
        assert sorted(chain.from_iterable(sent.values())) == list(tasks)
        assert {len(numbers) for numbers in sent.values()} == {8}
        first = min(there)
        done = sent[first].pop()
        sockets[first].send(pickle.dumps({"type": "result", "task_id": done}))
        back: list[int] = []

        def all_back():
            while message := interchange.results.get(timeout_ms=10):
                back.append(pickle.loads(message)["task_id"])
            return len(back) == len(tasks)

        until(all_back)
        assert back[0] == done
        assert sorted(back) == list(tasks)
        assert not interchange.managers()


def test_nobody_is_lost_or_kept_by_steps_of_the_wall_clock(tmp_path):
    """As by a time server, or an operator."""
    clock = tmp_path / "clock"
    clock.write_text("0")
    with (
        Interchange(tmp_path, 3600.0, clock=clock) as interchange,
        worker_pools(interchange.port, 6) as sockets,
    ):
        there = {"node0", "node1"}
        for name in there:
            sockets[name].send(registration(name))
        until(lambda: {*interchange.managers()} == there)
        for step, new, last in ((600.0, "node2", "node3"), (-600.0, "node4", "node5")):
            replace(clock, step)
            # Whoever has no time left by the new clock, that of its node too, is told so, after a
            # look at all; not whoever has.
            sockets[new].send(registration(new, drain_time=time.time() + step + 300))
            there.add(new)
            until(lambda: {*interchange.managers()} == there)
            sockets[last].send(registration(last, drain_time=time.time() + step - 1))
            assert sockets[last].poll(60_000)
            assert {*interchange.managers()} == there
            assert not sockets[new].poll(0)


def replace(clock, seconds):
    """Set a wall clock."""
    new = clock.with_suffix(".new")
    new.write_text(str(seconds))
    new.replace(clock)


DRIVER = """
import sys, time
from pathlib import Path
import interchange_cases
print(interchange_cases.Interchange(Path(sys.argv[1])).process.pid, flush=True)
time.sleep(600)
"""


def test_an_interchange_ends_with_a_driver_that_is_killed_while_it_imports(tmp_path):
    """Its parent is another process then, which may live for ever."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", DRIVER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as driver:
        assert driver.stdout is not None
        interchange = psutil.Process(int(driver.stdout.readline()))
        driver.kill()
        try:
            interchange.wait(60)
        finally:
            with suppress(psutil.NoSuchProcess):
                interchange.kill()


def test_a_task_goes_to_the_worker_pool_that_it_is_for_unless_it_takes_none(tmp_path):
    """And to nobody else, though all are free; more pools than its soft limit of files lets in."""
    with (
        Interchange(tmp_path, 600.0, descriptors=64) as interchange,
        worker_pools(interchange.port, NODES) as sockets,
    ):
        Registered(interchange, sockets)
        chosen = list(sockets)[7::13]
        for number, name in enumerate([*chosen, "node9999-abc", *chosen]):
            send_to(interchange, name, number)
        came: dict[str, list[int]] = {}

        def all_came():
            for name, pool in sockets.items():
                for message in map(pickle.loads, received(pool)):
                    came.setdefault(name, []).extend(task["task_id"] for task in message)
            return sum(map(len, came.values())) == 2 * len(chosen)

        until(all_came)
        n = len(chosen)
        assert came == {name: [place, n + 1 + place] for place, name in enumerate(chosen)}
        back = pickle.loads(interchange.results.get(timeout_ms=1000 * SECONDS))
        assert back["task_id"] == n
        with pytest.raises(NeverCame) as error:
            deserialize(back["exception"]).reraise()
        assert error.value.hostname == "node9999"
        tasks = {name: one["tasks"] for name, one in interchange.managers().items()}
        assert {name for name, number in tasks.items() if number == 2} == set(chosen)

        held = chosen[:1] + list(set(sockets) - set(chosen))[::2]
        assert interchange.ask((HOLD, [*held, "a stranger"])) is None
        active = {name for name, one in interchange.managers().items() if one["active"]}
        assert active == set(sockets) - set(held)
        send_to(interchange, chosen[0], 99)
        back = pickle.loads(interchange.results.get(timeout_ms=1000 * SECONDS))
        assert back["task_id"] == 99, "a worker pool that is held takes none"
        given_work(interchange, 8 * NODES)
        until(lambda: all(sockets[name].poll(0) for name in active))
        assert not any(sockets[name].poll(0) for name in held)
        send_to(interchange, chosen[0], 100, may_be_held=True)
        until(lambda: sockets[chosen[0]].poll(0), "a word of what it is to end")


def test_what_nodes_have_used_is_told_once_more_when_they_have_ended(tmp_path):
    """They are missed at once, though the wall clock was set back."""
    clock = tmp_path / "clock"
    clock.write_text("0")
    with Interchange(tmp_path, threshold=2.0, clock=clock) as interchange:
        with worker_pools(interchange.port, 2) as sockets:
            Registered(interchange, sockets)

            def told(number, joules):
                used = json.dumps([joules, 1.5, "RAPL"]).encode()
                for socket in [*sockets.values()][:number]:
                    socket.send_multipart([HEARTBEAT, used, b""])
                    assert pickle.loads(socket.recv()) == LIVES
                return {name: json.loads(one)[0] for name, one in interchange.ask(READINGS).items()}

            assert told(0, 0) == {}
            assert told(2, 70) == {"node0": 70, "node1": 70}
            assert told(1, 90) == {"node0": 90, "node1": 70}
        replace(clock, -600.0)
        until(lambda: not interchange.managers())
        gone = interchange.ask(READINGS)
        assert Reading(*json.loads(gone["node0"])) == Reading(90, 1.5, "RAPL")
        assert interchange.ask(READINGS) == {}


def test_the_last_epochs_of_some_nodes_are_told_while_they_are_there(tmp_path):
    """Of the same ones each time, and not of those that train nothing."""
    with Interchange(tmp_path, threshold=2.0) as interchange:
        with worker_pools(interchange.port, 5) as sockets:
            Registered(interchange, sockets)

            def beat(name, epochs):
                sockets[name].send_multipart([HEARTBEAT, b"", epochs])
                assert pickle.loads(sockets[name].recv()) == LIVES

            assert interchange.ask((EPOCHS, 3)) == {}
            for name in ("node3", "node1", "node4", "node0"):
                beat(name, b"first")
            for name in ("node0", "node3"):
                beat(name, b"second")
            told = {"node3": b"second", "node1": b"first", "node4": b"first"}
            assert interchange.ask((EPOCHS, 3)) == told
            sockets["node2"].send_multipart([HEARTBEAT, b""])  # an older version's
            assert pickle.loads(sockets["node2"].recv()) == LIVES
            beat("node1", b"")
            assert interchange.ask((EPOCHS, 3)).keys() == {"node3", "node4", "node0"}
            assert interchange.ask(READINGS) == {}
        until(lambda: not interchange.managers())
        interchange.ask((EPOCHS, 3))
        assert interchange.ask((EPOCHS, 3)) == {}
