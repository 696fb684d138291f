"""Training loss and its terms, exact for any number of ranks.

Every term is a sum over this rank's elements divided by the number of elements in the *global*
batch. Ranks know that number from the store's index. So the sums of the ranks add up to the loss of
one process on the whole batch, however graphs are distributed. With branches, terms of atoms are
divided by the number of graphs and by the mean number of atoms per structure of the data set.

A label that is missing (NaN) has the weight 0, and others that of their structure. Each term is
divided by the mean weight of the labels of the whole training split. So every label weighs the same
in an epoch, whatever batch it is in, and no rank has to know the others' labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss
from torch_geometric.data import Batch

from hydragnn_flow.config import NetworkConfig
from hydragnn_flow.config.network.training import Training
from hydragnn_flow.config.sources import TRAIN, WEIGHT
from hydragnn_flow.data import GraphStore, Manifest
from hydragnn_flow.data.store.manifest import LabelStatistics
from hydragnn_flow.errors import InputError, StoreError
from hydragnn_flow.models.branches import branch_of_graph, sum_by
from hydragnn_flow.models.geometry import STRESS, VOIGT, in_voigt
from hydragnn_flow.models.heads import NOISE_SUFFIX
from hydragnn_flow.training.distributed import World

STRESS_DIM = len(VOIGT)
"""Number of stress components that a potential predicts."""


@dataclass(frozen=True)
class Term:
    """Term of the training loss: the errors of one target, with their weight and their unit."""

    target: str
    level: str
    weight: float
    scale: tuple[tuple[float, ...], ...]
    """Unit of the residuals in the loss, ``[n_branches][dim]``: each component is divided by that
    of its branch (heads of one data set)."""
    per_atom: bool = False
    """True if the residual of a graph is first divided by its number of atoms."""
    share: tuple[float, ...] = (1.0,)
    """Mean weight of the labels, 0 for those that are missing, by which the loss of each branch is
    divided, ``[n_branches]``."""
    masked: bool = False
    """True if labels may be missing."""
    of_classes: bool = False
    """True if the loss is the cross-entropy of classes, in units of that of their shares."""


def terms_of(network: NetworkConfig, manifest: Manifest) -> list[Term]:
    """Return the terms of a network's training loss, whose weights add up to one.

    For a potential these are the terms with a weight above zero. Otherwise every task has a term. A
    term of weight zero is not trained on, but its errors are reported.

    Parameters
    ----------
    network
        Configuration with the weights of tasks, or of a potential's energy, forces and stress.
    manifest
        Manifest of the training store; its statistics of the training split scale the residuals.
    """
    potential = network.Architecture.enable_interatomic_potential
    branches = _of_branches(network, manifest)
    return [
        replace(
            term,
            share=tuple(found.targets[term.target].share or 1.0 for found in branches),
            masked=term.target in manifest.masked,
        )
        for term in (_potential_terms if potential else _tasks)(network, manifest)
    ]


def branch_weights(network: NetworkConfig, manifest: Manifest) -> list[float] | None:
    """Return the loss weight of the graphs of each branch (heads of one data set), with mean one.

    The result is None if `Training.branch_weights` is not given.

    Raises
    ------
    InputError
        If `Training.branch_weights` names no data set of the store.
    """
    given = network.Training.branch_weights
    if not given:
        return None
    names = manifest.branch_names or [str(n) for n in range(len(given))]
    n_branches = network.branches
    if n_branches < 2 or len(names) != n_branches:
        raise InputError(
            f"network: Training.branch_weights needs a network with a branch for each data set, "
            f"and Architecture.output_heads has {n_branches}; remove the weights"
        )
    if unknown := given.keys() - set(names):
        raise InputError(
            f"network: Training.branch_weights names {min(unknown)!r}, but the data sets are "
            f"{', '.join(names)}; correct the name"
        )
    weights = [given.get(name, 1.0) for name in names]
    mean = sum(weights) / n_branches
    return [weight / mean for weight in weights]


def atoms_per_structure(network: NetworkConfig, manifest: Manifest) -> list[float] | None:
    """Return the mean number of atoms per training structure, by branch, ``[n_branches]``.

    A branch is the heads of one data set. The result is None if there is only one branch or the
    store has no branches. A branch without training structures gets the mean over all structures.
    """
    known = manifest.statistics.by_branch
    if network.branches < 2 or not known:
        return None
    train = manifest.splits[TRAIN]
    sizes = {branch: found.atoms / found.graphs for branch, found in known.items()}
    of_all = train.atoms / train.graphs
    return [sizes.get(branch, of_all) for branch in range(network.branches)]


def check_cells(store: GraphStore) -> None:
    """Raise an error if a graph has a stress, but a cell without volume, so that it has none.

    Raises
    ------
    StoreError
        If the cell of such a training or validation graph has no volume.
    """
    for split in (store["trainset"], store["valset"]):
        volumes = np.linalg.det(split.column("cell").reshape(-1, 3, 3).astype(np.float64))
        without = volumes == 0
        if without.any():  # the labels are read only then
            without &= np.isfinite(split.target(STRESS)).all(axis=1)
        if without.any():
            raise StoreError(
                f"{store.path}: {split.name} has {np.count_nonzero(without)} graphs whose cell "
                f"has no volume, but which have a stress for the network's "
                f"Architecture.stress_weight; set it to 0, or leave these labels out"
            )


def _tasks(network: NetworkConfig, manifest: Manifest) -> list[Term]:
    asked = network.Variables_of_interest
    names = asked.output_names
    weights = _normalised(list(network.Architecture.task_weights or [1.0] * len(names)))
    branches = _of_branches(network, manifest)
    terms = []
    for name, level, weight in zip(names, asked.type, weights, strict=True):
        of_classes = bool(manifest.targets[name].classes)
        known = [found.targets[name] for found in branches]
        scale = tuple(_entropies(of.mean) if of_classes else tuple(of.std) for of in known)
        terms.append(Term(name, level, weight, scale, of_classes=of_classes))
    return terms


def _entropies(shares: Sequence[float]) -> tuple[float, ...]:
    """Return the part of each class in the entropy of classes' shares, the same for all."""
    entropy = -sum(share * math.log(share) for share in shares if share > 0)
    return ((entropy or 1.0) / len(shares),) * len(shares)


