"""Errors that people read, in the data's units, summed over validation batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Batch

from hydragnn_flow.config.run import CriterionName
from hydragnn_flow.data import Manifest
from hydragnn_flow.models.stress import STRESS
from hydragnn_flow.training.losses import Counts, atoms_per_graph, reference
from hydragnn_flow.training.terms import STRESS_DIM


@dataclass(frozen=True)
class Metric:
    """A mean error of one target."""

    target: str
    level: str
    dim: int
    """Number of components."""
    per_atom: bool
    """Whether the error of a graph is divided by its number of atoms."""
    error: CriterionName

    @property
    def name(self) -> str:
        """Name in the results, such as ``energy_mae_per_atom``."""
        return metric_name(self.target, self.error, self.per_atom)


def metric_name(target: str, error: CriterionName, per_atom: bool) -> str:
    """Name of a target's error in the results of a segment."""
    return f"{target}_{error}" + ("_per_atom" if per_atom else "")


class Metrics:
    """Mean absolute errors of all targets, of extensive ones per atom too; with root mean squares
    where these are the criterion.

    Parameters
    ----------
    targets
        Level of each target that is predicted.
    manifest
        Says which targets are sums over atoms.
    criterion
        ``rmse`` adds the root mean square error by which a target is judged.
    """

    def __init__(
        self, targets: Mapping[str, str], manifest: Manifest, criterion: CriterionName = "mae"
    ) -> None:
        self._metrics: list[Metric] = []
        for target, level in targets.items():
            dim = STRESS_DIM if target == STRESS else manifest.targets[target].dim
            extensive = manifest.is_extensive(target)
            self._metrics.append(Metric(target, level, dim, False, "mae"))
            if extensive:
                self._metrics.append(Metric(target, level, dim, True, "mae"))
            if criterion == "rmse":
                self._metrics.append(Metric(target, level, dim, extensive, "rmse"))

    def __len__(self) -> int:
        return len(self._metrics)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._metrics)

    def sums(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Sum of each error over a batch, squared for a root mean square; ``[n_metrics]`` float64.

        Parameters
        ----------
        outputs, batch
            Predictions and labels.
        """
        sums: list[Tensor] = []
        for metric in self._metrics:
            output = outputs[metric.target].detach()
            error = (output - reference(batch, metric.target, output)).abs()
            if metric.per_atom:
                error = error / atoms_per_graph(batch, error)
            if metric.error == "rmse":
                error = error.double().square()
            sums.append(error.sum().double())
        return torch.stack(sums)

    def means(self, sums: Sequence[float], counts: Counts) -> dict[str, float]:
        """Errors by name, from the sums over a whole split of all ranks.

        Parameters
        ----------
        sums
            As of :meth:`sums`.
        counts
            Size of the split.
        """
        elements = {"graph": counts.graphs, "node": counts.atoms}
        means = {}
        for metric, total in zip(self._metrics, sums, strict=True):
            mean = total / (elements[metric.level] * metric.dim)
            means[metric.name] = math.sqrt(mean) if metric.error == "rmse" else mean
        return means
