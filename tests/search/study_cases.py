"""A small search space, and studies over it, for the tests of the search room."""

from __future__ import annotations

from pathlib import Path

from hydragnn_flow.config import Parameter, SearchConfig
from hydragnn_flow.search import Outcome, Search

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


def fits(parameters: dict[str, object], config: SearchConfig = CONFIG) -> bool:
    """Whether a trial has exactly the parameters that exist for it, each within its domain."""
    expected = set()
    for name, domain in config.space.items():
        if any(parameters.get(other) not in allowed for other, allowed in domain.when.items()):
            continue
        expected.add(name)
        value = parameters.get(name)
        if domain.choices is not None:
            if value not in domain.choices:
                return False
        else:
            kind, bounds = (int, domain.int) if domain.int else (float, domain.float)
            assert bounds is not None
            if not isinstance(value, kind) or not bounds[0] <= value <= bounds[1]:
                return False
    return set(parameters) == expected
