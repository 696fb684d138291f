"""Criterion: the one dimensionless number by which epochs, trials and members are compared.

By default it is the mean over the trained targets of the mean absolute error, divided by that of a
trivial predictor. Squares would let a few atoms out of thousands decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config import NetworkConfig
from hydragnn_flow.config.run import CriterionName
from hydragnn_flow.config.sources import BRANCH, TRAIN
from hydragnn_flow.data import Manifest
from hydragnn_flow.data.columns import spread
from hydragnn_flow.data.store.manifest import ENERGY, LabelStatistics
from hydragnn_flow.data.store.statistics import target_array
from hydragnn_flow.models.geometry import STRESS, VOIGT_PLACES
from hydragnn_flow.training.measures.losses import terms_of
from hydragnn_flow.training.measures.metrics import metric_name, of_data_set

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Criterion:
    """Criterion by which models are compared: their error relative to a trivial predictor's.

    It covers all trained targets. With several data sets each counts equally: a target of each data
    set is a target of its own.

    ``mae`` is the mean over targets of their mean absolute errors in units of ``trivial_errors``.
    ``rmse`` is the root mean square over targets of their root mean square errors in those units. A
    value of about 1 means that nothing was learnt, 0 is perfect. Errors of extensive targets are
    per atom.
    """

    name: CriterionName
    trivial_errors: Mapping[str, float]
    """Error of the trivial predictor on the training split, by trained target. With several data
    sets the keys are target and data set, as ``energy@mptrj``."""
    per_atom: frozenset[str]
    """Targets whose error is divided by the number of atoms."""
    branches: Mapping[str, int] = field(default_factory=dict)
    """Index of each data set's branch (heads), by data set; empty if there is only one data set."""

    @classmethod
    def of(
        cls,
        network: NetworkConfig,
        manifest: Manifest,
        trivial_errors: Mapping[str, float],
        name: CriterionName = "mae",
    ) -> Criterion:
        """Return the criterion (relative validation error) for the trained targets of a network.

        Parameters
        ----------
        network
            Configuration of the network; all its targets with a weight in the loss count equally.
        manifest
            Manifest of the store: data sets, branches and extensive targets.
        trivial_errors
            Errors from :func:`~hydragnn_flow.training.measures.criterion.trivial_errors`.
        name
            The criterion's name, from `ensemble.criterion`.
        """
        trained_on = [term.target for term in terms_of(network, manifest) if term.weight]
        return cls(
            name,
            {
                key: error
                for target in dict.fromkeys(trained_on)
                for key, error in trivial_errors.items()
                if key.partition("@")[0] == target
            },
            frozenset(target for target in trained_on if manifest.is_extensive(target)),
            {data_set: branch for branch, data_set in manifest.data_sets.items()},
        )

    @property
    def targets(self) -> list[str]:
        """Names of the targets whose errors are combined in the criterion."""
        return list(dict.fromkeys(key.partition("@")[0] for key in self.trivial_errors))

    @property
    def power(self) -> int:
        """Exponent of the errors in the criterion: 1 for absolute errors, 2 for squared ones."""
        return 2 if self.name == "rmse" else 1

    def of_metrics(self, metrics: Mapping[str, float]) -> float:
        """Return the criterion, a number without unit, computed from measured validation errors.

        Parameters
        ----------
        metrics
            Errors by name, from :class:`~hydragnn_flow.training.measures.metrics.Metrics`.
        """
        ratios = []
        for key, trivial in self.trivial_errors.items():
            target, _, data_set = key.partition("@")
            name = metric_name(target, self.name, target in self.per_atom)
            name = of_data_set(name, data_set) if data_set else name
            if name in metrics:
                ratios.append(metrics[name] / trivial)
        return float(np.mean(np.power(ratios, self.power)) ** (1 / self.power))

    def residuals(
        self,
        predictions: Mapping[str, Floats],
        labels: Mapping[str, Floats],
        n_atoms: NDArray[Any],
        branch: NDArray[np.int64] | None = None,
    ) -> tuple[Floats, Floats, NDArray[np.int64]]:
        """Return the residuals of candidate models on all targets, their weights and structures.

        Parameters
        ----------
        predictions
            Target -> ``[k, n_graphs, d]`` or ``[k, n_atoms, d]`` of k candidates; targets outside
            the criterion are ignored.
        labels
            Target -> ``[n_graphs, d]`` or ``[n_atoms, d]``; NaN elements, such as the stress of a
            structure that is not periodic, are left out.
        n_atoms
            Number of atoms of each graph, ``[n_graphs]``.
        branch
            Branch of each graph, ``[n_graphs]``; needed only with several data sets.

        Returns
        -------
        residuals, shares, structure
            ``[k, N]`` and ``[N]`` float64, in the order of :attr:`trivial_errors`, and the index of
            each residual's graph, ``[N]``. The criterion of a weighted mean is
            ``(Σ shares |weights @ residuals|^p)^(1/p)``, with p = :attr:`power`.
        """
        parts: list[tuple[Floats, float]] = []
        structures = []
        for key, trivial in self.trivial_errors.items():
            target, _, data_set = key.partition("@")
            known, structure = np.isfinite(labels[target]), np.arange(len(n_atoms))
            if len(known) != len(n_atoms):
                structure = np.repeat(structure, n_atoms)
            if data_set:
                assert branch is not None
                known &= (branch == self.branches[data_set])[structure, None]
            if not known.any():
                continue
            residuals = np.asarray(predictions[target] - labels[target], np.float64)
            if target in self.per_atom:
                residuals = residuals / np.asarray(n_atoms, np.float64)[:, None]
            parts.append((residuals[:, known], trivial))
            structures.append(structure[np.nonzero(known)[0]])
        shares = [
            np.full(flat.shape[1], 1 / (len(parts) * flat.shape[1] * trivial**self.power))
            for flat, trivial in parts
        ]
        flat = np.concatenate([flat for flat, _ in parts], axis=1)
        return flat, np.concatenate(shares), np.concatenate(structures)


