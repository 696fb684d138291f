"""Message-passing types: one file each, one protocol (:class:`MessagePassing`).

A new type is a file beside these and an entry of
:data:`~hydragnn_flow.config.network.mpnn_types.MPNN_TYPES`; a type of a user's own needs neither.
"""

from __future__ import annotations

import inspect

from torch import nn

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.config.network.mpnn_types import MPNN_TYPES, Properties, class_of
from hydragnn_flow.config.user_classes import one_line
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.mpnn.base import DatasetStatistics, MessagePassing, NodeState


def make_stack(
    architecture: Architecture, statistics: DatasetStatistics, width: int, depth: int
) -> MessagePassing:
    """Layers of the type that an architecture names; parameters as of :class:`MessagePassing`.

    Raises
    ------
    InputError
        If the type is a user's own that is not derived from :class:`MessagePassing`, or whose
        constructor fails or fills no layers.
    """
    name = architecture.mpnn_type
    kind = class_of(name)
    if not (inspect.isclass(kind) and issubclass(kind, MessagePassing)):
        raise InputError(
            f"network: Architecture.mpnn_type = {name!r} is not derived from "
            f"hydragnn_flow.models.mpnn.MessagePassing; derive it"
        )
    if name in MPNN_TYPES:
        return kind(architecture, statistics, width, depth)
    try:
        stack = kind(architecture, statistics, width, depth)
    except (InputError, MemoryError, OSError, RuntimeError):
        raise  # lack of memory, which torch reports in several ways, and a disk that fails
    except Exception as error:  # whatever a user's constructor does
        raise InputError(
            f"network: Architecture.mpnn_type = {name!r} cannot be constructed "
            f"({type(error).__name__}: {one_line(error)}); correct its __init__"
        ) from error
    layers = getattr(stack, "layers", None)
    if not isinstance(layers, nn.ModuleList) or not len(layers):
        raise InputError(
            f"network: Architecture.mpnn_type = {name!r} has no layers after its __init__; assign "
            f"self.layers a torch.nn.ModuleList of them there"
        )
    return stack


__all__ = [
    "DatasetStatistics",
    "Geometry",
    "MessagePassing",
    "NodeState",
    "Properties",
    "make_stack",
]
