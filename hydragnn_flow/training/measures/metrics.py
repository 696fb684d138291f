"""Metrics: errors in the data's units for people to read, summed over validation batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Batch

from hydragnn_flow.config.run import CriterionName
from hydragnn_flow.data import Manifest
from hydragnn_flow.models.branches import branch_of_graph, sum_by
from hydragnn_flow.models.geometry import STRESS
from hydragnn_flow.training.measures.losses import STRESS_DIM, atoms_per_graph, reference


@dataclass(frozen=True)
class Metric:
    """Description of a reported error: target, kind (``mae``, ``rmse``), and whether per atom."""

    target: str
    level: str
    dim: int
    """Number of components of the target."""
    per_atom: bool
    """True if the error of a graph is divided by its number of atoms."""
    error: CriterionName

    @property
    def name(self) -> str:
        """Name of the error in results, such as ``energy_mae_per_atom``."""
        return metric_name(self.target, self.error, self.per_atom)


def metric_name(target: str, error: CriterionName, per_atom: bool) -> str:
    """Return the name of a target's error in results, such as ``energy_mae_per_atom``."""
    return f"{target}_{error}" + ("_per_atom" if per_atom else "")


def of_data_set(name: str, data_set: str) -> str:
    """Return the name of an error on one data set, such as ``energy_mae@mptrj``."""
    return f"{name}@{data_set}"


class Metrics:
    """Calculator of validation errors: mean absolute but for classes, root mean square on request.

    Extensive targets have errors per atom too. With several data sets there are also errors of each
    data set, and the overall error is their mean, whatever the sizes of the data sets.

    Parameters
    ----------
    targets
        Level (graph or node) of each predicted target.
    manifest
        Manifest of the store: data sets, dimensions and extensive targets.
    criterion
        Name of the criterion; ``rmse`` adds the root mean square error of each target.
    """

    def __init__(
        self, targets: Mapping[str, str], manifest: Manifest, criterion: CriterionName = "mae"
    ) -> None:
        self._metrics: list[Metric] = []
        self._data_sets = manifest.data_sets
        self._branches: Tensor | None = None
        for target, level in targets.items():
            dim = STRESS_DIM if target == STRESS else manifest.targets[target].dim
            extensive = manifest.is_extensive(target)
            if not manifest.targets[target].classes:
                self._metrics.append(Metric(target, level, dim, False, "mae"))
            if extensive:
                self._metrics.append(Metric(target, level, dim, True, "mae"))
            if criterion == "rmse":
                self._metrics.append(Metric(target, level, dim, extensive, "rmse"))

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the result of :meth:`sums`, ``(2 n_metrics, n_data_sets)``."""
        return 2 * len(self._metrics), max(len(self._data_sets), 1)

    def sums(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Sum each error over the labels of each data set in a batch; missing ones do not count.

        Parameters
        ----------
        outputs, batch
            Predictions, and the batch with their labels.

        Returns
        -------
        Tensor
            ``[2 n_metrics, n_data_sets]`` float64, with squares for a root mean square. The second
            half of the rows are the numbers of values that each error is the sum of.
        """
        sums: list[Tensor] = []
        numbers: list[Tensor] = []
        of_graph = self._number_of_graph(batch)
        of_atom = None if of_graph is None else of_graph.index_select(0, batch.batch)
        for metric in self._metrics:
            output = outputs[metric.target].detach()
            labels = reference(batch, metric.target, output)
            known = labels.isfinite()
            error = torch.where(known, output - labels, 0.0).abs()
            if metric.per_atom:
                error = error / atoms_per_graph(batch, error)
            if metric.error == "rmse":
                error = error.double().square()
            data_set = of_graph if metric.level == "graph" else of_atom
            sums.append(sum_by(error, data_set, self.shape[1]))
            numbers.append(sum_by(known, data_set, self.shape[1]))
        return torch.stack(sums + numbers)

    def means(self, sums: Tensor) -> dict[str, float]:
        """Return the mean errors by name, from the sums of errors over all graphs on all ranks.

        With several data sets there are also errors of each, such as ``energy_mae@mptrj``. A target
        without labels has no errors.

        Parameters
        ----------
        sums
            Sum of the results of :meth:`sums`.
        """
        means: dict[str, float] = {}
        for metric, *of_data_sets in zip(self._metrics, *sums.chunk(2), strict=True):
            pairs = zip(*(values.tolist() for values in of_data_sets), strict=True)
            found = [_mean(metric, total, size) if size else None for total, size in pairs]
            known = [mean for mean in found if mean is not None]
            if known:
                means[metric.name] = sum(known) / len(known)
            for data_set, mean in zip(self._data_sets.values(), found, strict=False):
                if mean is not None:
                    means[of_data_set(metric.name, data_set)] = mean
        return means

    def _number_of_graph(self, batch: Batch) -> Tensor | None:
        """Return the index of each graph's data set, int64 [n_graphs]; None without data sets."""
        if not self._data_sets:
            return None
        branches = list(self._data_sets)
        branch = branch_of_graph(batch, max(branches) + 1)
        if branch is None or branches == list(range(len(branches))):
            return branch
        if self._branches is None:  # a copy within a recorded evaluation would end it
            self._branches = torch.tensor(branches, device=branch.device)
        return torch.bucketize(branch, self._branches)


def _mean(metric: Metric, total: float, size: float) -> float:
    mean = total / size
    return math.sqrt(mean) if metric.error == "rmse" else mean
