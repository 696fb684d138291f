"""Message-passing types, each in a file of its own as a subclass of :class:`MessagePassing`.

A new type that ships is a file in this folder and an entry of
:data:`~hydragnn_flow.config.network.mpnn_types.MPNN_TYPES`. A user's own type needs neither.
"""

from __future__ import annotations

import inspect

from torch import nn

from hydragnn_flow.config.base import one_line
from hydragnn_flow.config.network import Architecture
from hydragnn_flow.config.network.mpnn_types import MPNN_TYPES, Properties, class_of
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.mpnn.base import DatasetStatistics, MessagePassing, NodeState


def make_stack(
    architecture: Architecture, statistics: DatasetStatistics, width: int, depth: int
) -> MessagePassing:
    """Return a stack of ``depth`` layers of the message-passing type that an architecture names.

    ``width`` is the width of the layers' node features.

    Raises
    ------
    InputError
        If a user's own type is not derived from :class:`MessagePassing`, or its constructor fails
        or creates no layers.
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
        raise  # lack of memory, which torch reports in several ways, or a failing disk
    except Exception as error:  # any error of a user's constructor
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
