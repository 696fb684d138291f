"""Nodes of a pool: their health, their energy, and the copies of the store on their disks.

An agent measures its node's energy from its start on. The driver gets it with every result, and
with the heartbeats of an idle node.

Without copies, every node of a machine reads the store from the shared file system when its first
segment starts. Slurm's `sbcast` passes each file on from node to node.
"""

from __future__ import annotations

import logging
import math
import subprocess
import threading
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from hydragnn_flow.data.reading.local_shards import files_to_send
from hydragnn_flow.energy_counters import NodeMeter, Reading
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.pools.scheduler import number_of
from hydragnn_flow.files import write_json
from hydragnn_flow.log import tell
from hydragnn_flow.plain_files import read_json

# Number of failures on a node, with no success since, that make it suspect. If one trial in ten is
# faulty, eight GCDs that start together seldom see this many.
MOST_BAD_ENDS = 4.0
# Weight of the loss of a node's worker pool, which loses all its work.
BLAME_FOR_LOSS = 2.0
# Number of nodes that refuse work in a row before the campaign stops, as they are not to blame.
MOST_REFUSING = 3


class NodeHealth:
    """Health of nodes, judged by the results of their jobs.

    A broken GPU or a full disk ends every job within seconds, so a single bad node spoils a
    campaign's segments faster than all the good ones train them. A bad segment fails wherever it is
    sent, and is sent several times. So a node is judged by the number of different segments that
    failed on it, and those that failed elsewhere as well count little.
    """

    def __init__(self) -> None:
        self._nodes: defaultdict[Hashable, set[str]] = defaultdict(set)
        self._failures: defaultdict[str, set[Hashable]] = defaultdict(set)
        self._losses: Counter[str] = Counter()
        self._of_no_use: set[str] = set()
        self._refusals: dict[str, str] = {}

    def record(self, node: str, work: Hashable, worked: bool) -> None:
        """Record whether a job succeeded on a node.

        Parameters
        ----------
        node
            Name of the node.
        work
            Name of the job; the same for all its attempts.
        worked
            True if the job succeeded, which clears the node; False if it failed.
        """
        if worked:
            self._failures.pop(node, None)
            self._losses.pop(node, None)
            self._refusals.clear()
        else:
            self._nodes[work].add(node)
            self._failures[node].add(work)

    def record_loss(self, node: str) -> None:
        """Record that a node lost its worker pool while other nodes did not."""
        self._losses[node] += 1

    def suspect(self, node: str) -> None:
        """Record that a node was bad for an earlier driver; a success on it clears it."""
        self._losses[node] = math.ceil(MOST_BAD_ENDS / BLAME_FOR_LOSS)

    def condemn(self, node: str, reason: str) -> bool:
        """Record that a node cannot do any job; return True if that was not known before."""
        is_news = node not in self._of_no_use
        self._of_no_use.add(node)
        self._refusals[node] = reason
        return is_news

    def check(self, nodes: int, at_work: Set[str]) -> None:
        """Raise an error if no node can be expected to work.

        Parameters
        ----------
        nodes
            Largest number of nodes of the campaign at a time.
        at_work
            Names of nodes with jobs; those not condemned may yet succeed.

        Raises
        ------
        InputError
            If several nodes in a row were condemned, and no job has succeeded since or still may.
        """
        if len(self._refusals) >= min(MOST_REFUSING, nodes) and at_work <= self._of_no_use:
            raise InputError([*self._refusals.values()][-1])

    def reason(self, node: str) -> str:
        """Return the reasons why a node is suspect, in words; empty if there are none."""
        if node in self._of_no_use:
            return "it refuses work"
        failed = sorted(map(_in_words, self._failures.get(node, ())))
        reasons = [f"failed there: {', '.join(failed)}"] if failed else []
        if self._losses[node]:
            reasons.append(f"its workers alone were lost {self._losses[node]} times")
        return "; ".join(reasons)

    def is_of_no_use(self, node: str) -> bool:
        """Return whether the node is known to be unable to do any job."""
        return node in self._of_no_use

    def is_suspect(self, node: str) -> bool:
        """Return whether the node is of no use, or likely so from failures without a success."""
        blame = BLAME_FOR_LOSS * self._losses[node]
        for work in self._failures.get(node, ()):
            # What failed on several nodes is hardly their fault, but two bad nodes must not excuse
            # each other.
            blame += 1.0 if len(self._nodes[work]) == 1 else 0.25
        return self.is_of_no_use(node) or blame >= MOST_BAD_ENDS


def _in_words(work: Hashable) -> str:
    return " ".join(map(str, work)) if isinstance(work, tuple) else str(work)


ENERGY_FILE = "energy.json"
_logger = logging.getLogger(__name__)
_meters: list[NodeMeter] = []


def begin_to_measure() -> None:
    """Start to measure the energy of this node, in a thread of its agent."""
    # A vendor's package may take seconds to start, so it starts in a thread.
    threading.Thread(target=lambda: _meters.append(NodeMeter()), daemon=True).start()


def reading() -> Reading | None:
    """Return the energy that this node has used since its agent started; None if not counted."""
    return _meters[0].read() if _meters else None


@dataclass(frozen=True)
class NodeEnergy:
    """Energy of the nodes of a campaign, each from the start of its agent to its last heartbeat.

    It is a sum over all drivers of the campaign.
    """

    joules: float = 0.0
    node_seconds: float = 0.0
    """Time in which energy was counted, summed over nodes [s]."""
    agents: int = 0
    """Number of agents that have counted energy."""
    counters: tuple[str, ...] = ()
    """Names of the counters, such as `pm_counters` or `NVML + RAPL`."""

    def __add__(self, readings: Mapping[str, Reading]) -> NodeEnergy:
        of_these = {reading.counters for reading in readings.values()}
        return NodeEnergy(
            self.joules + sum(reading.joules for reading in readings.values()),
            self.node_seconds + sum(reading.seconds for reading in readings.values()),
            self.agents + len(readings),
            tuple(sorted({*self.counters, *of_these})),
        )


def read_node_energy(run_directory: Path) -> NodeEnergy | None:
    """Read the energy of a run's nodes so far from `energy.json`; None if it was not counted."""
    path = run_directory / ENERGY_FILE
    if not path.exists():
        return None
    try:
        return msgspec.convert(read_json(path), NodeEnergy)
    except ValueError as error:
        _logger.warning("%s: is ignored, it cannot be read (%s)", path, error)
        return None


class EnergyFile:
    """Writer of `energy.json`, the energy of a campaign's nodes.

    Parameters
    ----------
    run_directory
        Directory of the campaign.
    """

    def __init__(self, run_directory: Path) -> None:
        self._path = run_directory / ENERGY_FILE
        self._before = read_node_energy(run_directory) or NodeEnergy()
        self._readings: dict[str, Reading] = {}

    def record(self, readings: Iterable[tuple[str, Reading]]) -> None:
        """Write the last reading of each agent, added to the sum of earlier drivers.

        Parameters
        ----------
        readings
            Readings with the unique identifiers of their agents, in any order.
        """
        before = dict(self._readings)
        for agent, one in readings:
            known = self._readings.get(agent)
            if known is None or one.seconds > known.seconds:
                self._readings[agent] = one
        if before == self._readings:
            return
        try:
            write_json(self._path, asdict(self._before + self._readings))
        except OSError as error:
            _logger.info("%s: cannot be written (%s)", self._path, error.strerror)


class StoreCopies:
    """Copier of a store to the nodes of Slurm jobs, by `sbcast`.

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
        """Start the copying for a running job; return True once it has ended.

        If it has failed, the job's nodes read the shared store.
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
