"""Size of the validation subset used after each epoch."""

from __future__ import annotations

import math

from hydragnn_flow.config import RunConfig
from hydragnn_flow.data import Manifest
from hydragnn_flow.data.splits import VALIDATION
from hydragnn_flow.training.plan.batching import Budget
from hydragnn_flow.training.plan.sampling import drawn_size

# Fewest graphs: 1,000 resolve differences of a few per cent between trials.
_FEWEST = 1000
_IN_SECONDS = 10_000


def graphs_judged(config: RunConfig, manifest: Manifest) -> int:
    """Size of the validation subset used after each epoch of the run.

    By default it is the whole split. If epochs divide `search.budget`, it is at most the number of
    graphs of an epoch, so that validation costs no more than training, but at least enough to
    compare trials. It is 1 if no objective is an error.

    Parameters
    ----------
    config
        Configuration of the run; `search.validation_samples` may give the size.
    manifest
        Manifest of the store.
    """
    there = manifest.splits[VALIDATION].graphs
    asked, budget = config.search.validation_samples, config.divided_budget
    if isinstance(asked, int):
        return min(asked, there)
    if asked == "auto" and not config.search.judges_errors:
        return min(1, there)  # the error is not used
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
