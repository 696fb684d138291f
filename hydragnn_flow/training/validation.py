"""Validation subset used after each epoch."""

from __future__ import annotations

import numpy as np

from hydragnn_flow.data import GraphSplit
from hydragnn_flow.data.branch_runs import shares_of_branches
from hydragnn_flow.data.reading.split_part import Split, SplitPart
from hydragnn_flow.training.plan.orders import permutation

# Purpose of these random numbers of the seed.
_VALIDATION = 6


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
    runs = split.branch_runs
    if len(runs.graphs) == 1:
        graphs = permutation(len(split), seed, _VALIDATION)(np.arange(number))
    else:
        graphs = np.concatenate(
            [
                runs.of_branch(branch).graphs(
                    permutation(runs.graphs[branch], seed, _VALIDATION, branch)(np.arange(share))
                )
                for branch, share in shares_of_branches(runs, number).items()
            ]
        )
    return SplitPart(split, np.sort(graphs))
