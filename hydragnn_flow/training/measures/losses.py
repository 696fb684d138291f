"""Training loss, exact for any number of ranks.

Every term is a sum over this rank's elements divided by the number of elements in the *global*
batch. Ranks know that number from the store's index. So the sums of the ranks add up to the loss of
one process on the whole batch, however graphs are distributed. With branches, terms of atoms are
divided by the number of graphs and by the mean number of atoms per structure of the data set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss
from torch_geometric.data import Batch

from hydragnn_flow.config import NetworkConfig
from hydragnn_flow.config.network import Training
from hydragnn_flow.data import Manifest
from hydragnn_flow.models.outputs.branches import branch_of_graph
from hydragnn_flow.models.outputs.heads import NOISE_SUFFIX
from hydragnn_flow.models.stress import STRESS, VOIGT_PLACES
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.measures.terms import (
    Term,
    atoms_per_structure,
    branch_weights,
    terms_of,
)

__all__ = ["Counts", "Loss", "Term", "atoms_per_graph", "reference"]


@dataclass(frozen=True)
class Counts:
    """Number of graphs and atoms in a global batch."""

    graphs: int
    atoms: int


class Loss:
    """Weighted sum of the loss terms.

    Parameters
    ----------
    network
        Loss function, and weights of the tasks or of a potential's energy, forces and stress.
    manifest
        Manifest of the training store; its statistics of the training split scale the residuals.
    device
        Device of the predictions.
    """

    def __init__(
        self, network: NetworkConfig, manifest: Manifest, device: torch.device | str = "cpu"
    ) -> None:
        training = network.Training
        self.terms = terms_of(network, manifest)
        self.targets = {term.target: term.level for term in self.terms}
        self.is_root = training.loss_function_type == "rmse"
        self.is_likelihood = training.loss_function_type == "GaussianNLLLoss"
        self._function = _element_wise(training)
        self._beta = training.nll_beta
        # Created on the device: a copy within a step would make the host wait.
        self._weights = torch.tensor(
            [term.weight for term in self.terms], dtype=torch.float64, device=device
        )
        # Scale of each term, [n_branches, dim].
        self._scales = [
            torch.tensor(term.scale, dtype=torch.float64, device=device) for term in self.terms
        ]
        self._n_branches = network.branches
        weights, sizes = branch_weights(network, manifest), atoms_per_structure(network, manifest)
        of_graph = np.ones(network.branches) if weights is None else np.array(weights)
        # Otherwise a data set of larger structures would count more in terms of atoms.
        of_atom = of_graph if sizes is None else of_graph / np.array(sizes)
        self._row_weights = {
            level: torch.tensor(values, dtype=torch.float64, device=device)[:, None]
            for level, values in (("graph", of_graph), ("node", of_atom))
            if (values != 1.0).any()
        }
        self._elements: dict[str, Literal["graphs", "atoms"]] = {
            "graph": "graphs",
            "node": "atoms" if sizes is None else "graphs",
        }

    def term_means(
        self,
        outputs: Mapping[str, Tensor],
        batch: Batch,
        counts: Counts,
        *,
        judging: bool = False,
    ) -> Tensor:
        """Return this rank's share of each term's mean over a global batch, ``[n_terms]`` float64.

        Parameters
        ----------
        outputs, batch
            Predictions, and the batch with their labels.
        counts
            Number of graphs and atoms in the global batch.
        judging
            If true, omit weights that only shape the gradient (those of β-NLL), so that losses of
            different settings are comparable.
        """
        means = [
            values.sum().double() / (getattr(counts, elements) * values.shape[1])
            for values, elements in self.term_values(outputs, batch, judging=judging)
        ]
        # DDP waits for a gradient of every parameter, so other outputs are added with factor 0. Not
        # forces: they use the energy's parameters, and would cost a second derivative.
        others = [
            outputs[name].sum().double()
            for name in outputs
            if name not in self.targets and name not in ("forces", STRESS)
        ]
        together = torch.stack(means)
        return together + 0.0 * torch.stack(others).sum() if others else together

    def term_values(
        self, outputs: Mapping[str, Tensor], batch: Batch, *, judging: bool = False
    ) -> Iterator[tuple[Tensor, Literal["graphs", "atoms"]]]:
        """Yield the summands of each term's mean, and the kind of element to divide their sum by.

        The summands are ``[n_graphs, dim]`` or ``[n_atoms, dim]``. The divisor is the number of
        graphs or atoms in the global batch, for each component. See :meth:`term_means`.
        """
        branch = branch_of_graph(batch, self._n_branches)
        of_atom = None if branch is None else branch.index_select(0, batch.batch)
        for term, scale in zip(self.terms, self._scales, strict=True):
            residual = self._residual(term, outputs, batch)
            of_row = branch if term.level == "graph" else of_atom
            unit = (scale if of_row is None else scale.index_select(0, of_row)).to(residual.dtype)
            if self.is_likelihood:
                deviation = outputs[term.target + NOISE_SUFFIX].to(residual.dtype)
                if term.per_atom:
                    deviation = deviation / atoms_per_graph(batch, deviation)
                beta = 0.0 if judging else self._beta
                values = gaussian_nll(residual / unit, deviation / unit, beta)
            else:
                values = self._function(residual / unit)
            weights = self._row_weights.get(term.level)
            if weights is not None and of_row is not None:
                values = values * weights.index_select(0, of_row).to(values.dtype)
            yield values, self._elements[term.level]

    def total(self, means: Tensor) -> Tensor:
        """Compute the loss, a scalar, from the sum of :meth:`term_means` over all ranks."""
        return torch.dot(self._weights, means.sqrt() if self.is_root else means)

    def of_rank(self, means: Tensor, world: World) -> Tensor:
        """Compute this rank's contribution to the loss, a scalar, from its :meth:`term_means`.

        Means ``[n, n_terms]`` of several networks give the loss of each network, ``[n]``.

        The contributions of all ranks add up to the loss, and their gradients to its gradient. A
        root needs the sum over ranks first; then its gradient is a sum over ranks again:
        ``d sqrt(Σ m_r) = Σ dm_r / (2 sqrt(Σ m_r))``.
        """
        if not self.is_root:
            return means @ self._weights
        square = world.sum(means.detach().clone())
        # The slope of a root is infinite at zero.
        weights = self._weights / square.clamp_min(1e-24).sqrt()
        slope = 0.5 * (weights * means).sum(-1)
        return slope + slope.detach()

    def _residual(self, term: Term, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        residual = _difference(outputs[term.target], batch, term.target)
        return residual / atoms_per_graph(batch, residual) if term.per_atom else residual


def gaussian_nll(residual: Tensor, deviation: Tensor, beta: float = 0.0) -> Tensor:
    """Compute the negative Gaussian log-likelihood of each element, without its constant.

    Parameters
    ----------
    residual, deviation
        Error, and predicted standard deviation above zero, of the same shape and unit.
    beta
        Exponent of the variance by which each element is weighted, without gradient: β-NLL of
        Seitzer et al., arXiv:2203.09168, eq. 5. Without it elements that are hard to predict are
        given up early, because their gradient is divided by the variance.
    """
    variance = deviation.square()
    values = 0.5 * (variance.log() + residual.square() / variance)
    return values * variance.detach() ** beta if beta else values


def reference(batch: Batch, target: str, like: Tensor) -> Tensor:
    """Return the labels of a target in the shape, type and device of the prediction ``like``.

    A stress stored as a 3×3 tensor is returned in Voigt order.
    """
    labels: Tensor = batch[target].to(like)
    if target == STRESS and labels.numel() == 9 * len(like):
        tensor = labels.view(len(like), 9)
        # Indexing with a list would copy the list to the device in every step.
        return torch.stack([tensor[:, at] for at in VOIGT_PLACES], dim=1)
    return labels.view_as(like)


def atoms_per_graph(batch: Batch, like: Tensor) -> Tensor:
    """Return the number of atoms of each graph, ``[n_graphs, 1]``, in the type of ``like``."""
    sizes: Tensor = batch.ptr[1:] - batch.ptr[:-1]
    return sizes.to(like).unsqueeze(1)


def _difference(output: Tensor, batch: Batch, target: str) -> Tensor:
    return output - reference(batch, target, output)


def _element_wise(training: Training) -> Callable[[Tensor], Tensor]:
    """Return the element-wise loss, for residuals in units of their target's spread."""
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "mse": torch.square,
        "rmse": torch.square,
        "mae": torch.abs,
        "smooth_l1": lambda r: smooth_l1_loss(r, torch.zeros_like(r), reduction="none"),
        "GaussianNLLLoss": torch.square,
    }
    return functions[training.loss_function_type]
