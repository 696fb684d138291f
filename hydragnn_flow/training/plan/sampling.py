"""Sampling: how often graphs of each branch are drawn, and which ones validate epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from hydragnn_flow.data import GraphSplit, Manifest
from hydragnn_flow.data.branch_runs import shares_of_branches
from hydragnn_flow.data.reading.split_part import Split, SplitPart
from hydragnn_flow.data.splits import TRAIN
from hydragnn_flow.data.store.manifest import SplitSize
from hydragnn_flow.errors import InputError
from hydragnn_flow.segment import Sampling
from hydragnn_flow.training.plan.orders import permutation

KEY = "data.sampling"


def drawn_size(manifest: Manifest, sampling: Sampling) -> SplitSize:
    """Return the expected size of one epoch of draws: as many graphs as the training split has.

    The number of edges follows from the mean number per atom over all data sets.

    Parameters
    ----------
    manifest
        Manifest of the store.
    sampling
        Value of the key `data.sampling`.
    """
    train, known = manifest.splits[TRAIN], manifest.statistics.by_branch
    if sampling == "proportional" or len(known) < 2:
        return train
    graphs = {branch: found.graphs for branch, found in known.items()}
    shares = shares_of(sampling, graphs, manifest.branch_names) or graphs
    drawn = sum(
        share * known[branch].atoms / known[branch].graphs for branch, share in shares.items()
    )
    atoms = train.graphs * drawn / sum(shares.values())
    return SplitSize(
        graphs=train.graphs,
        atoms=round(atoms),
        edges=round(atoms * train.edges / max(train.atoms, 1)),
    )


def shares_of(
    sampling: Sampling, graphs: Mapping[int, int], names: Sequence[str] = ()
) -> dict[int, int] | None:
    """Return the number of graphs of each branch in the shortest cycle of exact proportions.

    Parameters
    ----------
    sampling
        Value of the key `data.sampling`.
    graphs
        Branch -> number of its graphs to train on.
    names
        Names of the branches by number, if they have any.

    Returns
    -------
    dict
        Branch -> number of draws, at least 1; None for proportional sampling, in which every graph
        is drawn equally often.

    Raises
    ------
    InputError
        If the weights do not match the branches, or their cycle would be too long.
    """
    if sampling == "proportional":
        return None
    if len(graphs) < 2:
        raise InputError(
            f"{KEY} chooses among the branches that structures to train on belong to, but they all "
            f"belong to one; remove it"
        )
    if isinstance(sampling, str):
        return dict.fromkeys(graphs, 1)
    by_name = {names[n] if n < len(names) else str(n): n for n in graphs}
    for name in sampling:
        if name not in by_name:
            raise InputError(
                f"{KEY}.{name}: no structure to train on belongs to a branch of this name; the "
                f"branches are {', '.join(by_name)}"
            )
    for name in by_name:
        if name not in sampling:
            raise InputError(f"{KEY}: branch {name} has no weight; give it one")
    # Weights are meant as the decimals that were written: 0.1 is a tenth.
    weights = {n: Fraction(str(sampling[name])) for name, n in by_name.items()}
    whole = math.lcm(*(weight.denominator for weight in weights.values()))
    draws = {n: int(weight * whole) for n, weight in weights.items()}
    common = math.gcd(*draws.values())
    shares = {n: number // common for n, number in draws.items()}
    # Longest cycle with exact proportions. One cycle is shuffled at once, which is cheap up to
    # here.
    if sum(shares.values()) > 2**18:
        raise InputError(
            f"{KEY}: the weights have proportions that come true only every {sum(shares.values())} "
            f"structures; write rounder ones"
        )
    return shares


def judged_by(split: GraphSplit, drawn: tuple[int, int] | None) -> Split:
    """Return the validation subset: all graphs, or for a large split some, fixed for a whole run.

    Each data set counts equally, so equally many graphs are drawn from each, as far as it has them.

    Parameters
    ----------
    split
        Validation split of the store.
    drawn
        Number of graphs and the seed that draws them; None for all graphs.
    """
    if drawn is None or drawn[0] >= len(split):
        return split
    number, seed = drawn
    purpose = 6  # of these random numbers of the seed
    runs = split.branch_runs
    if len(runs.graphs) == 1:
        graphs = permutation(len(split), seed, purpose)(np.arange(number))
    else:
        graphs = np.concatenate(
            [
                runs.of_branch(branch).graphs(
                    permutation(runs.graphs[branch], seed, purpose, branch)(np.arange(share))
                )
                for branch, share in shares_of_branches(runs, number).items()
            ]
        )
    return SplitPart(split, np.sort(graphs))
