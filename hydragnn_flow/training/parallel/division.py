"""Division of branches (heads of one data set), with their graphs, among ranks."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hydragnn_flow.config import NetworkConfig
from hydragnn_flow.data import GraphSplit, Manifest
from hydragnn_flow.data.reading.split import Split
from hydragnn_flow.errors import InputError
from hydragnn_flow.segment import Sampling
from hydragnn_flow.training.measures.losses import atoms_per_structure
from hydragnn_flow.training.plan.batching import Dealing, Ints, deal, ranges
from hydragnn_flow.training.plan.sampling import shares_of

_Dealing = Callable[[Ints, int], Ints]


@dataclass(frozen=True)
class Division:
    """Division of branches (heads of one data set each) among groups of ranks.

    Attributes
    ----------
    ranks
        Ranks of each group, consecutive numbers.
    branches
        Branches of each group, in the order of groups.
    """

    ranks: tuple[tuple[int, ...], ...]
    branches: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, loads: Sequence[float], world: int) -> Division:
        """Divide branches (heads of one data set each) among ranks as evenly as possible.

        With at most as many ranks as branches, each branch, largest first, goes to the least loaded
        rank (Graham, SIAM J. Appl. Math. 17, 416 (1969)). With more ranks each branch has a group,
        and further ranks join the group with the highest load per rank (Adams's apportionment).

        Parameters
        ----------
        loads
            Work of each branch in an epoch, in any unit.
        world
            Number of ranks to divide the branches among.
        """
        if world <= len(loads):
            heap: list[tuple[float, int, int]] = [(0.0, 0, rank) for rank in range(world)]
            owned: list[list[int]] = [[] for _ in range(world)]
            for branch in sorted(range(len(loads)), key=lambda one: -loads[one]):
                load, number, rank = heap[0]
                owned[rank].append(branch)
                heapq.heapreplace(heap, (load + loads[branch], number + 1, rank))
            return cls(
                tuple((rank,) for rank in range(world)), tuple(tuple(sorted(o)) for o in owned)
            )
        sizes = [1] * len(loads)
        for _ in range(world - len(loads)):
            busiest = max(range(len(loads)), key=lambda one: loads[one] / sizes[one])
            sizes[busiest] += 1
        ends = np.cumsum(sizes).tolist()
        ranks = (tuple(range(end - size, end)) for end, size in zip(ends, sizes, strict=True))
        return cls(tuple(ranks), tuple((branch,) for branch in range(len(loads))))

    def group_of(self, rank: int) -> int:
        """Return the index of the group of ranks that a rank belongs to."""
        return next(group for group, ranks in enumerate(self.ranks) if rank in ranks)

    def step_of(self, split: GraphSplit) -> Dealing:
        """Return a function that assigns the graphs of a step to ranks that hold their branches."""

        def dealing(graphs: Ints, costs: Ints) -> Ints:
            return self._dealt(split.branch_runs.branch_of(graphs), costs, deal)

        return dealing

    def in_order(self, split: Split) -> Dealing:
        """Return a function that assigns a split's graphs to ranks that hold their branches.

        Each rank gets a contiguous range of the graphs of its branches, of nearly equal work.
        """

        def dealing(graphs: Ints, costs: Ints) -> Ints:
            branch = split.branch
            assert branch is not None  # checked when a network with several branches was built
            return self._dealt(branch[graphs], costs, ranges)

        return dealing

    def _dealt(self, branch: Ints, costs: Ints, dealing: _Dealing) -> Ints:
        found = np.zeros(len(branch), dtype=np.int64)
        for ranks, branches in zip(self.ranks, self.branches, strict=True):
            mine = np.flatnonzero(np.isin(branch, branches))
            found[mine] = ranks[0] + dealing(costs[mine], len(ranks))
        return found


def division_of(
    network: NetworkConfig, manifest: Manifest, train: GraphSplit, sampling: Sampling, world: int
) -> Division | None:
    """Return the division of branches (heads) among ranks that `Training.task_parallel` asks for.

    The load of a branch is its number of atoms in an epoch. The result is None without
    `task_parallel`, or for a single rank.

    Parameters
    ----------
    network
        Configuration of the network that is trained.
    manifest, train
        Manifest of the store, and its training split.
    sampling
        Value of the key `data.sampling`.
    world
        Number of ranks of the segment.

    Raises
    ------
    InputError
        If there is only one branch, or the split is streamed.
    """
    if not network.Training.task_parallel or world == 1:
        return None
    if network.branches < 2:
        raise InputError(
            "network: Training.task_parallel divides the branches of several data sets among GCDs, "
            "and Architecture.output_heads has one; remove it"
        )
    if train.mode == "stream":
        raise InputError(
            "network: Training.task_parallel lets each GCD compute the graphs of its data sets, "
            "and with data.mode = stream each reads blocks of all; write data.mode: random, or "
            "remove it"
        )
    graphs = train.branch_runs.graphs
    drawn = shares_of(sampling, graphs, manifest.branch_names) or graphs
    sizes = atoms_per_structure(network, manifest) or [1.0] * network.branches
    return Division.of([drawn.get(n, 0) * size for n, size in enumerate(sizes)], world)
