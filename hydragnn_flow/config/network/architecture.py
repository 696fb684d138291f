"""`NeuralNetwork.Architecture`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hydragnn_flow.config.base import Section
from hydragnn_flow.config.network.heads import OutputHeads
from hydragnn_flow.config.network.hydragnn_keys import IGNORED, drop_unused

MpnnType = Literal[
    "SchNet",
    "EGNN",
    "PAINN",
    "PNAEq",
    "DimeNet",
    "MACE",
    "PNA",
    "PNAPlus",
    "CGCNN",
    "GIN",
    "GAT",
    "SAGE",
    "MFC",
]
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

# Beyond these no network has been trained and none fits a machine: a square matrix of the largest
# width takes 4 TB. They catch slips before something tries to build it.
_WIDEST, _DEEPEST = 1_000_000, 1000
# Products of harmonics that MACE multiplies neighbours by, at each atom and for each feature.
_MOST_PRODUCTS = 2**17

LENGTHS = ("lengths", "length", "bond_length")
"""Names by which `edge_features` asks for the lengths of edges."""
_LENGTH = LENGTHS[0]
READ_BY: dict[str, tuple[MpnnType, ...]] = {
    "num_gaussians": ("SchNet", "EGNN", "CGCNN", "GAT", "PNA"),
    "num_filters": ("SchNet",),
    "num_radial": ("PAINN", "PNAEq", "PNAPlus", "DimeNet", "MACE"),
    "envelope_exponent": ("PNAPlus", "DimeNet", "MACE"),
    "num_spherical": ("DimeNet",),
    "basis_emb_size": ("DimeNet",),
    "int_emb_size": ("DimeNet",),
    "out_emb_size": ("DimeNet",),
    "num_before_skip": ("DimeNet",),
    "num_after_skip": ("DimeNet",),
    "radial_type": ("MACE",),
    "distance_transform": ("MACE",),
    "max_ell": ("MACE",),
    "node_max_ell": ("MACE",),
    "correlation": ("MACE",),
    "equivariance": ("EGNN", "SchNet"),
}
"""Keys that only some message-passing types read; they may stand with every type."""


class Architecture(Section):
    """`NeuralNetwork.Architecture`."""

    mpnn_type: MpnnType
    """Message-passing type."""
    hidden_dim: int = Field(ge=1, le=_WIDEST)
    """Width of node features."""
    num_conv_layers: int = Field(ge=1, le=_DEEPEST)
    """Number of message-passing layers."""
    radius: float | None = Field(default=None, gt=0)
    """Cutoff of the neighbour list [Å]."""
    max_neighbours: int | None = Field(default=None, ge=1)
    """Nearest neighbours kept per atom. By default all within the radius."""
    truncated_neighbours: Literal["refuse", "allow"] = "refuse"
    """What happens to a potential if ``max_neighbours`` drops neighbours within the radius: its
    energy then jumps when neighbours change places, and its forces are not the gradient."""
    activation_function: Activation = "relu"
    """Activation of heads and of the node updates of most types. PAINN, PNAEq, DimeNet, MACE and
    the messages of EGNN and SchNet have smooth activations of their own. Forces need a smooth
    activation, such as `silu`."""
    normalization: Literal["none", "layer", "graph"] | None = None
    """Normalisation of node features in each layer. The default is ``layer`` for PNA, PNAPlus,
    CGCNN, GIN, GAT and MFC, which HydraGNN normalises over the batch, and for global attention. It
    is ``none`` for the other types."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout rate in GAT's attention and in global attention. HydraGNN uses 0.25."""
    edge_features: tuple[str, ...] | None = None
    """Edge features, in the order of the store's columns. A column called `lengths` (or `length`,
    `bond_length`) is computed from the positions."""
    equivariance: bool = False
    """Whether layers of EGNN and SchNet also move the atoms. PAINN, PNAEq and MACE are equivariant
    by themselves, and the other types do not read this key."""

    num_gaussians: int = Field(default=50, ge=2, le=1000)
    """Number of Gaussians that encode an edge length: SchNet, EGNN, CGCNN, GAT and PNA."""
    num_filters: int | None = Field(default=None, ge=1, le=_WIDEST)
    """Width of SchNet's filters. By default ``hidden_dim``."""
    num_radial: int = Field(default=6, ge=1, le=1000)
    """Number of radial functions: PAINN, PNAEq, PNAPlus, DimeNet and MACE."""
    envelope_exponent: int = Field(default=5, ge=2, le=100)
    """Exponent of the polynomial cutoff: PNAPlus, DimeNet and MACE."""
    num_spherical: int = Field(default=7, ge=2, le=64)
    """DimeNet: number of angular functions."""
    basis_emb_size: int = Field(default=8, ge=1, le=_WIDEST)
    """DimeNet: width of the embedded basis."""
    int_emb_size: int = Field(default=64, ge=1, le=_WIDEST)
    """DimeNet: width of the messages between edges."""
    out_emb_size: int = Field(default=128, ge=1, le=_WIDEST)
    """DimeNet: width of the output blocks."""
    num_before_skip: int = Field(default=1, ge=0, le=_DEEPEST)
    """DimeNet: residual layers before the skip connection."""
    num_after_skip: int = Field(default=2, ge=0, le=_DEEPEST)
    """DimeNet: residual layers after the skip connection."""
    radial_type: Literal["bessel", "gaussian", "chebyshev"] = "bessel"
    """MACE: kind of radial functions."""
    distance_transform: Literal["Agnesi", "Soft"] | None = None
    """MACE: transform of the lengths before the radial functions."""
    max_ell: int = Field(default=1, ge=1, le=12)
    """MACE: highest degree of the spherical harmonics of edges."""
    node_max_ell: int = Field(default=1, ge=0, le=12)
    """MACE: highest degree of node features."""
    correlation: _Order | tuple[_Order, ...] = 2
    """MACE: order of the many-body features. One number for all layers, or one for each."""

    global_attn_engine: Literal["GPS"] | None = None
    """Attention over all atoms of a graph, beside message passing."""
    global_attn_type: Literal["multihead", "performer"] = "multihead"
    """``multihead``: attention of every atom to every other; ``performer``: its approximation in
    linear time."""
    global_attn_heads: int = Field(default=1, ge=1)
    """Number of attention heads. It must divide ``hidden_dim``."""
    pe_dim: int = Field(default=0, ge=0)
    """Number of columns of the graphs' positional encodings, ``pe`` of atoms and ``rel_pe`` of
    edges. Read with ``global_attn_engine``."""

    use_graph_attr_conditioning: bool = False
    """Whether the network reads the graphs' key ``graph_attr``."""
    graph_attr_conditioning_mode: Literal["concat_node", "film", "fuse_pool"] = "concat_node"
    """How the network uses ``graph_attr``: ``concat_node`` appends it to every atom's features,
    ``film`` scales and shifts them by it, ``fuse_pool`` appends it to the pooled features."""

    graph_pooling: Literal["mean", "add", "sum", "max"] = "mean"
    """How node features become features of the graph. ``sum`` is the same as ``add``."""
    enable_interatomic_potential: bool = False
    """Potential mode: the one head is the energy, and forces are minus its gradient."""
    energy_weight: float = Field(default=0.0, ge=0)
    """Weight of the potential's loss on total energies."""
    energy_peratom_weight: float = Field(default=0.0, ge=0)
    """Weight of the loss on energies per atom."""
    force_weight: float = Field(default=0.0, ge=0)
    """Weight of the loss on forces."""
    stress_weight: float = Field(default=0.0, ge=0)
    """Weight of the loss on stresses of periodic cells."""
    freeze_conv_layers: bool = False
    """Whether training changes only the heads."""
    initial_bias: float | None = None
    """Initial bias of the last layer of graph heads, in units of the target's spread."""
    output_heads: OutputHeads
    """Layers from the features to the outputs."""
    task_weights: tuple[float, ...] | None = None
    """Weight of each output's loss. The weights are normalised to sum to one."""

    unused = IGNORED["Architecture"]

    @property
    def asks_for_lengths(self) -> bool:
        """Whether `edge_features` names the lengths."""
        return any(name in LENGTHS for name in self.edge_features or ())

    @property
    def attribute_columns(self) -> tuple[int, ...]:
        """Columns of the store's edge features that `edge_features` asks for beside lengths."""
        names = self.edge_features or ()
        return tuple(column for column, name in enumerate(names) if name not in LENGTHS)

    def unread(self) -> set[str]:
        """Keys that, as the others stand, change nothing."""
        unread = {key for key, types in READ_BY.items() if self.mpnn_type not in types}
        if self.global_attn_engine is None:
            unread |= {"global_attn_type", "global_attn_heads", "pe_dim"}
            unread |= {"dropout"} if self.mpnn_type != "GAT" else set()
        if not self.use_graph_attr_conditioning:
            unread.add("graph_attr_conditioning_mode")
        if not self.enable_interatomic_potential:
            unread.add("truncated_neighbours")
        return unread

    @model_validator(mode="before")
    @classmethod
    def _hydragnn_keys(cls, values: Any) -> Any:
        values = drop_unused("Architecture", values)
        if not isinstance(values, dict):
            return values
        # HydraGNN writes null, and some of its files an empty word, for what is not given.
        values = {key: value for key, value in values.items() if value is not None and value != ""}
        engine = values.get("global_attn_engine")
        if engine is None and values.get("global_attn_heads") == 0:
            del values["global_attn_heads"]  # HydraGNN's word for no attention
        if engine == "EquivariantTransformer":
            raise ValueError(
                "global_attn_engine = 'EquivariantTransformer' cannot be honoured: equivariant "
                "attention is not built; write 'GPS' or remove the key"
            )
        return values

    @model_validator(mode="after")
    def _edges_of_the_type(self) -> Architecture:
        blind = self.mpnn_type in ("GIN", "SAGE", "MFC")
        if blind and self.edge_features:
            raise ValueError(
                f"edge_features = {list(self.edge_features)} does not fit mpnn_type = "
                f"{self.mpnn_type!r}, which reads none; remove the key or choose another type"
            )
        if blind and self.enable_interatomic_potential:
            raise ValueError(
                f"enable_interatomic_potential does not fit mpnn_type = {self.mpnn_type!r}: it "
                f"sees no lengths, so that its energy has no forces; choose another type"
            )
        names = [_LENGTH if name in LENGTHS else name for name in self.edge_features or ()]
        if len(set(names)) != len(names):
            raise ValueError(
                f"edge_features = {list(self.edge_features or ())} names one twice; name each once"
            )
        if self.enable_interatomic_potential and set(names) - {_LENGTH}:
            other = next(name for name in names if name != _LENGTH)
            raise ValueError(
                f"edge_features names {other!r}, which does not follow the positions as "
                f"enable_interatomic_potential needs it; keep ['lengths'] alone or remove the key"
            )
        return self

    @model_validator(mode="after")
    def _attention_in_even_parts(self) -> Architecture:
        if self.global_attn_engine is not None and self.hidden_dim % self.global_attn_heads:
            raise ValueError(
                f"hidden_dim = {self.hidden_dim} cannot be shared by global_attn_heads = "
                f"{self.global_attn_heads}; make it a multiple"
            )
        return self

    @model_validator(mode="after")
    def _orders_of_mace(self) -> Architecture:
        orders = self.correlation if self.mpnn_type == "MACE" else 1
        if isinstance(orders, tuple) and len(orders) != self.num_conv_layers:
            raise ValueError(
                f"correlation lists {len(orders)} orders for num_conv_layers = "
                f"{self.num_conv_layers}; give one for each layer, or one number for all"
            )
        highest = max(orders) if isinstance(orders, tuple) else orders
        products = (self.max_ell + 1) ** (2 * highest)
        if self.mpnn_type == "MACE" and products > _MOST_PRODUCTS:
            raise ValueError(
                f"correlation = {highest} with max_ell = {self.max_ell} makes {products:,} "
                f"products of harmonics ((max_ell + 1) to the power of 2 · correlation), and more "
                f"than {_MOST_PRODUCTS:,} cannot be computed; lower one of them"
            )
        return self

    @model_validator(mode="after")
    def _weighted_potential(self) -> Architecture:
        weights = (self.energy_weight, self.energy_peratom_weight, self.force_weight)
        if self.enable_interatomic_potential and not any(weights):
            raise ValueError(
                "enable_interatomic_potential needs a weight above zero for at least one of "
                "energy_weight, energy_peratom_weight and force_weight"
            )
        return self
