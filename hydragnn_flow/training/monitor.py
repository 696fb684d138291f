"""Monitor of a training: stop requests, the deadline and the finiteness of losses.

A loss stays on the device until the host reads it, and reading makes the host wait. So the losses
of about a second are read together, in a *synchronisation*, and steps never wait. Several ranks
agree to stop there, since one that stopped alone would leave the others waiting.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from hydragnn_flow.config.search import WARM_UP_STEPS
from hydragnn_flow.energy_counters import (
    Counter,
    amd_counter,
    cray_accelerator,
    cray_counter,
    intel_counter,
    nvidia_counter,
    rapl_counters,
)
from hydragnn_flow.training.distributed import World

SECONDS_BETWEEN_SYNCS = 1.0
# Writing a checkpoint may cost this fraction of the training time that it protects.
CHECKPOINT_FRACTION = 0.05
# Long epochs are saved within too, or a lost node would cost a whole epoch.
SECONDS_UNSAVED = 300.0
# Number of intermediate checkpoints that all processes of a site together may write per second:
# each costs several requests to a shared file system.
SAVES_PER_SECOND = 40.0
# Reserve before the deadline, for steps and writes that take longer than ever before.
SPARE_SECONDS = 5.0

_ASKED, _LATE = "asked to stop", "its time is up"


class Diverged(ArithmeticError):
    """Error: a loss or a gradient became NaN or infinite."""


class Stopped(Exception):
    """Exception that ends a segment (one job of a training) before its last epoch.

    Its message says why.
    """


class Steady:
    """Counter of the number, time [s] and energy [J] of steps after the first `WARM_UP_STEPS`.

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
        self.left = WARM_UP_STEPS
        """Number of warm-up steps still to come; 0 once steps are counted."""
        self.steps = self.graphs = 0
        """Number of counted steps, and (``graphs``) of the graphs in them over all ranks."""
        self.seconds = 0.0
        """Time of the counted steps, without validation and checkpoints [s]."""
        self.joules: float | None = 0.0 if joules() is not None else None
        """Energy of the counted steps on this rank [J]; None if no counter measured all of them."""

    @property
    def totals(self) -> dict[str, Any]:
        """Number, graphs, time [s] and energy [J] of counted steps, by name, as `steady_steps`."""
        names = ("steps", "graphs", "seconds", "joules")
        return {f"steady_{name}": getattr(self, name) for name in names}

    def resume(self) -> None:
        """Begin to measure energy [J] with the next step.

        Energy that was used since the last step is left out.
        """
        self._before = self._joules()

    def count(self, steps: int, graphs: int, seconds: float) -> None:
        """Count the steps since the last call or :meth:`resume`, with their graphs and time [s].

        Warm-up steps only reduce ``left``, which a call must not exceed while it is above zero.
        """
        before, now = self._before, self._joules()
        self._before = now
        if self.left:
            self.left -= min(steps, self.left)
            return
        self.steps, self.graphs = self.steps + steps, self.graphs + graphs
        self.seconds += seconds
        if self.joules is None or now is None or before is None:
            self.joules = None  # a lost counter would make the remaining steps look cheap
        else:
            self.joules += now - before


