"""Parsl's providers for batch systems, whose jobs are named after the run directory."""

from __future__ import annotations

import re
from pathlib import Path

from parsl.providers import PBSProProvider, SlurmProvider


class _Named:
    """Mixin of Parsl's providers: a batch job is named after its run directory and its block."""

    script_dir: str | None

    def submit(self, command: str, tasks_per_node: int, job_name: str = "parsl") -> str:
        """Submit a batch job; return its number.

        Parameters
        ----------
        command
            Command line that starts the workers of a node.
        tasks_per_node
            Number of workers to start on each node.
        job_name
            Parsl's name of the job, which ends with the block and is the same for all runs.
        """
        # RUN_DIR/parsl/000/submit_scripts; both batch systems take these characters.
        run = re.sub(r"[^A-Za-z0-9._-]", "_", Path(self.script_dir or "").parts[-4])[:64]
        name = f"{run}.{job_name.rpartition('.')[2]}"
        number: str = super().submit(command, tasks_per_node, name)  # type: ignore[misc]
        return number


class Qsub(_Named, PBSProProvider):
    """Parsl's PBS Pro provider, whose jobs are named after the run directory."""


class Sbatch(_Named, SlurmProvider):
    """Parsl's Slurm provider, which submits and cancels jobs without asking `sacct`.

    Parsl's own provider runs `sacct` when it is made, to read the states of jobs from there later,
    and waits if the accounting database hangs. Here the states come from `squeue`
    (pools/scheduler.py).
    """

    def execute_wait(self, cmd: str, timeout: int | None = None) -> tuple[int, str, str]:
        """Run a command for Parsl; return its exit code, standard output and standard error.

        A command `sacct` is not run, and gets the exit code 1.

        Parameters
        ----------
        cmd
            Command line to run in a shell.
        timeout
            Time limit of the command [s]; None for the provider's own.
        """
        if cmd.startswith("sacct"):
            return 1, "", "not asked"
        answer: tuple[int, str, str]
        answer = super().execute_wait(cmd, timeout)  # type: ignore[no-untyped-call]
        return answer
