"""States of jobs, as the batch schedulers Slurm and PBS Pro report them.

A scheduler that is asked may be busy, restarting or out of reach. Silence is never taken for an
answer.
"""

from __future__ import annotations

import getpass
import json
import math
import subprocess
import time
from collections.abc import Sequence
from typing import Literal, NamedTuple

SECONDS_TO_ANSWER = 30

State = Literal["pending", "running", "ended"]


class JobState(NamedTuple):
    """State of a job."""

    state: State
    reason: str = ""
    """Why it waits, in the scheduler's own words; `suspended` if it stands still."""
    script: str = ""
    """Path of its batch script, as it was submitted."""
    ends: float = math.inf
    """Time by this host's monotonic clock at which it will be ended [s], if that is known."""


_SLURM_PENDING = {
    *("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED"),
    *("REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"),
}
_STANDS_STILL = ("STOPPED", "SUSPENDED", "S", "U")  # the latter two of PBS
_SLURM_RUNNING = {"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", *_STANDS_STILL}


class Slurm:
    """Slurm, asked by `squeue` and `scancel`."""

    def jobs(self) -> dict[str, JobState] | None:
        """The jobs of this user that have not ended, by number; None if there is no answer."""
        # Asked for jobs by number, squeue fails as soon as it has forgotten one of them.
        answer = _run("squeue", "--me", "--noheader", "--format=%i|%T|%r|%L|%o")
        if answer is None or answer.returncode != 0:
            return None
        listed = {}
        for line in answer.stdout.splitlines():
            job, state, reason, left, script = [*line.split("|", 4), "", "", "", ""][:5]
            if state in _SLURM_PENDING:
                reason = "" if reason == "None" else reason
                listed[job.strip()] = JobState("pending", reason, script)
            elif state in _SLURM_RUNNING:
                still = "suspended" if state in _STANDS_STILL else ""
                listed[job.strip()] = JobState("running", still, script, _end(seconds_of(left)))
        return listed

    def cancel(self, jobs: Sequence[str]) -> None:
        """Cancel jobs."""
        if jobs:
            _run("scancel", *jobs)


class Pbs:
    """PBS Pro, asked by `qselect`, `qstat` and `qdel`."""

    def jobs(self) -> dict[str, JobState] | None:
        """The jobs of this user that have not ended, by number; None if there is no answer."""
        mine = _run("qselect", "-u", getpass.getuser())
        if mine is None or mine.returncode != 0:
            return None
        listed: dict[str, JobState] = {}
        if mine.stdout.split():
            # Its exit code says only that one of them has ended since.
            answer = _run("qstat", "-f", "-F", "json", *mine.stdout.split())
            try:
                # Not strict: qstat leaves tabs and line breaks in texts as they are.
                found = (
                    json.loads(answer.stdout, strict=False)["Jobs"] if answer is not None else None
                )
            except (ValueError, KeyError):
                found = None
            if found is None:
                return None
            for job, facts in found.items():
                state = facts.get("job_state")
                pending, still = state in ("Q", "H", "W", "T"), state in _STANDS_STILL
                given, used = (
                    seconds_of(str(facts.get(about, {}).get("walltime", "")))
                    for about in ("Resource_List", "resources_used")
                )
                left = None if given is None or pending else given - (used or 0.0)
                listed[number_of(job)] = JobState(
                    "pending" if pending else "running",
                    " ".join(str(facts.get("comment", "")).split())
                    if pending
                    else "suspended" * still,
                    # The script comes last, after the options.
                    str(facts.get("Submit_arguments", "")).rpartition(" ")[2],
                    _end(left),
                )
        return listed

    def cancel(self, jobs: Sequence[str]) -> None:
        """Delete jobs."""
        if jobs:
            _run("qdel", *jobs)


def scheduler_named(name: Literal["slurm", "pbs"] | None) -> Slurm | Pbs | None:
    """The scheduler of a site; None if processes are started directly."""
    if name is None:
        return None
    return Slurm() if name == "slurm" else Pbs()


def _run(*command: str) -> subprocess.CompletedProcess[str] | None:
    """Run a command; None if it cannot be run or takes too long."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # jobs may bear any name
            timeout=SECONDS_TO_ANSWER,
            # Ctrl-C is for the campaign, which cancels its jobs with such commands.
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def seconds_of(clock: str) -> float | None:
    """Seconds of a time like `1-02:03:04`, `03:04` or `7`, in minutes and seconds; None of others.

    A scheduler may also say that there is no limit, or that it does not know.
    """
    days, _, rest = clock.strip().rpartition("-")
    try:
        seconds = 86400.0 * int(days or 0)
        for unit, number in zip((1, 60, 3600), reversed(rest.split(":")), strict=False):
            seconds += unit * int(number)
    except ValueError:
        return None
    return seconds


def _end(left: float | None) -> float:
    """End by the monotonic clock [s] of what has a time left [s]; infinite if not known."""
    return math.inf if left is None else time.monotonic() + left


def number_of(job: str) -> str:
    """`123` of `123.polaris-pbs-01.hsn.alcf.anl.gov`, which PBS itself abbreviates in places."""
    return job.partition(".")[0]
