"""Schema of `NeuralNetwork.Architecture`, with its `output_heads`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from hydragnn_flow.config.base import Section, explain, unknown_key
from hydragnn_flow.config.domain import Scalar
from hydragnn_flow.config.network.hydragnn_keys import IGNORED, REFUSED, default_weights
from hydragnn_flow.config.network.mpnn_types import MPNN_TYPES, READ_BY, properties_of

Width = Annotated[int, Field(ge=1, le=1_000_000)]


class _HeadLayers(Section):
    """Layers that belong to one head alone."""

    num_headlayers: int = Field(default=2, ge=1, le=1000)
    """Number of hidden layers of the head."""
    dim_headlayers: tuple[Width, ...] = (32, 32)
    """Width of each hidden layer. A longer list is cut; a shorter list of equal widths applies to
    all layers."""

    @field_validator("dim_headlayers")
    @classmethod
    def _of_every_layer(cls, widths: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        missing = info.data.get("num_headlayers", 0) - len(widths)
        return widths + widths[:1] * missing if len(set(widths)) == 1 else widths

    def _conflicts(self) -> Iterator[str]:
        if len(self.dim_headlayers) < self.num_headlayers:
            yield f"dim_headlayers needs a width for each of num_headlayers = {self.num_headlayers}"


class GraphHead(_HeadLayers):
    """`output_heads.graph`: layers common to all graph heads of a branch, then each head's own."""

    num_sharedlayers: int = Field(default=2, ge=0, le=1000)
    """Number of layers common to all graph heads of a branch."""
    dim_sharedlayers: Width = 32
    """Width of the shared layers."""

    @model_validator(mode="before")
    @classmethod
    def _a_perceptron(cls, values: Any) -> Any:
        # Some HydraGNN files give graph heads this type too, which HydraGNN does not read.
        if isinstance(values, dict) and values.get("type") == "mlp":
            return {key: value for key, value in values.items() if key != "type"}
        return values


class NodeHead(_HeadLayers):
    """`output_heads.node`: layers of each node head."""

    type: Literal["mlp", "mlp_per_node", "conv"] = "mlp"
    """``mlp``: one perceptron for all atoms; ``mlp_per_node``: one for each position in graphs of
    equal size; ``conv``: message-passing layers of the network's type."""


_Head = TypeVar("_Head", GraphHead, NodeHead)


def _as_hydragnn_writes(branches: Sequence[Section] | None) -> Any:
    """Return branches of output heads in HydraGNN's form: one as a mapping, several as a list."""
    if branches is None:
        return None
    heads = [branch.model_dump(mode="json") for branch in branches]
    if len(heads) == 1:
        return heads[0]
    return [{"type": f"branch-{n}", "architecture": head} for n, head in enumerate(heads)]


Branches = Annotated[
    tuple[_Head, ...] | None, Field(min_length=1), PlainSerializer(_as_hydragnn_writes)
]


def with_branches(network: dict[str, Any], data_sets: Sequence[str]) -> dict[str, Any]:
    """Return a `NeuralNetwork` section with a branch of output heads for each data set.

    Heads that are described once are repeated for each branch; a list of branches stays as it is.
    The section of an engine (external library that builds the network) gets the number of branches
    as the key `branches`, unless it has this key.

    Parameters
    ----------
    network
        `NeuralNetwork` section before validation.
    data_sets
        Names of the data sets; with fewer than two the section stays as it is.
    """
    architecture = network.get("Architecture")
    if len(data_sets) < 2 or not isinstance(architecture, dict):
        return network
    if "engine" in network:
        return {**network, "Architecture": {"branches": len(data_sets), **architecture}}
    heads = architecture.get("output_heads")
    if not isinstance(heads, dict):
        return network
    branched = branched_heads(heads, len(data_sets))
    return {**network, "Architecture": {**architecture, "output_heads": branched}}


def branched_heads(heads: Mapping[str, Any], branches: int) -> dict[str, Any]:
    """Return HydraGNN's `output_heads` with the heads of each level repeated for each branch.

    Parameters
    ----------
    heads
        Heads by level (`graph` or `node`), as a mapping; a list of branches stays as it is.
    branches
        Number of branches, one for each data set.
    """
    return {
        level: [
            {"type": f"branch-{number}", "architecture": described} for number in range(branches)
        ]
        if isinstance(described, dict)
        else described
        for level, described in heads.items()
    }


