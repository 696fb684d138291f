"""Steady steps of a training: those after the first few, by which its speed is judged."""

from __future__ import annotations

from collections.abc import Callable

from hydragnn_flow.config.search import WARM_UP_STEPS


class Steady:
    """Number, time and energy of the steps after the first `WARM_UP_STEPS`.

    In the first steps kernels are chosen, memory is allocated, and DDP finds out in which order
    gradients come. They would decide about a training of a few steps and tell nothing of a long
    one.

    Parameters
    ----------
    joules
        Energy of this rank so far [J]; None if nothing counts it.
    """

    def __init__(self, joules: Callable[[], float | None] = lambda: None) -> None:
        self._joules = joules
        self._before: float | None = None
        self._left = WARM_UP_STEPS
        self.steps = self.graphs = 0
        """Graphs are those of all ranks together."""
        self.seconds = 0.0
        """Time from batch to batch, without validation and checkpoints [s]."""
        self.joules: float | None = 0.0 if joules() is not None else None
        """On this rank [J]."""

    @property
    def until_begin(self) -> int | None:
        """Steps until those that count begin; None from then on."""
        return self._left or None

    def resume(self) -> None:
        """Note that steps go on from here, after something else."""
        self._before = self._joules()

    def count(self, steps: int, graphs: int, seconds: float) -> None:
        """Count steps since the last call, or since `resume`; of the first ones no more than
        ``until_begin``."""
        before, now = self._before, self._joules()
        self._before = now
        if self._left:
            self._left -= min(steps, self._left)
            return
        self.steps, self.graphs = self.steps + steps, self.graphs + graphs
        self.seconds += seconds
        if self.joules is None or now is None or before is None:
            self.joules = None  # a counter that is lost would make the rest look cheap
        else:
            self.joules += now - before
