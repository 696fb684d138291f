"""The criterion: one number without unit by which epochs, trials and members are judged.

It is the mean over the targets trained on of the mean absolute error divided by that of a trivial
predictor. Squares would let a few atoms of thousands decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config import NetworkConfig
from hydragnn_flow.config.run import CriterionName
from hydragnn_flow.data import Manifest
from hydragnn_flow.training.metrics import metric_name, of_data_set
from hydragnn_flow.training.terms import terms_of

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Criterion:
    """Error relative to that of a trivial predictor, over all targets trained on.

    Of several data sets each is judged as much as any other: below, a target of each data set
    counts as a target of its own.

    With ``mae`` the mean over the targets of their mean absolute errors in units of
    ``trivial_errors``; with ``rmse`` the root mean square over the targets of their root mean
    square errors in those units. About 1 means that nothing was learnt, 0 is perfect. Errors of
    extensive targets are those per atom.
    """

    name: CriterionName
    trivial_errors: Mapping[str, float]
    """Error of the trivial predictor on the training split, by target trained on; of several data
    sets by target and data set, as ``energy@mptrj``."""
    per_atom: frozenset[str]
    """Targets whose error is one per atom."""
    branches: Mapping[str, int] = field(default_factory=dict)
    """Branch of each data set, where there are several."""

    @classmethod
    def of(
        cls,
        network: NetworkConfig,
        manifest: Manifest,
        trivial_errors: Mapping[str, float],
        name: CriterionName = "mae",
    ) -> Criterion:
        """The criterion of a network.

        Parameters
        ----------
        network
            Its targets of some weight in the loss are judged, each as much as any other.
        manifest
            Of the store.
        trivial_errors
            See :func:`~hydragnn_flow.training.trivial.trivial_errors`.
        name
            `ensemble.criterion`.
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
        """Targets that are judged."""
        return list(dict.fromkeys(key.partition("@")[0] for key in self.trivial_errors))

    @property
    def power(self) -> int:
        """1 where absolute errors are averaged, 2 where squares are."""
        return 2 if self.name == "rmse" else 1

    def of_metrics(self, metrics: Mapping[str, float]) -> float:
        """The criterion, from the errors that validation has measured.

        Parameters
        ----------
        metrics
            As of :class:`~hydragnn_flow.training.metrics.Metrics`.
        """
        ratios = []
        for key, trivial in self.trivial_errors.items():
            target, _, data_set = key.partition("@")
            name = metric_name(target, self.name, target in self.per_atom)
            if not data_set or (name := of_data_set(name, data_set)) in metrics:
                ratios.append(metrics[name] / trivial)
        return float(np.mean(np.power(ratios, self.power)) ** (1 / self.power))

    def of_predictions(
        self,
        predictions: Mapping[str, Floats],
        labels: Mapping[str, Floats],
        n_atoms: NDArray[Any],
        branch: NDArray[np.int64] | None = None,
    ) -> Floats:
        """The criterion of each candidate, ``[k]``; parameters as of :meth:`residuals`."""
        return self.of_residuals(*self.residuals(predictions, labels, n_atoms, branch))

    def residuals(
        self,
        predictions: Mapping[str, Floats],
        labels: Mapping[str, Floats],
        n_atoms: NDArray[Any],
        branch: NDArray[np.int64] | None = None,
    ) -> tuple[Floats, Floats]:
        """Residuals of candidates on all targets, laid flat, and the share of each.

        Parameters
        ----------
        predictions
            Target -> ``[k, n_graphs, d]`` or ``[k, n_atoms, d]`` of k candidates; others than those
            judged are passed over.
        labels
            Target -> ``[n_graphs, d]`` or ``[n_atoms, d]``; elements that are NaN, such as the
            stress of a structure that is not periodic, are left out.
        n_atoms
            Number of atoms of each graph, ``[n_graphs]``.
        branch
            Branch of each graph, ``[n_graphs]``; read where there are several data sets.

        Returns
        -------
        residuals, shares
            ``[k, N]`` and ``[N]`` float64, in the order of :attr:`trivial_errors`, with which the
            criterion of a weighted mean is ``of_residuals(weights @ residuals, shares)``.
        """
        parts: list[tuple[Floats, float]] = []
        for key, trivial in self.trivial_errors.items():
            target, _, data_set = key.partition("@")
            known = np.isfinite(labels[target])
            if data_set:
                assert branch is not None
                rows = branch == self.branches[data_set]
                rows = rows if len(rows) == len(known) else np.repeat(rows, n_atoms)
                known = known & rows[:, None]
            if not known.any():
                continue
            residuals = np.asarray(predictions[target] - labels[target], np.float64)
            if target in self.per_atom:
                residuals = residuals / np.asarray(n_atoms, np.float64)[:, None]
            parts.append((residuals[:, known], trivial))
        shares = [
            np.full(flat.shape[1], 1 / (len(parts) * flat.shape[1] * trivial**self.power))
            for flat, trivial in parts
        ]
        return np.concatenate([flat for flat, _ in parts], axis=1), np.concatenate(shares)

    def of_residuals(self, residuals: Floats, shares: Floats) -> Floats:
        """The criterion ``[...]`` of residuals ``[..., N]``: ``(Σ s |r|^p)^(1/p)``.

        Infinite where a prediction is not a number.
        """
        found = (np.abs(residuals) ** self.power @ shares) ** (1 / self.power)
        return np.where(np.isnan(found), np.inf, found)