class OutputHeads(Section):
    """`output_heads`: layers for each level of outputs and each branch (heads of one data set).

    In a file, a level with one branch is a mapping, and a level with several branches is
    HydraGNN's list of ``{type: branch-N, architecture: {...}}``. In this class, a level is a tuple
    of branches in the order of N. The section is written in HydraGNN's form again.
    """

    graph: Branches[GraphHead] = None
    """Layers of graph-level outputs: a mapping, or a list of branches `branch-0`, `branch-1`, …"""
    node: Branches[NodeHead] = None
    """Layers of node-level outputs, in the same form as ``graph``."""

    @field_validator("graph", "node", mode="before")
    @classmethod
    def _in_order(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, dict):
            # Validated here, so that an error does not name the first of several branches.
            return ((GraphHead if info.field_name == "graph" else NodeHead).model_validate(value),)
        if isinstance(value, Section):
            return (value,)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"must be a mapping, or a list of branches, got {value!r}")
        if any(isinstance(branch, Section) for branch in value):
            return value
        numbers: list[int] = []
        for branch in value:
            if not isinstance(branch, dict) or not {"type", "architecture"} <= set(branch):
                raise ValueError("each branch is {type: branch-N, architecture: {…}}")
            for key in branch:
                if key not in ("type", "architecture"):
                    raise ValueError(unknown_key(key, ("type", "architecture")))
            number = re.fullmatch(r"branch-(\d+)", str(branch["type"]))
            if number is None:
                raise ValueError(
                    f"the type of a branch is 'branch-0', 'branch-1' …, got {branch['type']!r}"
                )
            numbers.append(int(number[1]))
        if sorted(numbers) != list(range(len(numbers))):
            raise ValueError(
                f"branches are numbered from 0 without a gap, each once; got {numbers}"
            )
        ordered = sorted(zip(numbers, value, strict=True), key=lambda pair: pair[0])
        return tuple(branch["architecture"] for _, branch in ordered)

    def _conflicts(self) -> Iterator[str]:
        if self.graph and self.node and len(self.graph) != len(self.node):
            yield (
                f"graph has {len(self.graph)} branches and node {len(self.node)}; a graph's branch "
                f"has its heads of both levels, so give as many of each"
            )
        if len({node.type == "conv" for node in self.node or ()}) > 1:
            yield "node heads of type 'conv' must be so in all branches"

    @property
    def branches(self) -> int:
        """Number of branches, one for each data set; 0 without heads."""
        return len(self.graph or self.node or ())


Activation = Literal[
    "relu",
    "silu",
    "selu",
    "gelu",
    "tanh",
    "prelu",
    "elu",
    "lrelu_01",
    "lrelu_025",
    "lrelu_05",
    "sigmoid",
]


# Strict, or the union with a list would take '3' and true for numbers.
_Order = Annotated[int, Field(ge=1, le=8, strict=True)]

# No network beyond these fits a machine: a square matrix of the largest width takes 4 TB. The
# limits catch typing errors before a network is built.
_WIDEST, _DEEPEST = 1_000_000, 1000

GPS, EQUIVARIANT_TRANSFORMER = "GPS", "EquivariantTransformer"
"""Values of `global_attn_engine`."""
_EQUIVARIANT = "equivariant_attn_"
_NULL_FOR_ALL = "equivariant_attn_chunk_size"
WITH_EQUIVARIANT_ATTENTION = ("PAINN", "PNAEq", "MACE", "SchNet", "DimeNet")
"""Message-passing types that support the equivariant transformer, as in HydraGNN."""

LENGTHS = ("lengths", "length", "bond_length")
"""Names by which `edge_features` asks for the lengths of edges."""
_LENGTH = LENGTHS[0]


class LayerStatistics(Section):
    """`NeuralNetwork.Architecture.statistics`: data statistics that layers were built for.

    `start_from` sets this section, so that its weights compute the same in a new run as in the run
    that trained them. HydraGNN has no such section.
    """

    average_neighbours: float = Field(ge=1)
    """Mean number of neighbours of an atom. Most message-passing types divide sums over neighbours
    by its square root."""
    degree_histogram: tuple[int, ...] = Field(min_length=1)
    """Number of atoms with 0, 1, 2, … neighbours. Read by PNA, PNAPlus, PNAEq and MFC."""
    elements: tuple[int, ...] = ()
    """Atomic numbers in ascending order, for the weights of MACE."""


