"""Block: one batch job, and its history so far."""

from __future__ import annotations

import math
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from hydragnn_flow.execution.pools.parsl_executor import BatchJob, Manager
from hydragnn_flow.execution.pools.scheduler import State

# After this time of work there are checkpoints, even if no task has ended.
SECONDS_OF_WORK = 600.0


@dataclass(eq=False)
class Block:
    """One batch job, from its submission on."""

    job: BatchJob
    state: State = "pending"
    ends: float = math.inf
    """Time by the monotonic clock at which its nodes are gone [s], if that is known."""
    reason: str = ""
    """Why it waits, in the scheduler's words."""
    since: float = field(default_factory=time.time)
    """Unix time it entered the state."""
    entered: float = field(default_factory=time.monotonic)
    """Time it entered the state, by the monotonic clock [s]."""
    submitted: float = field(default_factory=time.monotonic)
    """Time the scheduler took it."""
    managers: list[Manager] = field(default_factory=list)
    """Its worker pools that are connected."""
    seen: set[str] = field(default_factory=set)
    """Identifiers of all worker pools that have been connected."""
    connected: float | None = None
    """Time the first was connected."""
    gone: float | None = None
    """Time the last was gone."""
    held_back: float = -math.inf
    """Last time at which it was to get no tasks yet, as the store was being brought to it."""
    leaving: bool = False
    """Whether it is being given back."""
    was_given_work: bool = False
    has_worked: bool = False
    was_draining: bool = False
    was_incomplete: bool = False
    """Whether it was said that some of its nodes have not come."""
    not_listed: int = 0
    """Answers of the scheduler in a row that do not know it."""
    cancelling: Future[bool] | None = None

    def enter(self, state: State, reason: str = "") -> None:
        """Record the state of the job."""
        if state != self.state:
            self.since, self.entered = time.time(), time.monotonic()
        self.state, self.reason = state, reason

    @property
    def age(self) -> float:
        """Time since the scheduler took it [s]."""
        return time.monotonic() - self.submitted

    @property
    def is_cancelled(self) -> bool:
        """Whether the scheduler has cancelled its job."""
        answer = self.cancelling
        if answer is None or not answer.done() or answer.cancelled():
            return False
        return answer.exception() is None and answer.result()

    @property
    def tasks(self) -> int:
        """Tasks at work in it."""
        return sum(manager.tasks for manager in self.managers)

    def is_idle(self, seconds: float) -> bool:
        """Whether all its workers have been idle for that time, though they could have had work."""
        idle = min((manager.idle_seconds for manager in self.managers), default=0.0)
        idle = min(idle, time.monotonic() - self.held_back)
        return self.tasks == 0 and idle >= seconds

    @property
    def was_of_use(self) -> bool:
        """Whether it has had work, as far as was seen or its results show."""
        return self.was_given_work or self.has_worked

    @property
    def is_fruitless(self) -> bool:
        """Whether it would have achieved nothing if it ended now."""
        if self.connected is None:
            return True
        seconds = (self.gone or time.monotonic()) - self.connected
        was_at_work = self.has_worked or self.was_draining or seconds > SECONDS_OF_WORK
        return self.was_given_work and not was_at_work
