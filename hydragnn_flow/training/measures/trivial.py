"""Errors of a trivial predictor, which ignores structure: the units of the criterion."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.run import CriterionName
from hydragnn_flow.config.targets import BRANCH
from hydragnn_flow.data.branch_runs import spread
from hydragnn_flow.data.splits import TRAIN
from hydragnn_flow.data.store.manifest import ENERGY, LabelStatistics
from hydragnn_flow.data.store.statistics import target_array
from hydragnn_flow.models.stress import STRESS, VOIGT_PLACES
from hydragnn_flow.training.measures.metrics import of_data_set

if TYPE_CHECKING:
    from torch_geometric.data import Batch

    from hydragnn_flow.data import GraphSplit, Manifest

Floats = NDArray[np.float64]


def trivial_errors(
    split: GraphSplit, manifest: Manifest, name: CriterionName = "mae"
) -> dict[str, float]:
    """Compute the error of a trivial predictor on the training split, for every target.

    With several data sets each has errors of its own, named like ``energy@mptrj``.

    The predictor gives the sum of element energies for a total energy, the mean per atom for other
    targets that are sums over atoms, and the mean of each component for the rest. Errors of
    extensive targets are per atom. If labels do not vary, the error is replaced by the mean size of
    the labels, or by 1 if they are zero.

    Parameters
    ----------
    split
        Training split. Of a large one some thousand graphs are read, in runs spread over each data
        set.
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
        """Return an index of the graphs or atoms of a batch that belong to the data set."""
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
    """Return a target's labels, per atom if extensive, and the trivial predictions."""
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
