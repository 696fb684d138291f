"""Graphs of the validation split by which epochs are judged."""

from __future__ import annotations

import numpy as np

from hydragnn_flow.data import GraphSplit
from hydragnn_flow.data.reading.split_part import Split, SplitPart
from hydragnn_flow.training.permutation import permutation

# What the numbers of the seed are for.
_VALIDATION = 6


def judged_by(split: GraphSplit, drawn: tuple[int, int] | None) -> Split:
    """The graphs that epochs are judged by: of a large split some, the same for a whole run.

    Parameters
    ----------
    split
        The validation split.
    drawn
        Number of graphs, and the seed that draws them; all if not given.
    """
    if drawn is None or drawn[0] >= len(split):
        return split
    number, seed = drawn
    graphs = permutation(len(split), seed, _VALIDATION)(np.arange(number))
    return SplitPart(split, np.sort(graphs))
