"""Pool of a site whose nodes several users share: a campaign, another, and a script's own apps.

Each user sees its own nodes only, so that its placement need not know of the others.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution.jobs import Workers
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.execution.pools.workers_file import WorkersFile
from hydragnn_flow.execution.site import Site
from hydragnn_flow.execution.workers.rank import Rank
from hydragnn_flow.log import LastEpoch
from hydragnn_flow.placement import Host
from hydragnn_flow.segment import SegmentResult, SegmentSpec


def workers_of(site: Site, directory: Path) -> AbstractContextManager[Pool | Share]:
    """Context manager: start the workers of a site, or join those that others use already.

    Parameters
    ----------
    site
        Site that runs the workers.
    directory
        Directory for Parsl's logs and certificates, inside the directory that gets `workers.json`.

    Raises
    ------
    InputError
        If the site cannot have workers, as :class:`.Pool` says; raised before the ``with`` block.
    """
    return Pool(site, directory) if site.shared is None else site.shared(directory)


class Share(Workers):
    """Workers on those nodes of a shared pool that one of its users has now."""

    def __init__(self, pool: SharedPool, directory: Path) -> None:
        self._shared, self._file = pool, WorkersFile(directory.parent)
        # By the future of the results: node, attempt, and whether it may stop at a checkpoint.
        self._running: dict[Future[list[SegmentResult]], tuple[str, str, bool]] = {}
        self.demand = 0
        """Number of GCDs that the user could use now, busy ones included."""

    @property
    def nodes(self) -> Set[str]:
        """Names of the nodes on which jobs of this user run."""
        return {node for node, *_ in [*self._running.values()]}

    def update(self, demand: int) -> None:
        """Request or give back batch jobs for all users together, as :meth:`.Pool.update` does.

        ``demand`` is the number of GCDs that this user could use now, busy ones included.

        Raises
        ------
        CampaignStopped
            If the pool has been closed, or there is no hope for workers.
        InputError
            If the scheduler refuses the first block, or nodes refuse their work.
        """
        with self._shared.use() as pool:
            self.demand = demand
            try:
                pool.update(self._shared.demand)
            except (InputError, CampaignStopped) as error:
                self._shared.why = error
                raise
            pool.describe(self._file)

    def end(self) -> None:
        """Stop the jobs of this user that still run, segments (jobs of training) at a checkpoint.

        Their nodes belong to others when they have ended.
        """
        self.demand = 0
        with suppress(InputError, CampaignStopped), self._shared.use() as pool:
            for node, attempt, has_checkpoint in [*self._running.values()]:
                if has_checkpoint:
                    pool.release(node, attempt)
                else:
                    pool.call_off(node, attempt, "its campaign has ended")
        self._file.write({"workers": 0, "tasks": 0, "blocks": []}, {}, {}, at_once=True)

    def hosts(self) -> Sequence[Host]:
        """Return the nodes that take this user's jobs now; no jobs of others run on these."""
        with self._shared.use() as pool:
            return self._shared.divide(pool.hosts(), self)

    def waiting(self) -> str:
        """Return the reason why jobs wait for workers, as a sentence; empty if no job waits."""
        with self._shared.use() as pool:
            if reason := pool.waiting():
                return reason
            if self.demand and not self._running and self._shared.has_others(self):
                return "waiting for nodes that others of this script use"
            return ""

    def bring(self, store: Path) -> None:
        """Copy a store of graphs to each node's own disk from now on, as :meth:`.Pool.bring`."""
        with self._shared.use() as pool:
            pool.bring(store)

    def run(self, ranks: Sequence[Rank], node: str) -> Future[list[SegmentResult]]:
        """Start some ranks (processes) of a job on a node, as :meth:`.Pool.run` does."""
        with self._shared.use() as pool:
            answer = pool.run(ranks, node)
            self._file.begin(answer, ranks, node, pool.gcds)
            spec = ranks[0].spec
            self._running[answer] = node, spec.attempt, isinstance(spec, SegmentSpec)
        answer.add_done_callback(self._running.pop)
        return answer

    def call_off(self, node: str, attempt: str, reason: str) -> None:
        """End the ranks (processes) of a job on a node at once, without a checkpoint."""
        with self._shared.use() as pool:
            pool.call_off(node, attempt, reason)

    def release(self, node: str, attempt: str) -> None:
        """Stop a segment (job of training) at a checkpoint, so that it can continue elsewhere."""
        with self._shared.use() as pool:
            pool.release(node, attempt)

    def last_epochs(self) -> Mapping[str, LastEpoch]:
        """Return the last epochs of running segments, those of other users included."""
        with self._shared.use() as pool:
            return pool.last_epochs()

    def record(self, node: str, work: Hashable, worked: bool) -> None:
        """Record whether a job, named by ``work``, succeeded on a node."""
        with self._shared.use() as pool:
            pool.record(node, work, worked)

    def avoid(self, node: str, reason: str) -> None:
        """Send no further jobs to a node that refused a job; ``reason`` is for the user."""
        with self._shared.use() as pool:
            pool.avoid(node, reason)


