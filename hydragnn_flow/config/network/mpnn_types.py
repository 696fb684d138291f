"""Message-passing types: those that ship, and types of a user's own.

The properties that a configuration is checked against are here, not in the layers' modules, because
they must be known before torch is imported. A type that ships is a file of
``hydragnn_flow/models/mpnn`` and an entry of :data:`MPNN_TYPES`. A user's own is ``module:Class``,
a subclass of :class:`~hydragnn_flow.models.mpnn.MessagePassing` with an attribute ``properties``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

from hydragnn_flow.config.base import Section, import_class


@dataclass(frozen=True)
class Properties:
    """Guarantees of a message-passing type, and the keys it reads; the test suite checks both.

    Attributes
    ----------
    lengths
        Edge lengths: read ``always``, on ``request`` by `edge_features` (and in every potential),
        or ``never``. A type that never reads lengths cannot be a potential.
    edge_attributes
        True if the type reads the other columns of `edge_features`.
    continuous_at_cutoff
        True if the output changes continuously when an edge appears or vanishes at the cutoff,
        where edges have lengths.
    smooth_forces
        True if forces of a potential change continuously at the cutoff too, and do not jump
        elsewhere.
    sees_angles
        True if one layer distinguishes two structures that differ only in the angles between edges.
    vectors
        Features of atoms that rotate with the frame: ``always``, on ``request`` by `equivariance`,
        or ``never``.
    keys
        Keys of `Architecture` that the type reads, among those that only some types read.
    options
        Schema of `Architecture.mpnn_options`; None if the type has no options of its own.
    """

    lengths: Literal["always", "request", "never"]
    edge_attributes: bool = False
    continuous_at_cutoff: bool = False
    smooth_forces: bool = False
    sees_angles: bool = False
    vectors: Literal["always", "request", "never"] = "never"
    keys: tuple[str, ...] = ()
    options: type[Section] | None = None


class MpnnType(NamedTuple):
    """Table entry of a message-passing type that this package ships.

    The type's class has its name, and the module of the class the same name in lower case.

    Attributes
    ----------
    properties
        Guarantees of the type, and the keys it reads.
    layer
        Description of a layer for the documentation.
    source
        Publication that introduced the type.
    """

    properties: Properties
    layer: str
    source: str


_of_edges = partial(Properties, edge_attributes=True, continuous_at_cutoff=True)

MPNN_TYPES: dict[str, MpnnType] = {
    "SchNet": MpnnType(
        _of_edges(
            lengths="always",
            smooth_forces=True,
            vectors="request",
            keys=("num_gaussians", "num_filters", "equivariance"),
        ),
        "multiplies neighbours' features by filters, functions of the length",
        "Schütt et al., [arXiv:1706.08566](https://arxiv.org/abs/1706.08566)",
    ),
    "EGNN": MpnnType(
        _of_edges(
            lengths="always",
            smooth_forces=True,
            vectors="request",
            keys=("num_gaussians", "equivariance"),
        ),
        "messages from both atoms and the length",
        "Satorras et al., [arXiv:2102.09844](https://arxiv.org/abs/2102.09844)",
    ),
    "PAINN": MpnnType(
        _of_edges(
            lengths="always",
            smooth_forces=True,
            sees_angles=True,
            vectors="always",
            keys=("num_radial",),
        ),
        "scalars and vectors that turn with the frame, filtered by the length",
        "Schütt et al., [arXiv:2102.03150](https://arxiv.org/abs/2102.03150)",
    ),
    "PNAEq": MpnnType(
        _of_edges(
            lengths="always",
            sees_angles=True,
            vectors="always",
            keys=("num_radial",),
        ),
        "PaiNN's vectors, with PNA's aggregation of the scalars",
        "HydraGNN's own",
    ),
    "DimeNet": MpnnType(
        _of_edges(
            lengths="always",
            smooth_forces=True,
            sees_angles=True,
            keys=(
                "num_radial",
                "num_spherical",
                "envelope_exponent",
                "basis_emb_size",
                "int_emb_size",
                "out_emb_size",
                "num_before_skip",
                "num_after_skip",
            ),
        ),
        "messages between edges, weighted by lengths and angles (DimeNet++)",
        "Gasteiger et al., [arXiv:2003.03123](https://arxiv.org/abs/2003.03123), "
        "[arXiv:2011.14115](https://arxiv.org/abs/2011.14115)",
    ),
    "MACE": MpnnType(
        _of_edges(
            lengths="always",
            smooth_forces=True,
            sees_angles=True,
            vectors="always",
            keys=(
                "num_radial",
                "radial_type",
                "distance_transform",
                "envelope_exponent",
                "max_ell",
                "node_max_ell",
                "correlation",
            ),
        ),
        "products of several neighbours' features, up to a given order and degree",
        "Batatia et al., [arXiv:2206.07697](https://arxiv.org/abs/2206.07697)",
    ),
    "PNA": MpnnType(
        _of_edges(
            lengths="request",
            keys=("num_gaussians",),
        ),
        "mean, minimum, maximum and deviation over the neighbours, scaled by their number",
        "Corso et al., [arXiv:2004.05718](https://arxiv.org/abs/2004.05718)",
    ),
    "PNAPlus": MpnnType(
        _of_edges(
            lengths="always",
            keys=("num_radial", "envelope_exponent"),
        ),
        "PNA whose messages are multiplied by functions of the length",
        "HydraGNN's own",
    ),
    "CGCNN": MpnnType(
        _of_edges(
            lengths="request",
            smooth_forces=True,
            keys=("num_gaussians",),
        ),
        "a sum of gated messages",
        "Xie and Grossman, [arXiv:1710.10324](https://arxiv.org/abs/1710.10324)",
    ),
    "GIN": MpnnType(
        Properties(lengths="never"),
        "a perceptron of the atom's features plus the sum of its neighbours'",
        "Xu et al., [arXiv:1810.00826](https://arxiv.org/abs/1810.00826)",
    ),
    "GAT": MpnnType(
        _of_edges(
            lengths="request",
            keys=("num_gaussians", "dropout"),
        ),
        "six heads that average the neighbours by attention (version 2)",
        "Brody et al., [arXiv:2105.14491](https://arxiv.org/abs/2105.14491)",
    ),
    "SAGE": MpnnType(
        Properties(lengths="never"),
        "a linear map of the atom's features and its neighbours' mean",
        "Hamilton et al., [arXiv:1706.02216](https://arxiv.org/abs/1706.02216)",
    ),
    "MFC": MpnnType(
        Properties(lengths="never"),
        "a linear map of the atom's features and its neighbours' sum, another for each number of "
        "neighbours",
        "Duvenaud et al., [arXiv:1509.09292](https://arxiv.org/abs/1509.09292)",
    ),
}
"""Message-passing types by HydraGNN's names, the values of `Architecture.mpnn_type`."""

