"""How many graphs of the validation split epochs are judged by."""

from __future__ import annotations

import math

from hydragnn_flow.config import RunConfig
from hydragnn_flow.data import Manifest
from hydragnn_flow.data.splits import VALIDATION
from hydragnn_flow.training.batching import Budget
from hydragnn_flow.training.sampling import drawn_size

# So few tell trials apart that differ by some per cent.
_FEWEST = 1000
_IN_SECONDS = 10_000


def graphs_judged(config: RunConfig, manifest: Manifest) -> int:
    """Number of graphs of the validation split by which every epoch of the run is judged.

    By default all of them; where epochs are parts of a budget, no more than an epoch trains on, so
    that judging costs no more than training, but enough to tell trials apart. One, where no
    objective is an error.

    Parameters
    ----------
    config
        Of the run; `search.validation_samples` decides where it is a number.
    manifest
        Of the store.
    """
    there = manifest.splits[VALIDATION].graphs
    asked, budget = config.search.validation_samples, config.divided_budget
    if isinstance(asked, int):
        return min(asked, there)
    if asked == "auto" and not config.search.judges_errors:
        return min(1, there)  # nobody asks for its error
    if asked == "all" or budget is None:
        return there
    unit, size = budget
    if unit == "seconds":
        return min(_IN_SECONDS, there)
    trained = size / config.num_epoch
    if unit == "steps":
        train = drawn_size(manifest, config.data.sampling)
        limits = Budget.of(config.network_with({}))
        trained *= train.graphs / limits.least_steps(train.graphs, train.atoms, train.edges)
    return min(max(_FEWEST, math.ceil(trained)), there)
