"""Message-passing types: one file each, one protocol (:class:`MessagePassing`).

A new type is a file beside these and an entry of
:data:`~hydragnn_flow.config.network.mpnn_types.MPNN_TYPES`; a type of a user's own needs neither.
"""

from __future__ import annotations

from typing import cast

from hydragnn_flow.config.network.mpnn_types import Properties, class_of
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.mpnn.base import DatasetStatistics, MessagePassing, NodeState


def mpnn_class(name: str) -> type[MessagePassing]:
    """The class of a message-passing type, `Architecture.mpnn_type`.

    Raises
    ------
    ValueError
        If there is no such type.
    """
    return cast("type[MessagePassing]", class_of(name))


__all__ = [
    "DatasetStatistics",
    "Geometry",
    "MessagePassing",
    "NodeState",
    "Properties",
    "mpnn_class",
]