READ_BY: dict[str, tuple[str, ...]] = {
    key: tuple(name for name, kind in MPNN_TYPES.items() if key in kind.properties.keys)
    for key in dict.fromkeys(key for kind in MPNN_TYPES.values() for key in kind.properties.keys)
}
"""Message-passing types that read a key of `Architecture`, by key, for keys that only some types
read. All types accept these keys."""


def class_of(name: str) -> Any:
    """Return the class of a message-passing type, after importing its module and torch.

    Parameters
    ----------
    name
        Key of :data:`MPNN_TYPES`, or ``module:Class``.

    Raises
    ------
    ValueError
        If there is no such type.
    """
    shipped = f"hydragnn_flow.models.mpnn.{name.lower()}:{name}"
    return import_class(shipped if name in MPNN_TYPES else name)


@lru_cache(maxsize=64)
def properties_of(name: str) -> Properties:
    """Return the properties of a message-passing type: its guarantees, and the keys it reads.

    The module of a shipped type is not imported.

    Parameters
    ----------
    name
        Key of :data:`MPNN_TYPES`, or ``module:Class``.

    Raises
    ------
    ValueError
        If there is no such type.
    """
    if name in MPNN_TYPES:
        return MPNN_TYPES[name].properties
    if ":" not in name:
        known = ", ".join(map(repr, MPNN_TYPES))
        raise ValueError(f"must be one of {known}, or module:Class, got {name!r}")
    properties = getattr(class_of(name), "properties", None)
    if not isinstance(properties, Properties):
        raise ValueError(
            f"{name} is no message-passing type: derive it from "
            f"hydragnn_flow.models.mpnn.MessagePassing and give it `properties`"
        )
    return properties
