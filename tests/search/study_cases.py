"""A small search space, and studies over it, for the tests of the search room."""

from __future__ import annotations

from pathlib import Path

from hydragnn_flow.config import Parameter, SearchConfig
from hydragnn_flow.search import Outcome, Search
from hydragnn_flow.search.records import active

RUNGS = (2, 6, 18)
SPACE = {
    "Architecture.mpnn_type": Parameter(choices=("SchNet", "EGNN", "PNA")),
    "Architecture.hidden_dim": Parameter(int=(16, 64), log=True),
    "Architecture.num_gaussians": Parameter(
        int=(8, 40), when={"Architecture.mpnn_type": ("SchNet",)}
    ),
    "Training.Optimizer.learning_rate": Parameter(float=(5e-4, 1e-2), log=True),
}
CONFIG = SearchConfig(
    trials=100, sampler="batched_tpe", min_epochs=2, reduction_factor=3, space=SPACE
)


def open_search(path: Path, config: SearchConfig = CONFIG, seed: int = 1) -> Search:
    return Search(path, config, RUNGS[-1], seed)


def came_to(*objectives: float) -> Outcome:
    """Of a trial so far."""
    return Outcome(objectives)


def fits(parameters: dict[str, object]) -> bool:
    """Whether a trial has exactly the parameters that exist for it, each within its domain."""
    within = all(SPACE[name].contains(value) for name, value in parameters.items())
    return within and set(parameters) == set(active(SPACE, parameters))
