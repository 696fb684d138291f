"""`workers.json` of a run directory: blocks and segments of the driver, for `status`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.pools.calls import node_of
from hydragnn_flow.execution.pools.waits import WAITS
from hydragnn_flow.files import write_json
from hydragnn_flow.log import LastEpoch
from hydragnn_flow.plain_files import read_json
from hydragnn_flow.segment import SegmentSpec

if TYPE_CHECKING:
    from hydragnn_flow.execution.workers.rank import Rank

WORKERS_FILE = "workers.json"


def read_workers(run_directory: Path) -> dict[str, Any]:
    """Read a run directory's `workers.json`, the state of its workers; empty without a file."""
    try:
        content: dict[str, Any] = read_json(run_directory / WORKERS_FILE)
        return content
    except InputError:
        return {}


def remembered_nodes(run_directory: Path) -> dict[str, float]:
    """Return the Unix time at which an earlier driver took each bad node out of use [s], by node.

    Nodes taken out more than a day ago are left out, since they have probably been repaired.
    """
    found = read_workers(run_directory).get("bad_nodes")
    if not isinstance(found, dict):
        return {}
    now = time.time()  # a time far in the future is from a wrong clock
    return {node: when for node, when in found.items() if abs(now - when) < 86_400}


def in_queue(blocks: int, since: float, reason: str) -> str:
    """Describe waiting batch jobs (blocks): `2 blocks in the queue since 12 min (Priority)`.

    Parameters
    ----------
    blocks
        Number of the waiting blocks.
    since
        Unix time at which the first block entered the queue [s].
    reason
        Scheduler's reason for the wait; may be empty.
    """
    why = f" ({reason})" if reason else ""
    return f"{count(blocks)} in the queue since {elapsed(since)}{why}"


def count(blocks: int) -> str:
    """Format a number of blocks (batch jobs) in words: `1 block`, `2 blocks`."""
    return "1 block" if blocks == 1 else f"{blocks} blocks"


def elapsed(since: float) -> str:
    """Format the time that has passed since a Unix time in words: `50 s`, `12 min`, `2.5 h`."""
    return in_words(max(0.0, time.time() - since))


def in_words(seconds: float) -> str:
    """Format a time in words: `50 s`, `12 min`, `2.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


class WorkersFile:
    """Writer of `workers.json`, from which `hydragnn-flow status` shows running segments.

    The file names the blocks (batch jobs) and the running segments (jobs of training).

    Parameters
    ----------
    run_directory
        Directory of the campaign.
    """

    def __init__(self, run_directory: Path) -> None:
        self._path = run_directory / WORKERS_FILE
        self._written: dict[str, Any] = {}
        self._next = float("-inf")
        # By the future of their task: attempts, and lines of the ledger without their end.
        self._segments: dict[Any, list[tuple[str, dict[str, Any]]]] = {}

    def begin(
        self, answer: Future[Any], ranks: Sequence[Rank], manager: str, gcds: Sequence[str]
    ) -> None:
        """Add the segments (jobs of training) among some ranks until their results are there.

        Parameters
        ----------
        answer
            Future of the ranks' results.
        ranks
            Ranks (processes) of a job.
        manager
            Parsl's identifier of the agent of their node.
        gcds
            Names of the GCDs on the node.
        """
        about = {"started": time.time(), "node": node_of(manager)}
        self._segments[answer] = [
            (
                spec.attempt,
                {"kind": spec.kind, "number": spec.number, "rung": spec.rung, **about}
                | {"to_epoch": spec.epochs.until_epoch, "gcds": [gcds[rank.gcd]]},
            )
            for rank in ranks
            if isinstance(spec := rank.spec, SegmentSpec)
        ]
        answer.add_done_callback(self._segments.pop)

    def write(
        self,
        blocks: Mapping[str, Any],
        bad_nodes: Mapping[str, float],
        last_epochs: Mapping[str, LastEpoch],
        *,
        at_once: bool,
    ) -> None:
        """Write `workers.json` if its content has changed.

        Parameters
        ----------
        blocks
            Batch jobs with their workers, as `Blocks.summary` describes them.
        bad_nodes
            Nodes that get no further jobs, with the Unix time from which this is so [s].
        last_epochs
            Last epoch of segments (jobs of training), by attempt, as far as it is known.
        at_once
            True to write even if the last write was moments ago; False to write nothing then.
        """
        began = time.monotonic()
        if not at_once and began < self._next:
            return
        content = {
            "driver_pid": os.getpid(),
            "host": socket.gethostname(),
            **blocks,
            "bad_nodes": dict(bad_nodes),
            "segments": [
                {**line, "last_epoch": last_epochs[attempt]} if attempt in last_epochs else line
                for lines in [*self._segments.values()]
                for attempt, line in lines
            ],
        }
        if content != self._written:
            self._written = content
            with suppress(OSError):  # `status` shows an older state
                write_json(self._path, {"written": time.time(), **content})
        # Writing thousands of segments takes a while: at most a fiftieth of the driver's time.
        self._next = began + max(WAITS.writes, 50 * (time.monotonic() - began))
