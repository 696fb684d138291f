"""States of batch jobs, queried from the schedulers Slurm, PBS Pro and LSF.

A scheduler may be busy, restarting or out of reach. Silence is never taken for an answer.
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
    """State of a batch job, as its scheduler reports it: pending, running or ended."""

    state: State
    reason: str = ""
    """Reason why it waits, in the scheduler's words; `suspended` if it is suspended."""
    script: str = ""
    """Path of its batch script, as submitted, or of its output beside the script (LSF)."""
    ends: float = math.inf
    """Monotonic time of this host at which the job will end [s]; infinite if unknown."""


_SLURM_PENDING = {
    *("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED"),
    *("REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"),
}
_STANDS_STILL = ("STOPPED", "SUSPENDED", "S", "U")  # the latter two in PBS
_SLURM_RUNNING = {"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", *_STANDS_STILL}


class _Canceller:
    """Base of schedulers whose batch jobs one command cancels, given their numbers."""

    command: str

    def cancel(self, jobs: Sequence[str]) -> None:
        if jobs:
            _run(self.command, *jobs)


class Slurm(_Canceller):
    """Scheduler Slurm, queried by the command `squeue`; `scancel` cancels its batch jobs."""

    command = "scancel"

    def jobs(self) -> dict[str, JobState] | None:
        """Return the user's batch jobs that have not ended, by number; None without an answer."""
        # With job numbers, squeue would fail as soon as it has forgotten one of them.
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


class Pbs(_Canceller):
    """Scheduler PBS Pro, queried by `qselect` and `qstat`; `qdel` cancels its batch jobs."""

    command = "qdel"

    def jobs(self) -> dict[str, JobState] | None:
        """Return the user's batch jobs that have not ended, by number; None without an answer."""
        mine = _run("qselect", "-u", getpass.getuser())
        if mine is None or mine.returncode != 0:
            return None
        listed: dict[str, JobState] = {}
        if mine.stdout.split():
            # Its exit code only says that one of them has ended since.
            answer = _run("qstat", "-f", "-F", "json", *mine.stdout.split())
            if answer is None:
                return None
            try:
                # Not strict: qstat does not escape tabs and line breaks in texts.
                found = json.loads(answer.stdout, strict=False)["Jobs"]
            except (ValueError, KeyError):
                return None
            for job, facts in found.items():
                state = facts.get("job_state")
                given, used = (
                    seconds_of(str(facts.get(about, {}).get("walltime", "")))
                    for about in ("Resource_List", "resources_used")
                )
                # The script comes last, after the options.
                script = str(facts.get("Submit_arguments", "")).rpartition(" ")[2]
                if state in ("Q", "H", "W", "T"):
                    reason = " ".join(str(facts.get("comment", "")).split())
                    listed[number_of(job)] = JobState("pending", reason, script)
                else:
                    still = "suspended" if state in _STANDS_STILL else ""
                    left = None if given is None else given - (used or 0.0)
                    listed[number_of(job)] = JobState("running", still, script, _end(left))
        return listed


class Lsf(_Canceller):
    """Scheduler IBM Spectrum LSF, queried by `bjobs`; `bkill` cancels its batch jobs."""

    command = "bkill"

    def jobs(self) -> dict[str, JobState] | None:
        """Return the user's batch jobs that have not ended, by number; None without an answer."""
        fields = "jobid stat time_left output_file pend_reason delimiter='|'"
        answer = _run("bjobs", "-noheader", "-o", fields)
        if answer is None or (answer.returncode and "No unfinished job" not in answer.stderr):
            return None
        listed = {}
        for line in answer.stdout.splitlines():
            job, state, left, output, reason = [*line.split("|", 4), "", "", "", ""][:5]
            if state in ("PEND", "PSUSP", "PROV", "WAIT"):
                listed[job] = JobState("pending", reason, output)
            elif state in ("RUN", "USUSP", "SSUSP", "UNKWN"):
                # As in `1:30 L`: hours, minutes, seconds where a cluster says so, kind of limit.
                left = left.partition(" ")[0] + ":00" * (left.count(":") == 1)
                still = "suspended" * state.endswith("SUSP")
                listed[job] = JobState("running", still, output, _end(seconds_of(left)))
        return listed


def scheduler_named(name: Literal["slurm", "pbs", "lsf"] | None) -> Slurm | Pbs | Lsf | None:
    """Return the interface to the scheduler ``name``; None if no scheduler starts the workers."""
    return {"slurm": Slurm(), "pbs": Pbs(), "lsf": Lsf(), None: None}[name]


def _run(*command: str) -> subprocess.CompletedProcess[str] | None:
    """Run a command; return None if it cannot be run or takes too long."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # jobs may have any name
            timeout=SECONDS_TO_ANSWER,
            # Only the campaign gets Ctrl-C; it cancels its jobs with such commands.
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def seconds_of(clock: str) -> float | None:
    """Convert a scheduler's time like `1-02:03:04`, `03:04` (min:s) or `7` (s) to seconds.

    The result is None for other texts: schedulers write words for no limit, or an unknown time.
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
    """Return the monotonic time of an end from the time left [s]; infinite if that is unknown."""
    return math.inf if left is None else time.monotonic() + left


def number_of(job: str) -> str:
    """Return the number in a batch job's identifier, without the host name that PBS adds.

    Example: `123` for `123.polaris-pbs-01.hsn.alcf.anl.gov`.
    """
    return job.partition(".")[0]