class CommonArchitecture(Section):
    """Keys of `Architecture` that the store and the loss read, whatever builds the network."""

    radius: float | None = Field(default=None, gt=0)
    """Cutoff of the neighbour list [Å]."""
    max_neighbours: int | None = Field(default=None, ge=1)
    """Number of nearest neighbours that are kept for each atom. Further neighbours at the same
    distance as the last are kept too. By default all neighbours within ``radius``."""
    truncated_neighbours: Literal["refuse", "allow"] = "refuse"
    """``allow`` lets ``max_neighbours`` cut the neighbour lists of a potential, although its energy
    then jumps when an atom's nearest neighbours change."""
    enable_interatomic_potential: bool = False
    """Potential mode: the one head is the energy, and forces are minus its gradient."""
    energy_weight: float = Field(default=0.0, ge=0)
    """Weight of the loss on total energies. A potential that leaves out ``energy_weight``,
    ``energy_peratom_weight`` and ``force_weight`` has an ``energy_peratom_weight`` of 40 and a
    ``force_weight`` of 1."""
    energy_peratom_weight: float = Field(default=0.0, ge=0)
    """Weight of the loss on energies per atom."""
    force_weight: float = Field(default=0.0, ge=0)
    """Weight of the loss on forces."""
    stress_weight: float = Field(default=0.0, ge=0)
    """Weight of the loss on stresses of periodic cells."""
    task_weights: tuple[float, ...] | None = None
    """Weight of each output's loss, normalised to sum to one."""

    def _conflicts(self) -> Iterator[str]:
        weights = (self.energy_weight, self.energy_peratom_weight, self.force_weight)
        if self.enable_interatomic_potential and not any(weights):
            yield (
                "enable_interatomic_potential needs a weight above zero for at least one of "
                "energy_weight, energy_peratom_weight and force_weight"
            )