class TrainingMonitor:
    """Monitor of one run of the training loop, which reads losses and tells when to stop or save.

    Parameters
    ----------
    world
        Rank of this process and number of ranks.
    device
        Device of the losses.
    deadline
        Time on the monotonic clock by which the last checkpoint must be written [s]; None if the
        training may take any time.
    should_stop
        Function that returns true if the segment has to end; called before every step, with several
        ranks at every synchronisation.
    seconds_between_saves
        Least time between intermediate checkpoints [s].
    alive
        Function that reports that the training still works (a heartbeat). It is called before every
        step and evaluation batch with the time of the longest step so far [s], a silence that is
        normal; 0 before the first synchronisation.
    joules
        Function that returns the energy of this rank so far [J]; None if there is no counter.
    """

    def __init__(
        self,
        world: World,
        device: torch.device,
        deadline: float | None,
        should_stop: Callable[[], bool],
        seconds_between_saves: float = 0.0,
        alive: Callable[[float], None] = lambda longest_step: None,
        joules: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.world, self.device, self.deadline = world, device, deadline
        self.should_stop, self.alive = should_stop, alive
        self._seconds_between_saves = seconds_between_saves
        self._losses: list[Tensor] = []
        self._norms: list[Tensor] = []
        self._synced = self._saved = time.monotonic()
        self._steps_between_syncs = 1
        self._slowest_step = self._slowest_evaluation = self._save_seconds = 0.0
        self._save_is_worth_it = self._save_is_urgent = False
        self._agreed = ""
        self.steps = 0
        """Number of steps whose losses have been read."""
        self._first = self._stepping = (0, 0.0)
        self._graphs = 0
        self.steady = Steady(joules)
        """Number, time and energy of the steps after the first few."""
        self.steady.resume()

    @property
    def step_seconds(self) -> float:
        """Mean time of a training step [s].

        The steps up to the first synchronisation (reading of losses) count only if there are no
        others.
        """
        n, seconds = self._stepping if self._stepping[0] else self._first
        return seconds / n if n else 0.0

    def reason_to_stop(self) -> str:
        """Return the reason why the training has to stop now, or an empty string.

        The call does not wait for the device.
        """
        self.alive(self._slowest_step)
        return self._agreed if self.world.size > 1 else self._reason()

    def record(self, loss: Tensor, norm: Tensor, graphs: int = 0) -> None:
        """Store this rank's loss and gradient norm of a step (scalars), to be read by :meth:`sync`.

        ``graphs`` is the number of graphs in the step, over all ranks.
        """
        self._losses.append(loss)
        self._norms.append(norm)
        self._graphs += graphs

    @property
    def sync_is_due(self) -> bool:
        """True if it is time to read the losses by :meth:`sync`; the same on every rank."""
        return len(self._losses) >= self._steps_between_syncs

    def sync(self, epoch: int, step: int) -> list[float]:
        """Read the losses of the steps since the last call from the device (collective).

        All ranks call this method after the same step.

        Parameters
        ----------
        epoch, step
            Current epoch and number of steps taken in it, for messages.

        Returns
        -------
        list of float
            Loss of each step since the last call.

        Raises
        ------
        Diverged
            If a loss or a gradient norm is not finite; the message names the first such step.
        """
        n = len(self._losses)
        if n == 0:
            return []
        read = torch.stack([*self._losses, *(norm.double() for norm in self._norms)])
        float(read[-1])  # waits for the device, so that the time covers the steps
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
        self._steps_between_syncs = max(1, int(SECONDS_BETWEEN_SYNCS / max(seconds, 1e-6)))
        if self.steady.left:
            self._steps_between_syncs = min(self._steps_between_syncs, self.steady.left)
        self._synced = time.monotonic()
        self._losses, self._norms = [], []
        losses, norms = values[:n], values[n:]
        self._check(losses, norms, epoch, step)
        return losses

    def save_is_due(self, *, within_epoch: bool) -> bool:
        """Return whether to write a checkpoint, as decided in the last synchronisation.

        Within an epoch a checkpoint is due only after :data:`SECONDS_UNSAVED` without any.
        """
        return self._save_is_worth_it and (self._save_is_urgent or not within_epoch)

    def evaluated(self, seconds: float) -> None:
        """Record the duration of a validation [s]; the time of the next step begins now."""
        self._slowest_evaluation = max(self._slowest_evaluation, seconds)
        self._synced = time.monotonic()
        self.steady.resume()

    def saved(self, seconds: float) -> None:
        """Record how long writing the checkpoint took [s]."""
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
        # Before the first synchronisation step times are unknown; every segment may run that far.
        if self.deadline is None or self._slowest_step == 0.0:
            return False
        # Several ranks check again only at the next synchronisation.
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


# A processor's counter wraps around every few minutes; two wraps between readings would be lost.
_SECONDS_BETWEEN_READINGS = 10.0


class EnergyMeter:
    """Meter of the energy that a segment has used since the meter was created [J].

    NVIDIA devices are read through NVML (package ``nvidia-ml-py``), AMD ones through AMD SMI
    (package ``amdsmi``, part of ROCm), Intel's through the kernel, processors through RAPL. If that
    is not possible, Cray's `pm_counters` are read. NVML counts a device; RAPL and Cray's
    `cpu_energy` count the sockets with everything that runs on them. AMD SMI and Cray's
    `accel0_energy` count a package: each GCD of an MI250X is charged with half of it, whatever runs
    on the other one.

    Parameters
    ----------
    device
        Device that does the work.
    fraction
        Function that returns which fraction of the counted energy belongs to this segment now.
    """

    def __init__(self, device: torch.device, fraction: Callable[[], float] = lambda: 1.0) -> None:
        self._fraction, self._joules = fraction, 0.0
        self.source, self._counters = _counters(device)
        """Kind of counters: `RAPL`, `NVML`, `AMD SMI`, `hwmon`, `pm_counters`; empty for none."""
        self._last = self._now()
        self._read = time.monotonic()
        self._device, self._active = device, list[float]()

    @property
    def active(self) -> float | None:
        """Mean fraction of the time in which the GPU computed anything, of any process, 0 to 1.

        It is None without a GPU, or without ``nvidia-ml-py`` or ``amdsmi``.
        """
        return sum(self._active) / len(self._active) if self._active else None

    def poll(self) -> None:
        """Read the meters, unless they were read within the last ten seconds.

        So ``fraction`` is current, and no wrap of a counter is missed. Call this at least once a
        minute.
        """
        if time.monotonic() - self._read > _SECONDS_BETWEEN_READINGS:
            self.joules()
            if self._device.type == "cuda":
                with suppress(Exception):  # the vendors' packages raise errors of their own
                    self._active.append(torch.cuda.utilization(self._device) / 100)

    def joules(self) -> float | None:
        """Return the segment's energy so far [J]; None if there is no counter or one has failed."""
        self._read = time.monotonic()
        now = self._now()
        if not self._counters:
            return None
        used = (after - before for before, after in zip(self._last, now, strict=True))
        self._joules, self._last = self._joules + self._fraction() * sum(used), now
        return self._joules

    def _now(self) -> list[float]:
        """Read all counters [J]. If one fails all are dropped: their sum would be too small."""
        try:
            return [counter() for counter in self._counters]
        except Exception:  # the vendors' packages raise errors of their own
            self._counters = []
            return []


def _counters(device: torch.device) -> tuple[str, list[Counter]]:
    """Return the name of a device's energy counters, and the counters; empty if it has none."""
    if device.type == "cpu":
        sockets = rapl_counters()
        return ("RAPL", sockets) if sockets else _cray(cray_counter("cpu_energy"))
    if device.type == "xpu":
        card = intel_counter(os.environ.get("ZE_AFFINITY_MASK", ""))
        return ("hwmon", [card]) if card is not None else ("", [])
    if device.type != "cuda":
        return "", []
    properties: Any = torch.cuda.get_device_properties(device)
    try:
        if torch.version.hip:
            return "AMD SMI", [amd_counter(_place(properties))]
        return "NVML", [nvidia_counter(properties.uuid)]
    except Exception:  # the vendors' packages raise errors of their own, ImportError among them
        return _cray(cray_accelerator(_place(properties)))


def _cray(counter: Counter | None) -> tuple[str, list[Counter]]:
    return ("", []) if counter is None else ("pm_counters", [counter])


def _place(properties: Any) -> str:
    """Return a device's PCI address without its function number."""
    return (
        f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:"
        f"{properties.pci_device_id:02x}."
    )