def _potential_terms(network: NetworkConfig, manifest: Manifest) -> list[Term]:
    architecture, branches = network.Architecture, _of_branches(network, manifest)
    # Energies [eV] and forces [eV/Å] share a scale, so that their weights mean what they mean in
    # HydraGNN, and the loss begins at about one. With a scale of their own, energies of a molecule
    # near its minimum, which hardly vary, would weigh ten thousand times as much as its forces.
    scales = [
        (found.forces_rms if architecture.force_weight > 0 else None)
        or found.energy_per_atom_std
        or 1.0
        for found in branches
    ]
    energy, forces = (tuple((scale,) * dim for scale in scales) for dim in (1, 3))
    candidates = [
        Term("energy", "graph", architecture.energy_weight, energy),
        Term("energy", "graph", architecture.energy_peratom_weight, energy, per_atom=True),
        Term("forces", "node", architecture.force_weight, forces),
    ]
    if architecture.stress_weight > 0:
        spreads = tuple((_stress_rms(found),) * STRESS_DIM for found in branches)
        candidates.append(Term(STRESS, "graph", architecture.stress_weight, spreads))
    weights = _normalised([term.weight for term in candidates])
    return [
        Term(term.target, term.level, weight, term.scale, term.per_atom)
        for term, weight in zip(candidates, weights, strict=True)
        if weight > 0
    ]


def _of_branches(network: NetworkConfig, manifest: Manifest) -> Sequence[LabelStatistics]:
    return manifest.statistics.of_branches(network.branches)


