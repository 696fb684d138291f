"""Training from given weights: their file, frozen parameters, and reference energies.

The file has `weights`, tensors by their names in the state dict, and `is_whole`, which is true if
the file has all tensors of the state dict. Parameters that the file lacks keep their random initial
values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from hydragnn_flow.data import GraphSplit
from hydragnn_flow.data.columns import spread
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.branches import branch_of_graph
from hydragnn_flow.models.embedding import N_ELEMENTS
from hydragnn_flow.models.layers import unpack_exact
from hydragnn_flow.models.model import Model
from hydragnn_flow.models.potential import Potential
from hydragnn_flow.training.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.loading import on_device
from hydragnn_flow.training.plan.batching import Budget


def freeze(model: nn.Module, names: Collection[str]) -> None:
    """Exclude parameters of a network from training, in place.

    Parameters
    ----------
    model
        Network whose parameters are frozen.
    names
        Names of parameters, or of modules that hold them.

    Raises
    ------
    InputError
        If a name matches nothing, or no parameter is left to train.
    """
    for name in names:
        found = [p for key, p in model.named_parameters() if f"{key}.".startswith(f"{name}.")]
        if not found:
            raise InputError(
                f"start_from.freeze: the network has no parameters named {name!r}; name some of "
                f"{_beside(model, name)}"
            )
        for parameter in found:
            parameter.requires_grad_(False)
    if names and not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError("start_from.freeze: leaves no parameter to train; name fewer")


def _beside(model: nn.Module, name: str) -> str:
    """Return, for a message, existing names of parameters or modules next to a wrong ``name``."""
    found: list[str] = []
    while not found:
        name = name.rpartition(".")[0]
        inside = f"{name}." if name else ""
        found = [key for key, _ in model.named_parameters() if key.startswith(inside)]
    parts = inside.count(".") + 1
    return ", ".join(dict.fromkeys(".".join(key.split(".")[:parts]) for key in found))


def keep_weights(path: Path, weights: Mapping[str, Tensor], is_whole: bool) -> None:
    """Write initial weights, with which trials begin, to the file ``path``.

    ``is_whole`` is true if ``weights`` has all tensors of the network's state dict.
    """
    save_checkpoint(path, {"weights": dict(weights), "is_whole": is_whole})


def begin_with(
    path: Path,
    model: Model,
    split: GraphSplit,
    budget: Budget,
    device: torch.device,
    world: World,
) -> None:
    """Load the initial weights in a file into a network, in place (collective).

    If a potential keeps its heads, the reference energies of the elements are fitted to the new
    data, because data sets count energies from different zeros.

    Parameters
    ----------
    path
        File of the weights.
    model
        The network, on the device that computes, or on the host if ranks will shard it.
    split
        Training split of the store.
    budget
        Limits of a batch that is only predicted.
    device
        Device on which the ranks exchange tensors.
    world
        Rank of this process and number of ranks.

    Raises
    ------
    InputError
        If the file cannot be read, or does not match the network.
    """
    state = load_checkpoint(path, remedy="restore it from a copy of the run directory")
    check_weights(model, state["weights"], path, "keep" if state["is_whole"] else "new")
    model.load_state_dict(state["weights"], strict=False)
    if state["is_whole"] and isinstance(model, Potential):
        _fit_references(model, split, budget, device, world)


def check_weights(
    model: Model, weights: Mapping[str, Tensor], source: object, heads: str = "keep"
) -> None:
    """Raise an error unless weights have the names and shapes of a network's tensors.

    Parameters
    ----------
    model
        Network on any device.
    weights
        Tensors that the network is to begin with, by name.
    source
        Origin of the weights, for error messages.
    heads
        ``keep`` if the weights must be the network's whole state, ``new`` if they must be the state
        of its encoder.

    Raises
    ------
    InputError
        If a parameter is missing on either side or differs in shape; the message names the first.
    """
    mine = weights_of(model, model.state_dict(), heads)
    for name in [*weights, *mine]:
        if name not in weights or name not in mine:
            has, lacks = ("the network", source) if name in mine else (source, "the network")
            raise InputError(
                f"start_from: {source} is of another network: {has} has {name}, {lacks} has not"
            )
    for name, value in mine.items():
        if value.shape != weights[name].shape:
            raise InputError(
                f"start_from: {source} is of another network: its {name} has the shape "
                f"{list(weights[name].shape)}, that of the network {list(value.shape)}"
            )


@torch.no_grad()
def _fit_references(
    model: Potential, split: GraphSplit, budget: Budget, device: torch.device, world: World
) -> None:
    """Shift the reference energies of elements, in place, to fit the network's residual energies.

    The shift is a least-squares fit of energies per atom over structures of the training split, and
    has the minimum norm if compositions do not determine it. Elements that the data lack keep their
    energies. A collective call.
    """
    packed = model.element_energies
    energies, here = unpack_exact(packed), packed.device
    branches = energies.reshape(-1, N_ELEMENTS).clone()
    # Summed over ranks, so that all ranks get bitwise equal results.
    squares = torch.zeros(len(branches), N_ELEMENTS, N_ELEMENTS, dtype=torch.float64, device=here)
    products = torch.zeros(len(branches), N_ELEMENTS, dtype=torch.float64, device=here)
    was_training = model.training
    model.eval()
    for batch in _some_of(split, budget, here, world):
        atoms = torch.bincount(batch.batch, minlength=batch.num_graphs)[:, None].double()
        numbers = batch.x[:, model.number_column].long()
        counts = torch.zeros(batch.num_graphs, N_ELEMENTS, dtype=torch.float64, device=here)
        counts.index_put_((batch.batch, numbers), torch.ones_like(numbers).double(), True)
        rest = batch.energy.reshape(-1, 1).double() - model(batch)["energy"]
        rows, rest = counts / atoms, rest / atoms
        branch, known = branch_of_graph(batch, len(branches)), rest[:, 0].isfinite()
        for k in range(len(branches)):
            mine = known if branch is None else known & (branch == k)
            squares[k] += rows[mine].T @ rows[mine]
            products[k] += (rows[mine].T @ rest[mine])[:, 0]
    model.train(was_training)
    squares, products = (world.sum(one.to(device)).cpu() for one in (squares, products))
    # Relative cutoff of singular values in the fit, below which compositions count as dependent.
    inverse = torch.linalg.pinv(squares, rtol=1e-10, hermitian=True)
    shift = torch.einsum("kij,kj->ki", inverse, products)
    fitted = (branches.cpu() + shift).reshape(energies.shape)
    model.element_energies.copy_(fitted.view(torch.int64))


def _some_of(
    split: GraphSplit, budget: Budget, device: torch.device, world: World
) -> Iterable[Batch]:
    """Return batches on the device: this rank's share of structures spread over a split.

    Each data set has the same number of structures, as far as it has them.
    """
    runs = split.branch_runs
    # Structures by which reference energies are fitted: many times the number of elements.
    chosen = np.concatenate(list(spread(runs, 2000 * len(runs.graphs))))
    mine = np.sort(chosen)[world.rank :: world.size]
    size = budget.limits.get("graphs", 1)
    return on_device(split.batches(mine[k : k + size] for k in range(0, len(mine), size)), device)


def weights_of(model: Model, state: Mapping[str, Tensor], heads: str) -> dict[str, Tensor]:
    """Return the tensors of a state dict that a network takes over from trained weights, by name.

    If ``heads`` is ``keep`` these are all tensors; if it is ``new`` they are those of the encoder.
    """
    return {k: v for k, v in state.items() if heads == "keep" or model.is_of_encoder(k)}
