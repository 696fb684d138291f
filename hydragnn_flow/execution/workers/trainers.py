"""Trainer processes of a node: warm ones on each GCD, lent to one segment at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.binding import cores_of, environment
from hydragnn_flow.execution.site import Node
from hydragnn_flow.execution.workers.trainer_process import TrainerProcess


@dataclass(eq=False)
class _Lent:
    trainer: TrainerProcess
    memory_gib: float


class Trainers:
    """Trainer processes of this node, by the position of their GCD.

    They live as long as the process that starts them, so that a segment finds torch imported and
    the store read.

    Parameters
    ----------
    node
        Description of the site's nodes.
    """

    def __init__(self, node: Node) -> None:
        self._node, self._lock = node, threading.Lock()
        self._idle: dict[int, list[TrainerProcess]] = {n: [] for n in range(len(node.gcds))}
        self._lent: dict[int, list[_Lent]] = {n: [] for n in range(len(node.gcds))}

    @contextmanager
    def lend(self, gcd: int, memory_gib: float = 0.0) -> Iterator[TrainerProcess]:
        """Lend a trainer process for a ``with`` block.

        Parameters
        ----------
        gcd
            Position of its GCD on the node.
        memory_gib
            Expected memory there, the process included [GiB]; idle processes that leave too little
            memory on the GCD are ended.

        Raises
        ------
        InputError
            If the batch job got fewer devices than the site's nodes have.
        """
        lent = self._take(gcd, memory_gib)
        try:
            yield lent.trainer
        finally:
            self._give_back(lent, gcd)

    def idle(self, gcd: int) -> list[TrainerProcess]:
        """List the idle processes of a GCD."""
        with self._lock:
            return [*self._idle[gcd]]

    def _take(self, gcd: int, memory_gib: float) -> _Lent:
        with self._lock:
            idle = self._idle[gcd] = [each for each in self._idle[gcd] if each.alive]
            trainer = idle.pop() if idle else self._start(gcd)
            lent = _Lent(trainer, memory_gib)
            self._lent[gcd].append(lent)
            surplus = self._surplus(gcd)
            self._share(gcd)
        for trainer in surplus:
            trainer.kill()
        return lent

    def _give_back(self, lent: _Lent, gcd: int) -> None:
        with self._lock:
            self._lent[gcd].remove(lent)
            trainer = lent.trainer
            if not trainer.alive:
                # It restarts while the driver decides what comes next. If that fails, the next
                # segment that needs the process reports it, and this one is not affected.
                with suppress(OSError, InputError):
                    trainer = self._start(gcd)
            self._idle[gcd].append(trainer)
            surplus = self._surplus(gcd)
            self._share(gcd)
        for trainer in surplus:
            trainer.kill()

    def _start(self, gcd: int) -> TrainerProcess:
        return TrainerProcess(environment(self._node, gcd), cores_of(self._node, gcd))

    def _surplus(self, gcd: int) -> list[TrainerProcess]:
        """Remove idle processes that do not fit next to the expected memory of the others."""
        each, idle = self._node.gcd, self._idle[gcd]
        left = each.memory_gib - sum(lent.memory_gib for lent in self._lent[gcd])
        most = max(0, int(left / each.process_gib)) if self._lent[gcd] else len(idle)
        self._idle[gcd], surplus = idle[:most], idle[most:]
        return surplus

    def _share(self, gcd: int) -> None:
        """Send each running process its fraction of the GCD's energy counters.

        The counters of sockets see all CPU slots. Each slot is charged with the same fraction
        whatever runs on the others, so that a trial's energy does not depend on its neighbours.
        """
        slots = len(self._node.gcds) if self._node.device == "cpu" else 1
        for lent in self._lent[gcd]:
            lent.trainer.share(1 / (slots * len(self._lent[gcd])))
