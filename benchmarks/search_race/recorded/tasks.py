"""Tasks that were trained: their search spaces and the length of a training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hydragnn_flow.config import Parameter


@dataclass(frozen=True)
class Task:
    """Trainings of one kind."""

    name: str
    what: str
    """In a few words."""
    space: dict[str, Parameter]
    """Name → domain; names that `when` mentions come first."""
    epochs: int
    """Epochs of a whole training."""
    rungs: tuple[int, ...]
    """Epochs at which a training may be judged; the last is its end."""
    drawn: int
    """Configurations drawn at random from the space."""
    near: int
    """Configurations near the best tenth of those."""
    again: int
    """Further trainings of good configurations with other seeds: the scatter of a training."""

    @property
    def file(self) -> Path:
        """Recorded trainings, and the networks fitted to them."""
        return Path(__file__).with_name(f"{self.name}.npz")


def _when(name: str, *values: str) -> dict[str, tuple[str, ...]]:
    return {name: values}


_TYPE = "mpnn_type"
_ALLOYS = {
    _TYPE: Parameter(choices=("SchNet", "EGNN", "PAINN", "PNAPlus")),
    "hidden_dim": Parameter(int=(6, 48), log=True),
    "num_conv_layers": Parameter(int=(1, 3)),
    "num_headlayers": Parameter(int=(1, 3)),
    "dim_headlayers": Parameter(int=(8, 64), log=True),
    "activation_function": Parameter(choices=("relu", "silu", "tanh")),
    "learning_rate": Parameter(float=(1e-4, 5e-2), log=True),
    "weight_decay": Parameter(float=(1e-6, 1e-1), log=True),
    "batch_size": Parameter(choices=(8, 16)),
    "num_gaussians": Parameter(int=(4, 48), log=True, when=_when(_TYPE, "SchNet", "EGNN")),
    "num_filters": Parameter(int=(4, 64), log=True, when=_when(_TYPE, "SchNet")),
    "num_radial": Parameter(int=(2, 12), when=_when(_TYPE, "PAINN", "PNAPlus")),
    "envelope_exponent": Parameter(int=(2, 8), when=_when(_TYPE, "PNAPlus")),
}
_PEROVSKITES = {
    _TYPE: Parameter(choices=("PNA", "CGCNN", "GIN", "SAGE", "MFC", "SchNet")),
    "hidden_dim": Parameter(int=(8, 96), log=True),
    "num_conv_layers": Parameter(int=(1, 4)),
    "graph_pooling": Parameter(choices=("mean", "add", "max")),
    "num_sharedlayers": Parameter(int=(1, 3)),
    "dim_sharedlayers": Parameter(int=(8, 96), log=True),
    "num_headlayers": Parameter(int=(1, 3)),
    "optimizer": Parameter(choices=("AdamW", "SGD", "RMSprop")),
    "AdamW.learning_rate": Parameter(
        float=(1e-4, 5e-2), log=True, when=_when("optimizer", "AdamW")
    ),
    "SGD.learning_rate": Parameter(float=(1e-3, 1.0), log=True, when=_when("optimizer", "SGD")),
    "RMSprop.learning_rate": Parameter(
        float=(1e-5, 1e-2), log=True, when=_when("optimizer", "RMSprop")
    ),
    "batch_size": Parameter(choices=(8, 16, 32)),
    "num_gaussians": Parameter(int=(4, 48), log=True, when=_when(_TYPE, "PNA", "CGCNN", "SchNet")),
    "num_filters": Parameter(int=(8, 96), log=True, when=_when(_TYPE, "SchNet")),
}
_BOOSTING = {
    "learning_rate": Parameter(float=(0.01, 1.0), log=True),
    "max_leaf_nodes": Parameter(int=(2, 128), log=True),
    "max_depth": Parameter(int=(1, 12)),
    "min_samples_leaf": Parameter(int=(1, 100), log=True),
    "l2_regularization": Parameter(float=(1e-4, 1e2), log=True),
    "max_features": Parameter(float=(0.1, 1.0)),
    "max_bins": Parameter(int=(4, 255), log=True),
}

TASKS = {
    task.name: task
    for task in (
        Task(
            "alloys",
            "energies and forces of alloys, four message-passing types",
            _ALLOYS,
            epochs=18,
            rungs=(2, 6, 18),
            drawn=800,
            near=250,
            again=50,
        ),
        Task(
            "perovskites",
            "formation energies of perovskites, six message-passing types",
            _PEROVSKITES,
            epochs=18,
            rungs=(2, 6, 18),
            drawn=240,
            near=60,
            again=20,
        ),
        Task(
            "boosting",
            "boosted trees on perovskites, no conditions",
            _BOOSTING,
            epochs=162,
            rungs=(6, 18, 54, 162),
            drawn=1400,
            near=500,
            again=100,
        ),
    )
}
