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
from hydragnn_flow.training.measures.losses import atoms_per_graph, reference


@dataclass(frozen=True)
class Metric:
    """Description of a reported error: target, kind (``mae``, ``rmse``), and whether per atom."""

    target: str
    level: str
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
        # Name of each branch that has one; of a single data set errors are not told apart.
        self._data_sets = manifest.data_sets or {0: ""}
        for target, level in targets.items():
            extensive = manifest.is_extensive(target)
            if not manifest.targets[target].classes:
                self._metrics.append(Metric(target, level, False, "mae"))
            if extensive:
                self._metrics.append(Metric(target, level, True, "mae"))
            if criterion == "rmse":
                self._metrics.append(Metric(target, level, extensive, "rmse"))

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the result of :meth:`sums`, ``(2 n_metrics, n_branches)``."""
        return 2 * len(self._metrics), max(self._data_sets) + 1

    def sums(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Sum each error over the labels of each branch in a batch; missing ones do not count.

        Parameters
        ----------
        outputs, batch
            Predictions, and the batch with their labels.

        Returns
        -------
        Tensor
            ``[2 n_metrics, n_branches]`` float64, with squares for a root mean square. The second
            half of the rows are the numbers of values that each error is the sum of.
        """
        sums: list[Tensor] = []
        numbers: list[Tensor] = []
        of_graph = branch_of_graph(batch, self.shape[1])
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
            branch = of_graph if metric.level == "graph" else of_atom
            sums.append(sum_by(error, branch, self.shape[1]))
            numbers.append(sum_by(known, branch, self.shape[1]))
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
        for metric, *of_branches in zip(self._metrics, *sums.chunk(2), strict=True):
            totals, sizes = (values.tolist() for values in of_branches)
            found = {
                name: _mean(metric, totals[branch], sizes[branch])
                for branch, name in self._data_sets.items()
                if sizes[branch]
            }
            if found:
                means[metric.name] = sum(found.values()) / len(found)
            means |= {of_data_set(metric.name, name): mean for name, mean in found.items() if name}
        return means


def _mean(metric: Metric, total: float, size: float) -> float:
    mean = total / size
    return math.sqrt(mean) if metric.error == "rmse" else mean