def _stress_rms(statistics: LabelStatistics) -> float:
    """Return the root mean square of the stress components over training structures."""
    moments = statistics.targets[STRESS]
    squares = [
        mean**2 + std**2
        for mean, std in zip(moments.mean, moments.std, strict=True)
        # The manifest stores a spread of one for a component that does not vary.
        if std != 1.0
    ]
    return math.sqrt(sum(squares) / len(squares)) if squares else 1.0


def _normalised(weights: list[float]) -> list[float]:
    total = sum(abs(weight) for weight in weights)
    return [weight / total for weight in weights]


@dataclass(frozen=True)
class Counts:
    """Number of graphs and number of atoms in a global batch, which all ranks compute together.

    They are numbers, or scalars on the device.
    """

    graphs: int | Tensor
    atoms: int | Tensor


class Loss:
    """Training loss of a network: the weighted sum of terms for the errors of its targets.

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
        by_level = {"graph": of_graph, "node": of_atom}
        # Weight of the rows of each term by branch, [n_branches, 1]; None for 1.
        self._row_weights = {
            judging: [
                torch.tensor(values, dtype=torch.float64, device=device)[:, None]
                if (values != 1.0).any()
                else None
                for term in self.terms
                for values in [by_level[term.level] / (1.0 if judging else np.array(term.share))]
            ]
            for judging in (False, True)
        }
        self._elements: dict[str, Literal["graphs", "atoms"]] = {
            "graph": "graphs",
            "node": "atoms" if sizes is None else "graphs",
        }

    def term_means(self, outputs: Mapping[str, Tensor], batch: Batch, counts: Counts) -> Tensor:
        """Return this rank's share of each loss term's global mean, ``[n_terms]`` float64.

        The mean is over the batch of all ranks together.

        Parameters
        ----------
        outputs, batch
            Predictions, and the batch with their labels.
        counts
            Number of graphs and atoms in the global batch.
        """
        means = [
            values.sum().double() / (getattr(counts, elements) * values.shape[1])
            for values, elements, *_ in self.term_values(outputs, batch)
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
    ) -> Iterator[tuple[Tensor, Literal["graphs", "atoms"], Tensor, Tensor | None]]:
        """Yield for each loss term the loss of its elements, and the count that divides their sum.

        The losses are ``[n_graphs, dim]`` or ``[n_atoms, dim]``. The count is ``graphs`` or
        ``atoms``: the sum is divided by that number of the global batch, times ``dim``. After these
        come the labels, and the branch of each row, None if there is one branch.

        Parameters
        ----------
        outputs, batch
            Predictions, and the batch with their labels.
        judging
            If true, omit weights that only shape the gradient (those of β-NLL, of structures, and
            of missing labels), so that losses of different settings are comparable.
        """
        branch = branch_of_graph(batch, self._n_branches)
        of_atom = None if branch is None else branch.index_select(0, batch.batch)
        of_graph = None if judging else batch.get(WEIGHT)
        is_filled = batch.get("is_filled", False)  # labels of padding are infinite
        each = zip(self.terms, self._scales, self._row_weights[judging], strict=True)
        for term, scale, weights in each:
            output = outputs[term.target]
            labels = given = reference(batch, term.target, output)
            known = given.isfinite() if term.masked or is_filled else None
            if known is not None:  # a product with 0 would leave NaN
                labels = torch.where(known, labels, 0.0)
            residual = output - labels
            if known is not None:
                residual = torch.where(known, residual, 0.0)
            if term.per_atom:
                residual = residual / atoms_per_graph(batch, residual)
            of_row = branch if term.level == "graph" else of_atom
            unit = (scale if of_row is None else scale.index_select(0, of_row)).to(residual.dtype)
            if term.of_classes:
                tiny = torch.finfo(output.dtype).tiny
                values = -labels * output.clamp_min(tiny).log() / unit
            elif self.is_likelihood:
                deviation = outputs[term.target + NOISE_SUFFIX].to(residual.dtype)
                if term.per_atom:
                    deviation = deviation / atoms_per_graph(batch, deviation)
                beta = 0.0 if judging else self._beta
                values = gaussian_nll(residual / unit, deviation / unit, beta)
            else:
                values = self._function(residual / unit)
            if weights is not None:
                of_rows = weights if of_row is None else weights.index_select(0, of_row)
                values = values * of_rows.to(values.dtype)
            if of_graph is not None:
                is_graph = term.level == "graph"
                of_rows = (of_graph if is_graph else of_graph[batch.batch]).reshape(-1, 1)
                values = values * of_rows.to(values.dtype)
            if known is not None:
                values = torch.where(known, values, 0.0)
            yield values, self._elements[term.level], given, of_row

    def total(self, means: Tensor) -> Tensor:
        """Return the training loss, a scalar, from the sum of :meth:`term_means` over all ranks."""
        return torch.dot(self._weights, means.sqrt() if self.is_root else means)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the result of :meth:`sums`, ``(3, n_terms, n_branches)``."""
        return 3, len(self.terms), self._n_branches

    def sums(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Sum the losses of an evaluation over each branch (heads of one data set) in a batch.

        Weights that only shape the gradient are omitted.

        Parameters
        ----------
        outputs, batch
            Predictions, and the batch with their labels.

        Returns
        -------
        Tensor
            Sums of losses, numbers of labels, and numbers of labels with those that are missing,
            ``[3, n_terms, n_branches]`` float64.
        """
        found = []
        for values, _, labels, of_row in self.term_values(outputs, batch, judging=True):
            each = (values, labels.isfinite(), ~labels.isinf())  # infinite ones are padding
            found.append(torch.stack([sum_by(one, of_row, self._n_branches) for one in each]))
        return torch.stack(found, dim=1)

    def judged(self, sums: Tensor, counts: Counts) -> float:
        """Return the loss of an evaluation, from the sum of :meth:`sums` over all batches.

        The loss of each branch is divided by the fraction of its labels that are not missing, as
        in training.

        Parameters
        ----------
        sums
            Sum of losses and numbers of labels, ``[3, n_terms, n_branches]``.
        counts
            Number of graphs and atoms that were evaluated.
        """
        losses, known, of_all = sums
        of_terms = (losses * of_all / known.clamp_min(1.0)).sum(dim=1)
        elements = [
            getattr(counts, self._elements[term.level]) * scale.shape[1]
            for term, scale in zip(self.terms, self._scales, strict=True)
        ]
        return float(self.total(of_terms / of_terms.new_tensor(elements)))

    def of_rank(self, means: Tensor, world: World) -> Tensor:
        """Return this rank's contribution to the loss, a scalar, from its :meth:`term_means`.

        The contributions of all ranks add up to the loss, and their gradients to its gradient. The
        loss `rmse` is a root, which needs the sum over ranks first. Its gradient is a sum over
        ranks again: ``d sqrt(Σ m_r) = Σ dm_r / (2 sqrt(Σ m_r))``.
        """
        if not self.is_root:
            return means @ self._weights
        square = world.sum(means.detach().clone())
        # The slope of a root is infinite at zero.
        weights = self._weights / square.clamp_min(1e-24).sqrt()
        slope = 0.5 * (weights * means).sum()
        return slope + slope.detach()


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
    """Return the labels of a target in a batch, with the shape, type and device of ``like``.

    ``like`` is the prediction of the target. A stress stored as a 3×3 tensor is returned in Voigt
    order.
    """
    labels: Tensor = batch[target].to(like)
    is_tensor = target == STRESS and labels.numel() == 9 * len(like)
    return in_voigt(labels) if is_tensor else labels.view_as(like)


def atoms_per_graph(batch: Batch, like: Tensor) -> Tensor:
    """Return the number of atoms of each graph, ``[n_graphs, 1]``, in the type of ``like``."""
    sizes: Tensor = batch.ptr[1:] - batch.ptr[:-1]
    return sizes.to(like).unsqueeze(1)


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