class SharedPool:
    """Pool of a site whose nodes are divided among several users, each in a thread of its own.

    Parameters
    ----------
    pool
        Pool, started by its owner.
    gcds
        Number of GCDs on a node.
    """

    def __init__(self, pool: Pool, gcds: int) -> None:
        self._pool, self._gcds = pool, gcds
        self._lock = threading.RLock()
        self._shares: list[Share] = []
        self._left: list[Share] = []
        self._users: dict[str, Share] = {}
        self.why: InputError | CampaignStopped | None = None
        """Error that ends all use of the pool; None if there is none."""

    @contextmanager
    def share(self, directory: Path) -> Iterator[Share]:
        """Context manager: a further user of the pool.

        ``directory`` lies in the directory that gets the user's `workers.json`.
        """
        share = Share(self, directory)
        with self._lock:
            self._shares.append(share)
        try:
            yield share
        finally:
            with self._lock:
                self._shares.remove(share)
                self._left = [one for one in (*self._left, share) if one.nodes]
            share.end()

    def close(self) -> None:
        """Refuse all further use, so that the users' threads end."""
        with self._lock:
            self.why = CampaignStopped(
                "the script that holds the site's nodes gives them back; start it again to continue"
            )

    @contextmanager
    def use(self) -> Iterator[Pool]:
        """Context manager: the pool, for one thread at a time.

        Raises
        ------
        InputError, CampaignStopped
            If the pool has been closed, or no user can have workers any more.
        """
        with self._lock:
            if self.why is not None:
                raise type(self.why)(*self.why.args)  # each thread adds to a traceback of its own
            yield self._pool

    def has_others(self, share: Share) -> bool:
        """Return whether jobs of other users run."""
        return any(one.nodes for one in (*self._shares, *self._left) if one is not share)

    @property
    def demand(self) -> int:
        """Number of GCDs that all users together could use now, each on nodes of its own."""
        return sum(math.ceil(share.demand / self._gcds) for share in self._shares) * self._gcds

    def divide(self, hosts: Sequence[Host], share: Share) -> list[Host]:
        """Divide nodes among the users, and return those of one user that no other works on.

        The numbers are those of :func:`fair`. Nodes change hands when their jobs have ended.

        Parameters
        ----------
        hosts
            All nodes that take jobs.
        share
            User whose nodes are returned.
        """
        needs = [math.ceil(one.demand / self._gcds) for one in self._shares]
        if any(needs):
            self._assign([host.name for host in hosts], fair(needs, len(hosts)))
        others = (one.nodes for one in (*self._shares, *self._left) if one is not share)
        busy = set[str]().union(*others)
        return [
            host for host in hosts if self._users.get(host.name) is share and host.name not in busy
        ]

    def _assign(self, nodes: Sequence[str], most: Sequence[int]) -> None:
        """Give each user its number of nodes, ``most``; as few as possible change hands."""
        at_work = {share: share.nodes for share in (*self._shares, *self._left)}
        busy = set[str]().union(*at_work.values())
        kept, lacking = set[str](), list[Share]()
        for share, number in zip(self._shares, most, strict=True):
            mine = [node for node in nodes if node in at_work[share]]
            mine += [n for n in nodes if self._users.get(n) is share and n not in busy]
            kept |= {*mine[:number]}
            lacking += [share] * (number - len(mine[:number]))
            self._users |= dict.fromkeys(mine[:number], share)
        free = [node for node in nodes if node not in kept]
        free.sort(key=lambda node: node in busy)
        self._users |= dict(zip(free, lacking, strict=False))


def fair(needs: Sequence[int], nodes: int) -> list[int]:
    """Divide a number of nodes, and return each user's number; they add up to ``nodes``.

    The first user, whose jobs need one GCD each, gets half of the nodes where others need some too.
    The others come in their order, so that a job on many nodes finds them together. Nodes that
    nobody needs go to the last user that needs any.

    Parameters
    ----------
    needs
        Number of nodes that each user needs; not all zero.
    nodes
        Number of nodes there are.
    """
    first = math.ceil(nodes / 2) if any(needs[1:]) else nodes
    given, left = list[int](), nodes
    for need in needs:
        given.append(min(need, left if given else first))
        left -= given[-1]
    given[max(user for user, need in enumerate(needs) if need)] += left
    return given
