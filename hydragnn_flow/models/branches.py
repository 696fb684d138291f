"""Branches: separate heads for the graphs of different data sets in one network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hydragnn_flow.errors import InputError
from hydragnn_flow.models.geometry import GraphBatch

BRANCH_KEY = "dataset_name"
"""HydraGNN's name of the key that holds the number of a graph's branch."""


def branch_of_graph(batch: GraphBatch, n_branches: int) -> Tensor | None:
    """Branch of each graph, int64 [n_graphs]; None if there is but one.

    Parameters
    ----------
    batch
        Its key ``dataset_name``, [n_graphs, 1] or [n_graphs], is read if there are several.
    n_branches
        Number of branches.

    Raises
    ------
    InputError
        If the graphs have no such key, or one names a branch there is not. Numbers on an
        accelerator are not read, as that would make the host wait; selecting with a wrong one
        fails there by itself.
    """
    if n_branches == 1:
        return None
    number: Tensor | None = getattr(batch, BRANCH_KEY, None)
    if number is None:
        raise InputError(
            f"the network has {n_branches} branches, but the graphs have no key {BRANCH_KEY!r} "
            f"that says to which each belongs; predict from a store whose graphs have it"
        )
    branch = number.reshape(-1).long()
    if branch.device.type == "cpu":
        _check_range(branch, n_branches)
    return branch


def chosen(outputs: Sequence[Tensor], branch: Tensor | None) -> Tensor:
    """Select for every row the output of its branch.

    All branches compute all rows. To give each only its own, the host would have to wait for their
    number; heads are small, and a branch that no graph of a batch belongs to gets gradients of
    zero without further ado, which data-parallel training waits for.

    Parameters
    ----------
    outputs
        Of each branch, [n, d].
    branch
        Of each row, int64 [n]; None if there is but one.
    """
    if branch is None:
        return outputs[0]
    stacked = torch.stack(tuple(outputs))
    return stacked.gather(0, branch[None, :, None].expand(1, *outputs[0].shape))[0]


def _check_range(branch: Tensor, n_branches: int) -> None:
    wrong = branch[(branch < 0) | (branch >= n_branches)]
    if len(wrong):
        raise InputError(
            f"a graph's {BRANCH_KEY} is {wrong[0]}, but the network's branches are 0 to "
            f"{n_branches - 1}; correct it, or give Architecture.output_heads a branch for it"
        )
