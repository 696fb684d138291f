"""Branches: separate heads for the graphs of different data sets in one network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hydragnn_flow.errors import InputError
from hydragnn_flow.models.geometry import GraphBatch
from hydragnn_flow.models.kernels.multilinear import on_host

BRANCH_KEY = "dataset_name"
"""HydraGNN's key with the index of a graph's branch (heads of one data set)."""


def branch_of_graph(batch: GraphBatch, n_branches: int) -> Tensor | None:
    """Return the index of each graph's branch (output heads of its data set), int64 [n_graphs].

    The result is None if the network has only one branch.

    Parameters
    ----------
    batch
        Batch with a key ``dataset_name``, [n_graphs, 1] or [n_graphs], if there are several
        branches.
    n_branches
        Number of branches of the network.

    Raises
    ------
    InputError
        If the graphs lack the key, or an index is out of range. On an accelerator the range is not
        checked, because the host would have to wait; selecting with a wrong index fails there
        anyway.
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
    if on_host(branch.device):
        _check_range(branch, n_branches)
    return branch


def sum_by(values: Tensor, number: Tensor | None, count: int) -> Tensor:
    """Sum all components of rows by branch or data set, ``[count]`` float64.

    Parameters
    ----------
    values
        Values of the rows, [n_rows, dim].
    number
        Index of each row's branch or data set, [n_rows]; None if there is only one.
    count
        Number of branches or data sets.
    """
    if number is None:
        return values.sum().double()[None]
    sums = torch.zeros(count, dtype=torch.float64, device=values.device)
    return sums.index_add_(0, number, values.sum(dim=1).double())


def chosen(outputs: Sequence[Tensor], branch: Tensor | None) -> Tensor:
    """Return for each graph or atom the output of its own branch (heads of one data set), [n, d].

    All branches compute all rows: heads are small, and the host would have to wait for the number
    of rows of each branch. So a branch without graphs in a batch gets gradients of zero, which
    data-parallel training waits for.

    Parameters
    ----------
    outputs
        Output of each branch for all graphs or atoms, [n, d].
    branch
        Index of each graph's or atom's branch, int64 [n]; None if there is only one branch.
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
