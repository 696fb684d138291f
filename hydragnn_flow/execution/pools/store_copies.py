"""Copies of the store on the nodes' own disks, which Slurm sends to all nodes of a job at once."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from hydragnn_flow.data.reading.local_shards import files_to_send
from hydragnn_flow.execution.pools.scheduler import number_of
from hydragnn_flow.log import tell

_logger = logging.getLogger(__name__)


class StoreCopies:
    """Copier of a store (graphs on disk) to the nodes of Slurm jobs, by the command `sbcast`.

    Parameters
    ----------
    store
        Path of the store on the shared file system.
    scratch
        Scratch directory of each node.
    """

    def __init__(self, store: Path, scratch: str) -> None:
        self._store, self._scratch = store, Path(scratch)
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="store-copies")
        self._sent: dict[str, Future[None]] = {}

    def are_there(self, job: str) -> bool:
        """Return whether copying to a batch job's nodes has ended; the first call starts copying.

        ``job`` identifies a running batch job. If copying failed, its nodes read the shared store.
        """
        if job not in self._sent:
            self._sent[job] = self._threads.submit(self._send, number_of(job))
        return self._sent[job].done()

    def close(self) -> None:
        """Start no further copies; a copy in progress ends with its job."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _send(self, job: str) -> None:
        for command in self._commands(job):
            ran = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
            if ran.returncode:
                said = (ran.stderr.strip().splitlines() or ["no reason given"])[-1]
                tell(
                    _logger,
                    "job %s: the store was not brought to its nodes, which read it from %s (%s)",
                    *(job, self._store, said),
                )
                return
        _logger.info("job %s: its nodes have copies of the store", job)

    def _commands(self, job: str) -> Iterator[list[str]]:
        for file, place in files_to_send(self._store):
            to = str(self._scratch / place)
            yield ["sbcast", f"--jobid={job}", "--force", str(file), to]
