"""Monitor of a training: stop requests, the deadline and the health of the losses.

A loss stays on the device until the host reads it, and reading makes the host wait. So the losses
of about a second are read together, in a *synchronisation*; a step itself never waits. Several
ranks agree there, since one that stopped alone would leave the others waiting.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.steady import Steady

SECONDS_BETWEEN_SYNCS = 1.0
# A checkpoint may cost this fraction of the training time it protects.
CHECKPOINT_FRACTION = 0.05
# A long epoch is saved within as well, or a lost node would cost all of it.
SECONDS_UNSAVED = 300.0
# Checkpoints that the processes of a site may write on the way in a second, all of them together:
# each is some requests of a file system that they and many others share.
SAVES_PER_SECOND = 40.0
# Kept free before the deadline, for what takes longer than ever before.
SPARE_SECONDS = 5.0

_ASKED, _LATE = "asked to stop", "its time is up"


class Diverged(ArithmeticError):
    """A loss or gradient became NaN or infinite."""


class Stopped(Exception):
    """The segment is to end before its rung; the message says why."""


class TrainingMonitor:
    """Monitors one run of the training loop.

    Parameters
    ----------
    world
        This process's place among the ranks.
    device
        Where the losses are.
    deadline
        Time by the monotonic clock [s] by which the last checkpoint must be written.
    should_stop
        Whether the segment is asked to end; asked before every step, with several ranks at
        every synchronisation.
    seconds_between_saves
        Least time between checkpoints on the way [s].
    alive
        Told before every step, and every batch of an evaluation, how long the longest step has
        taken [s]: by then it does not hang. 0 before the first synchronisation.
    seconds_between_syncs
        Most time of the steps between two synchronisations, about [s]; it is a second at most.
    joules
        Energy of this rank so far [J]; None if nothing counts it.
    """

    def __init__(
        self,
        world: World,
        device: torch.device,
        deadline: float | None,
        should_stop: Callable[[], bool],
        seconds_between_saves: float = 0.0,
        alive: Callable[[float], None] = lambda longest_step: None,
        seconds_between_syncs: float = math.inf,
        joules: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.world, self.device, self.deadline = world, device, deadline
        self.should_stop, self.alive = should_stop, alive
        self._seconds_between_saves = seconds_between_saves
        self._seconds_between_syncs = seconds_between_syncs
        self._losses: list[Tensor] = []
        self._norms: list[Tensor] = []
        self._synced = self._saved = time.monotonic()
        self._steps_between_syncs = 1
        self._slowest_step = self._slowest_evaluation = self._save_seconds = 0.0
        self._save_is_worth_it = self._save_is_urgent = False
        self._agreed = ""
        self.steps = 0
        """Steps whose losses were read."""
        self.gcd_seconds = 0.0
        """Their time on all GCDs together, the same on every rank [s]."""
        self._first = self._stepping = (0, 0.0)
        self._graphs = 0
        self.steady = Steady(joules)
        """What the steps took after the first few."""
        self.steady.resume()

    @property
    def step_seconds(self) -> float:
        """Mean time of a step, from batch to batch [s]; the first only where it is the only one."""
        n, seconds = self._stepping if self._stepping[0] else self._first
        return seconds / n if n else 0.0

    def reason_to_stop(self) -> str:
        """Why to stop here, or nothing; the device does not wait for it."""
        self.alive(self._slowest_step)
        return self._agreed if self.world.size > 1 else self._reason()

    def record(self, loss: Tensor, norm: Tensor, graphs: int = 0) -> None:
        """Keep this rank's loss of a step and the norm of the gradient, to be read later.

        ``graphs`` is the number of graphs of the step, on all ranks together.
        """
        self._losses.append(loss)
        self._norms.append(norm)
        self._graphs += graphs

    @property
    def sync_is_due(self) -> bool:
        """Whether it is time to synchronise; the same on every rank."""
        return len(self._losses) >= self._steps_between_syncs

    def sync(self, epoch: int, step: int) -> list[float]:
        """Read the losses since the last call; every rank calls this after the same step.

        Parameters
        ----------
        epoch, step
            Epoch that is trained and steps taken in it, for messages.

        Returns
        -------
        list of float
            The losses of the steps since then.

        Raises
        ------
        Diverged
            Naming the first step whose loss, or the norm of whose gradient, is not finite.
        """
        n = len(self._losses)
        if n == 0:
            return []
        read = torch.stack([*self._losses, *(norm.double() for norm in self._norms)])
        float(read[-1])  # waits for the device, or the time would not be that of the steps
        now = time.monotonic()
        self._count(n, now - self._synced)
        reason = self._reason() if self.world.size > 1 else ""
        mine = [
            (now - self._synced) / (n * self.world.size),
            float(reason == _ASKED),
            float(reason == _LATE),
            *((now - self._saved, self._save_seconds) if self.world.is_first else (0.0, 0.0)),
        ]
        shared = torch.tensor(mine, dtype=torch.float64, device=self.device)
        together = self.world.sum(torch.cat([read, shared])).tolist()
        values, (seconds, asked, late, unsaved, save) = together[:-5], together[-5:]
        least = max(save / CHECKPOINT_FRACTION, self._seconds_between_saves)
        self._save_is_worth_it = unsaved >= least
        self._save_is_urgent = unsaved >= SECONDS_UNSAVED
        self._agreed = _ASKED if asked else _LATE if late else ""
        self._slowest_step = max(self._slowest_step, seconds)
        self.gcd_seconds += n * seconds * self.world.size
        between = min(SECONDS_BETWEEN_SYNCS, self._seconds_between_syncs)
        self._steps_between_syncs = max(1, int(between / max(seconds, 1e-6)))
        if (left := self.steady.until_begin) is not None:
            self._steps_between_syncs = min(self._steps_between_syncs, left)
        self._synced = time.monotonic()
        self._losses, self._norms = [], []
        losses, norms = values[:n], values[n:]
        self._check(losses, norms, epoch, step)
        return losses

    def save_is_due(self, *, within_epoch: bool) -> bool:
        """Whether to write a checkpoint, as of the last synchronisation."""
        return self._save_is_worth_it and (self._save_is_urgent or not within_epoch)

    def evaluated(self, seconds: float) -> None:
        """Record how long an evaluation took; the next step's time begins now."""
        self._slowest_evaluation = max(self._slowest_evaluation, seconds)
        self._synced = time.monotonic()
        self.steady.resume()

    def saved(self, seconds: float) -> None:
        """Record how long writing the checkpoint took."""
        self._save_seconds = max(self._save_seconds, seconds)
        self._synced = self._saved = time.monotonic()
        self.steady.resume()

    def _count(self, steps: int, seconds: float) -> None:
        self.steps += steps
        self.steady.count(steps, self._graphs, seconds)
        self._graphs = 0
        if not self._first[0]:
            self._first = (steps, seconds)
        else:
            self._stepping = (self._stepping[0] + steps, self._stepping[1] + seconds)

    def _reason(self) -> str:
        if self.should_stop():
            return _ASKED
        return _LATE if self._is_late() else ""

    def _is_late(self) -> bool:
        # Before the first synchronisation nothing is known; a segment is to get at least so far.
        if self.deadline is None or self._slowest_step == 0.0:
            return False
        # Several ranks do not ask again before their next synchronisation.
        step = self._slowest_step * (self._steps_between_syncs if self.world.size > 1 else 1)
        ahead = step + self._slowest_evaluation + self._save_seconds + SPARE_SECONDS
        return time.monotonic() + ahead > self.deadline

    def _check(self, losses: list[float], norms: list[float], epoch: int, step: int) -> None:
        first = step - len(losses) + 1
        for number, (loss, norm) in enumerate(zip(losses, norms, strict=True)):
            name, value = ("loss", loss) if not math.isfinite(loss) else ("gradient's norm", norm)
            if not math.isfinite(value):
                raise Diverged(
                    f"training {name} is {value} in epoch {epoch}, step {first + number}"
                )
