"""The pools of a site: Parsl executors that start workers and carry results."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import parsl
from parsl.executors import HighThroughputExecutor

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.site import Site

PoolName = Literal["gcd", "node"]


class Pools:
    """A site's workers, from entering a ``with`` block to leaving it.

    Parameters
    ----------
    site
        The machine.
    directory
        Where Parsl keeps its logs and certificates.

    Raises
    ------
    InputError
        If the site's Parsl configuration lacks a pool; nothing has been started then.
    """

    def __init__(self, site: Site, directory: Path) -> None:
        self._site = site
        self._config = config = site.parsl_config(directory)
        labels = {executor.label for executor in config.executors}
        if not {"gcd", "node"} <= labels:
            raise InputError(
                f"site {site.name}: its Parsl configuration has the executors "
                f"{sorted(labels)}; it needs 'gcd' and 'node'"
            )
        for executor in config.executors:
            if isinstance(executor, HighThroughputExecutor):
                executor.interchange_launch_cmd = [
                    sys.executable,
                    "-m",
                    "hydragnn_flow.execution.interchange",
                ]

    def __enter__(self) -> Pools:
        logging.getLogger("parsl").setLevel(logging.ERROR)
        # Parsl finds its own programs on the PATH, where an environment that was called by path
        # rather than activated has not put them.
        programs = str(Path(sys.executable).parent)
        if programs not in os.environ.get("PATH", "").split(os.pathsep):
            os.environ["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", "")])
        self._kernel = parsl.DataFlowKernel(self._config)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kernel.cleanup()

    def check(self) -> None:
        """See whether the pools still get workers.

        Raises
        ------
        InputError
            If the scheduler refuses a pool's jobs, or they fail again and again; what was
            submitted to it has then ended through no fault of its own.
        """
        for label, executor in self._kernel.executors.items():
            if isinstance(executor, HighThroughputExecutor) and executor.bad_state_is_set:
                lines = str(executor.executor_exception).split("\n")
                said = [line.strip() for line in lines if line.strip()] or ["no reason given"]
                raise InputError(
                    f"site {self._site.name}: gets no workers for its pool '{label}': {said[-1]}; "
                    f"see {self._kernel.run_dir}/submit_scripts"
                )

    def submit(self, pool: PoolName, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run ``function(*arguments)`` on a worker of a pool."""
        app = parsl.python_app(function, data_flow_kernel=self._kernel, executors=[pool])
        future: Future[Any] = app(*arguments)
        return future
