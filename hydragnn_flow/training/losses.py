"""The training loss, exact for any number of ranks.

Every term is a sum over this rank's elements divided by the number of elements in the *global*
batch. Ranks know that number from the store's index, so the ranks' losses add up to the loss of
one process on the whole batch whatever share each rank was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Batch

from hydragnn_flow.config import NetworkConfig
from hydragnn_flow.data import Manifest

# Element-wise losses of a residual that is already in units of its target's spread.
LOSS_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mse": torch.square,
    "mae": torch.abs,
    "smooth_l1": lambda r: torch.where(r.abs() < 1, 0.5 * r.square(), r.abs() - 0.5),
}


@dataclass(frozen=True)
class Counts:
    """How many graphs and atoms a global batch holds."""

    graphs: int
    atoms: int


@dataclass(frozen=True)
class Term:
    """One target's part of the loss."""

    target: str
    level: str
    weight: float
    scale: tuple[float, ...]
    """Spread of each component; the residual is divided by it, so that weights compare."""
    per_atom: bool = False
    """Divide the residual of a graph by its number of atoms first."""


class Loss:
    """Weighted sum of terms, and the absolute errors people read.

    Parameters
    ----------
    network
        Loss function, and weights of the tasks or of the potential's energy and forces.
    manifest
        Of the store trained on; its statistics of the training split scale the residuals.
    """

    def __init__(self, network: NetworkConfig, manifest: Manifest) -> None:
        self.function = LOSS_FUNCTIONS[network.Training.loss_function_type]
        terms = _potential_terms if network.Architecture.enable_interatomic_potential else _tasks
        self.terms = terms(network, manifest)
        self.targets = {term.target: term.level for term in self.terms}

    def __call__(self, outputs: Mapping[str, Tensor], batch: Batch, counts: Counts) -> Tensor:
        """This rank's share of the loss of a global batch of ``counts``; a scalar."""
        parts = []
        for term in self.terms:
            residual = self._residual(term, outputs, batch)
            scale = torch.tensor(term.scale, dtype=residual.dtype, device=residual.device)
            elements = getattr(counts, _ELEMENTS[term.level]) * len(term.scale)
            part = self.function(residual / scale).sum()
            parts.append(term.weight / elements * part.double())
        # DDP waits for a gradient of every parameter, those of unweighted outputs included.
        parts += [
            0.0 * outputs[name].sum().double() for name in outputs if name not in self.targets
        ]
        return torch.stack(parts).sum()

    def absolute_errors(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Sums of absolute errors, in the data's units; ``[n_metrics]`` float64.

        In the order of :meth:`metric_names`.
        """
        sums: list[Tensor] = []
        for target, level in self.targets.items():
            error = (outputs[target] - reference(batch, target, outputs[target])).detach().abs()
            sums.append(error.sum().double())
            if level == "graph":
                sums.append((error / atoms_per_graph(batch, error)).sum().double())
        return torch.stack(sums)

    def metric_names(self, manifest: Manifest) -> list[tuple[str, str, int]]:
        """Name, level and number of components of each metric."""
        names = []
        for target, level in self.targets.items():
            dim = manifest.targets[target].dim
            names.append((f"{target}_mae", level, dim))
            if level == "graph":
                names.append((f"{target}_mae_per_atom", level, dim))
        return names

    def _residual(self, term: Term, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        output = outputs[term.target]
        residual = output - reference(batch, term.target, output)
        return residual / atoms_per_graph(batch, residual) if term.per_atom else residual


_ELEMENTS = {"graph": "graphs", "node": "atoms"}


def reference(batch: Batch, target: str, like: Tensor) -> Tensor:
    """The labels of a target, in the shape, type and device of the prediction ``like``."""
    labels: Tensor = batch[target]
    shaped: Tensor = labels.to(like).view_as(like)
    return shaped


def atoms_per_graph(batch: Batch, like: Tensor) -> Tensor:
    """Number of atoms of each graph, ``[n_graphs, 1]``, in the type of ``like``."""
    sizes: Tensor = batch.ptr[1:] - batch.ptr[:-1]
    return sizes.to(like).unsqueeze(1)


def _normalised(weights: list[float]) -> list[float]:
    total = sum(abs(weight) for weight in weights)
    return [weight / total for weight in weights]


def _potential_terms(network: NetworkConfig, manifest: Manifest) -> list[Term]:
    architecture, statistics = network.Architecture, manifest.statistics
    per_atom = statistics.energy_per_atom_std or 1.0
    sizes = manifest.splits["trainset"]
    weights = (
        architecture.energy_weight,
        architecture.energy_peratom_weight,
        architecture.force_weight,
    )
    candidates = (
        Term("energy", "graph", 0.0, (per_atom * sizes.atoms / sizes.graphs,)),
        Term("energy", "graph", 0.0, (per_atom,), per_atom=True),
        Term("forces", "node", 0.0, (statistics.forces_rms or 1.0,) * 3),
    )
    return [
        Term(term.target, term.level, weight, term.scale, term.per_atom)
        for term, weight in zip(candidates, _normalised(list(weights)), strict=True)
        if weight > 0
    ]


def _tasks(network: NetworkConfig, manifest: Manifest) -> list[Term]:
    names = network.Variables_of_interest.output_names
    weights = _normalised(list(network.Architecture.task_weights or [1.0] * len(names)))
    return [
        Term(name, level, weight, tuple(manifest.statistics.targets[name].std))
        for name, level, weight in zip(
            names, network.Variables_of_interest.type, weights, strict=True
        )
    ]