def criterion_for(
    asked: CriterionName, network: NetworkConfig, manifest: Manifest
) -> CriterionName:
    """Return the name of the criterion: ``asked``, or ``rmse`` if the network learns classes.

    The mean square error of probabilities (Brier score) is smallest for the true probabilities. The
    mean absolute error is smallest for 0 and 1.
    """
    names = {*network.Variables_of_interest.output_names} & manifest.targets.keys()
    return "rmse" if any(manifest.targets[name].classes for name in names) else asked


if TYPE_CHECKING:
    from torch_geometric.data import Batch

    from hydragnn_flow.data import GraphSplit


def trivial_errors(
    split: GraphSplit, manifest: Manifest, name: CriterionName = "mae"
) -> dict[str, float]:
    """Compute the error of a trivial predictor on the training split, for every target.

    With several data sets there is an error for each target and data set, such as
    ``energy@mptrj``.

    The predictor gives the sum of element energies for a total energy, the mean per atom for other
    targets that are sums over atoms, and the mean of each component for the rest. Errors of
    extensive targets are per atom. If labels do not vary, the error is replaced by the mean
    magnitude of the labels, or by 1 if they are zero.

    Parameters
    ----------
    split
        Training split. If it is large, only some thousand graphs are read, in runs spread over each
        data set.
    manifest
        Manifest of the store; its statistics of the whole training split are the predictions.
    name
        Kind of error: mean absolute (``mae``) or root mean square (``rmse``).
    """
    power = 2 if name == "rmse" else 1
    sums: dict[str, Floats] = {}
    guessers = _guessers(manifest)
    # Number of graphs that gives a mean error within one or two per cent.
    places = spread(split.branch_runs, 4096, 64)
    with closing(split.batches(places)) as batches:
        for batch in batches:
            for target in manifest.targets:
                for guesser in guessers:
                    labels, guesses = _labels_and_guesses(batch, target, manifest, guesser)
                    known = np.isfinite(labels)
                    errors, sizes = np.abs(labels - guesses)[known], np.abs(labels)[known]
                    found = sums.setdefault(guesser.key(target), np.zeros(3))
                    found += (errors.size, (errors**power).sum(), (sizes**power).sum())
    return {key: _unit(found, power) for key, found in sums.items()}


@dataclass(frozen=True)
class _Guesser:
    """Trivial predictor of the structures of one data set, or of all."""

    statistics: LabelStatistics
    graphs: int
    atoms: int
    branch: int | None = None
    data_set: str = ""

    def key(self, target: str) -> str:
        return of_data_set(target, self.data_set) if self.data_set else target

    def rows(self, batch: Batch, level: str) -> Any:
        """Return an index that selects, in a batch, graphs or atoms (``level``) of the data set."""
        if self.branch is None:
            return slice(None)
        graphs = batch[BRANCH].reshape(-1) == self.branch
        return (graphs if level == "graph" else graphs[batch.batch]).numpy()


def _guessers(manifest: Manifest) -> list[_Guesser]:
    statistics, train = manifest.statistics, manifest.splits[TRAIN]
    if not manifest.data_sets:
        return [_Guesser(statistics, train.graphs, train.atoms)]
    known = {branch: statistics.by_branch[branch] for branch in manifest.data_sets}
    return [
        _Guesser(found, found.graphs, found.atoms, branch, manifest.data_sets[branch])
        for branch, found in known.items()
    ]


def _unit(sums: Floats, power: int) -> float:
    n, *totals = sums.tolist()
    error, size = ((total / max(n, 1.0)) ** (1 / power) for total in totals)
    return float(error if error > 1e-10 * size else size or 1.0)


def _labels_and_guesses(
    batch: Batch, target: str, manifest: Manifest, known: _Guesser
) -> tuple[Floats, Any]:
    """Return a target's labels in a batch, per atom if extensive, and their trivial predictions.

    ``known`` is the trivial predictor; only values for structures of its data set are returned.
    """
    described, statistics = manifest.targets[target], known.statistics
    rows = known.rows(batch, described.level)
    labels = target_array(batch[target].numpy(), described)[rows]
    mean = np.array(statistics.targets[target].mean)
    if not manifest.is_extensive(target):
        places = list(VOIGT_PLACES) if target == STRESS and described.dim == 9 else slice(None)
        return labels[:, places], mean[places]
    n_atoms = np.diff(batch.ptr.numpy()).astype(np.float64)[:, None]
    energies = statistics.element_energies
    # With about as many energies as structures the fit would leave no error.
    if target != ENERGY or not energies or known.graphs < 2 * len(energies):
        return labels / n_atoms[rows], mean * (known.graphs / known.atoms)
    numbers = batch.x[:, 0].long().numpy()
    by_number = np.zeros(max(*energies, int(numbers.max())) + 1)
    by_number[list(energies)] = list(energies.values())
    sums = np.bincount(batch.batch.numpy(), by_number[numbers])
    return labels / n_atoms[rows], (sums[:, None] / n_atoms)[rows]
