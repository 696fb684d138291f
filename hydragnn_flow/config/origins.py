"""Starts from earlier work: searches in `search.warm_start`, trained weights in `start_from`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from hydragnn_flow.config.base import Section
from hydragnn_flow.config.network import EngineNetwork, NetworkConfig
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import open_regular
from hydragnn_flow.plain_files import from_json

JOURNAL = "study.journal"
"""File name of the Optuna journal in a run directory."""


def check_earlier(paths: Sequence[Path]) -> None:
    """Check that the paths in `search.warm_start` lead to earlier searches to learn from.

    Parameters
    ----------
    paths
        Absolute paths of ``search.warm_start``.

    Raises
    ------
    InputError
        If a path is neither a run directory whose search has begun nor an Optuna journal.
    """
    for i, path in enumerate(paths):
        place = f"search.warm_start.{i}: {path}"
        if not path.exists():
            raise InputError(f"{place} does not exist; correct the path or remove it")
        if path.is_dir() and not (path / JOURNAL).is_file():
            raise InputError(
                f"{place} has no {JOURNAL}; name the directory of a run whose search has begun, "
                f"or an Optuna journal"
            )
        if not path.is_dir() and not _is_journal(path):
            raise InputError(
                f"{place} is not an Optuna journal; name one, or the directory of a run"
            )


def _is_journal(path: Path) -> bool:
    """Check that the first line of a file is a record of Optuna's journal storage."""
    try:
        with open_regular(path) as file:
            record = from_json(file.readline(1_000_000))
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and "op_code" in record


OF_TRAINING = {
    "dropout",
    "energy_peratom_weight",
    "energy_weight",
    "force_weight",
    "freeze_conv_layers",
    "initial_bias",
    "max_neighbours",
    "statistics",
    "stress_weight",
    "task_weights",
    "truncated_neighbours",
}
"""Keys of `Architecture` that say how a network is trained, not what it computes."""
OF_HEADS = {"enable_interatomic_potential", "graph_pooling", "output_heads"}
"""Keys of `Architecture` that say what heads compute."""


class StartConfig(Section):
    """`start_from`: trained weights that every trial begins with.

    Instead of a mapping, the path alone is accepted too; other keys then have their defaults.
    """

    path: Path
    """Directory of a run or of an exported ensemble (its best member), folder of a trial or member,
    or a checkpoint (``.pt``) in such a folder. With ``network.engine: hydragnn`` a HydraGNN
    checkpoint (``.pk``) beside its `config.json`."""
    heads: Literal["keep", "new"] = "keep"
    """Initial weights of the heads: the trained ones (``keep``), or random ones (``new``), for
    other targets."""
    freeze: Literal["none", "encoder"] | tuple[str, ...] = "none"
    """Parameters that are not trained: ``encoder`` (embedding and message-passing layers), or a
    list of parameters or modules, such as ``encoder.layers.layers.0``."""

    @model_validator(mode="before")
    @classmethod
    def _path_alone(cls, values: Any) -> Any:
        return {"path": values} if isinstance(values, (str, Path)) else values

    @property
    def frozen(self) -> tuple[str, ...]:
        """Names of the parameters and modules of the network whose weights are not trained."""
        if self.freeze == "none":
            return ()
        return ("encoder.embedding", "encoder.layers") if self.freeze == "encoder" else self.freeze

    def check(self, network: NetworkConfig, space: Collection[str]) -> None:
        """Check that the networks of a run can begin with the weights that ``path`` names.

        Parameters
        ----------
        network
            Network of the run, before the search varies it.
        space
            Dotted paths that the search varies.

        Raises
        ------
        ValueError
            If a network cannot begin with the weights; the message names key and remedy.
        """
        if not isinstance(network, EngineNetwork):
            if self.path.suffix == ".pk":
                raise ValueError(
                    f"start_from: {self.path} is a HydraGNN checkpoint, with which only HydraGNN's "
                    f"own networks can begin; install HydraGNN and write network.engine: hydragnn"
                )
            return
        if self.path.suffix == ".pt" or self.path.is_dir():
            raise ValueError(
                f"start_from: {self.path} is of a network that is built here, and network.engine "
                f"is {network.engine}; name a checkpoint that the engine reads, as HydraGNN's .pk, "
                f"or remove one of them"
            )
        if self.freeze == "encoder":
            raise ValueError(
                f"start_from.freeze: encoder is a part of networks that are built here, and "
                f"network.engine is {network.engine}; name modules instead, as [network.model]"
            )
        fixed = [path for path in space if path.partition(".")[0] == "Architecture"]
        free = OF_TRAINING | (OF_HEADS if self.heads == "new" else set())
        varied = next((path for path in fixed if path.split(".")[1] not in free), None)
        if varied is not None:
            raise ValueError(
                f"search.space.{varied}: {self.path}, which start_from names, has one value of it; "
                f"remove it from the space"
            )
