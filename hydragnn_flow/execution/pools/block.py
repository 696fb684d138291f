"""Block: one batch job with its history."""

from __future__ import annotations

import math
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from hydragnn_flow.execution.pools.parsl_executor import BatchJob, Manager
from hydragnn_flow.execution.pools.scheduler import State
from hydragnn_flow.execution.pools.waits import WAITS


@dataclass(eq=False)
class Block:
    """Batch job with its history since submission."""

    job: BatchJob
    state: State = "pending"
    ends: float = math.inf
    """Monotonic time at which its nodes end [s]; infinite if unknown."""
    reason: str = ""
    """Reason why it waits, in the scheduler's words."""
    since: float = field(default_factory=time.time)
    """Unix time at which it entered the state [s]."""
    entered: float = field(default_factory=time.monotonic)
    """Monotonic time at which it entered the state [s]."""
    submitted: float = field(default_factory=time.monotonic)
    """Monotonic time at which the scheduler accepted it [s]."""
    managers: list[Manager] = field(default_factory=list)
    """Connected worker pools of its nodes."""
    seen: set[str] = field(default_factory=set)
    """Identifiers of all worker pools that were ever connected."""
    connected: float | None = None
    """Monotonic time at which the first pool connected [s]."""
    gone: float | None = None
    """Monotonic time at which the last pool was gone [s]."""
    held_back: float = -math.inf
    """Last time at which it got no tasks since the store was being copied to it [s]."""
    leaving: bool = False
    """True while it is being given back."""
    was_given_work: bool = False
    has_worked: bool = False
    was_draining: bool = False
    was_incomplete: bool = False
    """True if the user was told that some of its nodes have not come."""
    not_listed: int = 0
    """Number of successive answers of the scheduler without this job."""
    cancelling: Future[bool] | None = None

    def enter(self, state: State, reason: str = "") -> None:
        """Record the state of the job."""
        if state != self.state:
            self.since, self.entered = time.time(), time.monotonic()
        self.state, self.reason = state, reason

    @property
    def age(self) -> float:
        """Time since the scheduler accepted it [s]."""
        return time.monotonic() - self.submitted

    @property
    def is_cancelled(self) -> bool:
        """True if the scheduler has cancelled its job."""
        answer = self.cancelling
        if answer is None or not answer.done() or answer.cancelled():
            return False
        return answer.exception() is None and answer.result()

    @property
    def tasks(self) -> int:
        """Number of running tasks."""
        return sum(manager.tasks for manager in self.managers)

    def is_idle(self, seconds: float) -> bool:
        """True if all its workers were idle for that time, though they could have had work."""
        idle = min((manager.idle_seconds for manager in self.managers), default=0.0)
        idle = min(idle, time.monotonic() - self.held_back)
        return self.tasks == 0 and idle >= seconds

    @property
    def was_of_use(self) -> bool:
        """True if it had work, as far as was seen or its results show."""
        return self.was_given_work or self.has_worked

    @property
    def is_fruitless(self) -> bool:
        """True if it would have achieved nothing if it ended now."""
        if self.connected is None:
            return True
        seconds = (self.gone or time.monotonic()) - self.connected
        was_at_work = self.has_worked or self.was_draining or seconds > WAITS.work
        return self.was_given_work and not was_at_work
