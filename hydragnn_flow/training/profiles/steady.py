"""Steady steps of a training: those after a warm-up, from which its speed is measured."""

from __future__ import annotations

from collections.abc import Callable

from hydragnn_flow.config.search import WARM_UP_STEPS


class Steady:
    """Number, time and energy of the steps after the first `WARM_UP_STEPS`.

    In the first steps kernels are chosen, memory is allocated, and DDP learns the order of
    gradients. They would dominate a training of a few steps and say nothing about a long one.

    Parameters
    ----------
    joules
        Function that returns the energy of this rank so far [J]; None if there is no counter.
    """

    def __init__(self, joules: Callable[[], float | None] = lambda: None) -> None:
        self._joules = joules
        self._before: float | None = None
        self._left = WARM_UP_STEPS
        self.steps = self.graphs = 0
        """Number of graphs, over all ranks."""
        self.seconds = 0.0
        """Time of these steps, without validation and checkpoints [s]."""
        self.joules: float | None = 0.0 if joules() is not None else None
        """Energy on this rank [J]; None if it was not counted throughout."""

    @property
    def until_begin(self) -> int | None:
        """Number of warm-up steps left; None once steps count."""
        return self._left or None

    def resume(self) -> None:
        """Continue measuring with the next step, after something else."""
        self._before = self._joules()

    def count(self, steps: int, graphs: int, seconds: float) -> None:
        """Count steps since the last call or `resume`; in the warm-up at most ``until_begin``."""
        before, now = self._before, self._joules()
        self._before = now
        if self._left:
            self._left -= min(steps, self._left)
            return
        self.steps, self.graphs = self.steps + steps, self.graphs + graphs
        self.seconds += seconds
        if self.joules is None or now is None or before is None:
            self.joules = None  # a lost counter would make the remaining steps look cheap
        else:
            self.joules += now - before