class Architecture(CommonArchitecture):
    """`NeuralNetwork.Architecture`: message-passing type, size and heads of the network."""

    mpnn_type: str = Field(examples=list(MPNN_TYPES))
    """Message-passing type. ``module:Class`` names one of your own."""
    mpnn_options: dict[str, Scalar] = Field(default={})
    """Options of a message-passing type of your own."""
    hidden_dim: int = Field(ge=1, le=_WIDEST)
    """Width of node features."""
    num_conv_layers: int = Field(ge=1, le=_DEEPEST)
    """Number of message-passing layers."""
    activation_function: Activation = "relu"
    """Activation of heads and of most node updates. PAINN, PNAEq, DimeNet, MACE and messages of
    EGNN and SchNet have their own. Forces need a smooth one, such as `silu`."""
    normalization: Literal["none", "layer", "graph"] | None = None
    """Normalisation of node features in each layer. By default ``layer`` for global attention and
    for types that HydraGNN normalises over the batch (PNA, PNAPlus, CGCNN, GIN, GAT, MFC), else
    ``none``."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout rate of attention weights, also global ones. HydraGNN uses 0.25."""
    edge_features: tuple[str, ...] | None = None
    """Names of the edge features, in the order of the store's columns. `lengths` (or `length`,
    `bond_length`) are computed from the positions."""
    equivariance: bool = False
    """Let message-passing layers also change the positions of atoms."""

    num_gaussians: int = Field(default=50, ge=2, le=1000)
    """Number of Gaussians that encode an edge length."""
    num_filters: int | None = Field(default=None, ge=1, le=_WIDEST)
    """Width of the filters. By default ``hidden_dim``."""
    num_radial: int = Field(default=6, ge=1, le=1000)
    """Number of radial functions."""
    envelope_exponent: int = Field(default=5, ge=2, le=100)
    """Exponent of the polynomial cutoff."""
    num_spherical: int = Field(default=7, ge=2, le=64)
    """Number of angular functions."""
    basis_emb_size: int = Field(default=8, ge=1, le=_WIDEST)
    """Width of the embedded basis."""
    int_emb_size: int = Field(default=64, ge=1, le=_WIDEST)
    """Width of the messages between edges."""
    out_emb_size: int = Field(default=128, ge=1, le=_WIDEST)
    """Width of the output blocks."""
    num_before_skip: int = Field(default=1, ge=0, le=_DEEPEST)
    """Number of residual layers before the skip connection."""
    num_after_skip: int = Field(default=2, ge=0, le=_DEEPEST)
    """Number of residual layers after the skip connection."""
    radial_type: Literal["bessel", "gaussian", "chebyshev"] = "bessel"
    """Kind of radial functions."""
    distance_transform: Literal["Agnesi", "Soft"] | None = None
    """Transform of the lengths before the radial functions."""
    max_ell: int = Field(default=1, ge=1, le=12)
    """Highest degree of the spherical harmonics of edges."""
    node_max_ell: int = Field(default=1, ge=0, le=12)
    """Highest degree of node features."""
    correlation: _Order | tuple[_Order, ...] = 2
    """Order of the many-body features, for all layers or for each."""

    global_attn_engine: Literal["GPS", "EquivariantTransformer"] | None = None
    """Attention over all atoms of a graph, in addition to message passing: by invariant features
    (``GPS``), or also by equivariant ones and positions, with PAINN, PNAEq, MACE, SchNet and
    DimeNet."""
    global_attn_type: Literal["multihead", "performer"] = "multihead"
    """Attention of every atom to every other, or its approximation in linear time (``performer``).
    Read with ``GPS``."""
    global_attn_heads: int = Field(default=1, ge=1)
    """Number of attention heads. With ``GPS`` it must divide ``hidden_dim``; with
    ``EquivariantTransformer`` each head has that width."""
    pe_dim: int = Field(default=0, ge=0)
    """Number of columns of the positional encodings ``pe`` of atoms and ``rel_pe`` of edges. Read
    with ``GPS``."""
    equivariant_attn_lmax: int = Field(default=1, ge=0, le=12)
    """Highest degree of the spherical harmonics of directions between atoms."""
    equivariant_attn_num_radial: int = Field(default=16, ge=1, le=1000)
    """Number of radial functions."""
    equivariant_attn_feedforward_multiplier: int = Field(default=2, ge=1, le=1000)
    """Width of the perceptron behind the attention, in multiples of ``hidden_dim``."""
    equivariant_attn_chunk_size: int | None = Field(default=512, ge=1)
    """Number of atoms that attend at a time, null for all; affects memory and time only."""
    equivariant_attn_coupling_mode: Literal["parallel", "sequential"] = "parallel"
    """Attention alongside message passing (``parallel``), or on its result (``sequential``)."""

    use_graph_attr_conditioning: bool = False
    """Let the network read ``graph_attr``, the quantities of whole structures."""
    graph_attr_conditioning_mode: Literal["concat_node", "film", "fuse_pool"] = "concat_node"
    """Use of ``graph_attr``: append it to the features of atoms (``concat_node``) or to the pooled
    features (``fuse_pool``), or scale and shift the features of atoms by it (``film``)."""

    graph_pooling: Literal["mean", "add", "sum", "max"] = "mean"
    """Pooling of node features into features of the graph. ``sum`` means the same as ``add``."""
    freeze_conv_layers: bool = False
    """Train only the heads."""
    statistics: LayerStatistics | None = None
    """Statistics of the data that the layers were built for: mean number of neighbours, degree
    histogram and elements. By default the statistics of the store; ``start_from`` sets the
    statistics for which its weights were trained."""
    initial_bias: float | None = None
    """Initial bias of the last layer of graph heads, in units of the target's spread."""
    output_heads: OutputHeads
    """Layers from the features to the outputs."""
    unused, refused = IGNORED["Architecture"], REFUSED["Architecture"]

    @property
    def asks_for_lengths(self) -> bool:
        """True if the key `edge_features` names the lengths of edges."""
        return any(name in LENGTHS for name in self.edge_features or ())

    @property
    def sees_lengths(self) -> bool:
        """True if the message-passing layers read the lengths of edges."""
        lengths = properties_of(self.mpnn_type).lengths
        if lengths == "request":
            return self.asks_for_lengths or self.enable_interatomic_potential
        return lengths == "always"

    @property
    def attribute_columns(self) -> tuple[int, ...]:
        """Indices of the columns of the store's edge features that the network reads."""
        names = self.edge_features or ()
        return tuple(column for column, name in enumerate(names) if name not in LENGTHS)

    @property
    def encodings(self) -> int:
        """Number of columns of positional encodings that the network reads; 0 if it reads none."""
        return self.pe_dim if self.global_attn_engine == GPS else 0

    def unread(self) -> set[str]:
        """Return the keys of `Architecture` that have no effect, given the values of other keys."""
        properties = properties_of(self.mpnn_type)
        unread = READ_BY.keys() - set(properties.keys)
        if properties.options is None:
            unread.add("mpnn_options")
        if self.global_attn_engine is None:
            unread.add("global_attn_heads")
        if self.global_attn_engine == GPS:
            unread.discard("dropout")
        else:
            unread |= {"global_attn_type", "pe_dim"}
        if self.global_attn_engine != EQUIVARIANT_TRANSFORMER:
            unread |= {key for key in type(self).model_fields if key.startswith(_EQUIVARIANT)}
        if not self.use_graph_attr_conditioning:
            unread.add("graph_attr_conditioning_mode")
        if not self.enable_interatomic_potential:
            unread.add("truncated_neighbours")
        return unread

    @field_validator("mpnn_type")
    @classmethod
    def _known_type(cls, name: str) -> str:
        unknown = set(properties_of(name).keys) - set(cls.model_fields)
        if unknown:
            raise ValueError(
                f"properties.keys of {name} names {min(unknown)!r}, which is no key of "
                f"Architecture; correct it, or make it an option"
            )
        return name

    @model_validator(mode="before")
    @classmethod
    def _hydragnn_keys(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        # HydraGNN writes null for keys that are not given; some of its files have an empty word.
        values = {
            key: value
            for key, value in values.items()
            if (value is not None and value != "") or (value is None and key == _NULL_FOR_ALL)
        }
        engine = values.get("global_attn_engine")
        if engine is None and values.get("global_attn_heads") == 0:
            del values["global_attn_heads"]  # HydraGNN's value for no attention
        return values | default_weights(values)

    def _conflicts(self) -> Iterator[str]:
        yield from super()._conflicts()
        kind, properties = self.mpnn_type, properties_of(self.mpnn_type)
        if properties.options is not None:
            try:
                properties.options.model_validate(self.mpnn_options)
            except ValidationError as error:
                yield str(explain(error, "mpnn_options"))
        blind, potential = properties.lengths == "never", self.enable_interatomic_potential
        for name in self.edge_features or ():
            if blind if name in LENGTHS else not properties.edge_attributes:
                yield (
                    f"edge_features names {name!r}, which mpnn_type = {kind!r} does not read; "
                    f"remove it or choose another type"
                )
        if blind and potential:
            yield (
                f"enable_interatomic_potential does not fit mpnn_type = {kind!r}: it sees no "
                f"lengths, so that its energy has no forces; choose another type"
            )
        names = [_LENGTH if name in LENGTHS else name for name in self.edge_features or ()]
        if len(set(names)) != len(names):
            yield (
                f"edge_features = {list(self.edge_features or ())} names one twice; name each once"
            )
        if potential and set(names) - {_LENGTH}:
            other = next(name for name in names if name != _LENGTH)
            yield (
                f"edge_features names {other!r}, which does not follow the positions as "
                f"enable_interatomic_potential needs it; keep ['lengths'] alone or remove the key"
            )
        if self.global_attn_engine == GPS and self.hidden_dim % self.global_attn_heads:
            yield (
                f"hidden_dim = {self.hidden_dim} cannot be divided among global_attn_heads = "
                f"{self.global_attn_heads}; make it a multiple"
            )
        if self.global_attn_engine == EQUIVARIANT_TRANSFORMER:
            given = f"global_attn_engine = {EQUIVARIANT_TRANSFORMER!r} does not fit"
            if kind not in WITH_EQUIVARIANT_ATTENTION:
                known = ", ".join(WITH_EQUIVARIANT_ATTENTION)
                yield f"{given} mpnn_type = {kind!r}; choose one of {known}, or write 'GPS'"
            if self.equivariance and "equivariance" in properties.keys:
                yield f"{given} layers that move the atoms; set equivariance to false"
        orders = self.correlation if "correlation" in properties.keys else 1
        if isinstance(orders, tuple) and len(orders) != self.num_conv_layers:
            yield (
                f"correlation lists {len(orders)} orders for num_conv_layers = "
                f"{self.num_conv_layers}; give one for each layer, or one number for all"
            )
        highest = max(orders) if isinstance(orders, tuple) else orders
        # Products of harmonics that MACE multiplies neighbours by, at each atom and feature.
        products = (self.max_ell + 1) ** (2 * highest)
        if "correlation" in properties.keys and products > 2**17:
            yield (
                f"correlation = {highest} with max_ell = {self.max_ell} makes {products:,} "
                f"products of harmonics ((max_ell + 1) to the power of 2 · correlation), and more "
                f"than {2**17:,} cannot be computed; lower one of them"
            )
