"""Build a model, with its encoder, from HydraGNN's JSON and a store's manifest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hydragnn_flow.config.network import (
    Architecture,
    EngineNetwork,
    HydraNetwork,
    NetworkConfig,
    load_network,
)
from hydragnn_flow.config.network.architecture import EQUIVARIANT_TRANSFORMER, GPS
from hydragnn_flow.config.network.mpnn_types import properties_of
from hydragnn_flow.data import GraphStore, Manifest
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.batch_inputs import BatchInputs
from hydragnn_flow.models.build_outputs import build_potential, build_properties, head_context
from hydragnn_flow.models.embedding import ATOMIC_NUMBER, NodeEmbedding
from hydragnn_flow.models.engine import build_with_engine
from hydragnn_flow.models.global_attention.attention import (
    GlobalAttention,
    GPSLayer,
    PerformerAttention,
)
from hydragnn_flow.models.global_attention.equivariant_attention import (
    EquivariantAttention,
    EquivariantTransformerLayer,
    Perceptron,
)
from hydragnn_flow.models.layers import FiLM, Join, Normalization, QuietLinear
from hydragnn_flow.models.model import Encoder, HydraModel, Model, PropertyModel
from hydragnn_flow.models.mpnn import DatasetStatistics, MessagePassing, make_stack
from hydragnn_flow.models.mpnn.layers import Convolution, Followed
from hydragnn_flow.models.potential import PotentialModel

# Networks learn in fewer steps if attention and perceptron begin with outputs that are smaller than
# what they are added to.
_BEGIN = 0.4


def build_encoder(
    config: HydraNetwork, manifest: Manifest, statistics: DatasetStatistics
) -> Encoder:
    """Return the encoder of a network: embedding of atoms, then message-passing layers.

    Parameters
    ----------
    config
        Checked configuration of the network.
    manifest
        Manifest of the store whose graphs the encoder will read.
    statistics
        Statistics of the training split, from :func:`dataset_statistics`.

    Raises
    ------
    InputError
        If the network reads something that the graphs lack.
    """
    architecture = config.Architecture
    columns = manifest.node_features
    read = config.Variables_of_interest.input_node_features
    for index in read:
        if not 0 <= index < len(columns):
            raise InputError(
                f"network: Variables_of_interest.input_node_features names column {index}, but "
                f"the store's node features are {', '.join(columns)}; count from 0"
            )
    if not read or len(set(read)) != len(read):
        raise InputError(
            "network: Variables_of_interest.input_node_features needs at least one column, each "
            "once; [0] is the atomic number"
        )
    width, inputs = architecture.hidden_dim, batch_inputs(architecture, manifest)
    embedding = NodeEmbedding(columns, read, width, inputs.encodings)
    stack = make_stack(architecture, statistics, width, architecture.num_conv_layers)
    wrap_layers(stack, architecture, inputs)
    if architecture.freeze_conv_layers:
        embedding.requires_grad_(False)
        stack.requires_grad_(False)
    # After freezing: the fusion is trained with the heads.
    fusion = fusion_with_graphs(stack, config, inputs)
    return Encoder(embedding, stack, statistics.cutoff, inputs, fusion)


def dataset_statistics(architecture: Architecture, manifest: Manifest) -> DatasetStatistics:
    """Return the statistics of the training split that a network's layers need.

    The degrees and elements come from `Architecture.statistics` if that is given, otherwise from
    the store.

    Raises
    ------
    InputError
        If the network needs other neighbour lists or edge features than the store has.
    """
    _check_attributes(architecture, manifest)
    cutoff = architecture.radius or manifest.cutoff
    if cutoff is None:
        raise InputError(
            "network: Architecture.radius [Å] is required: the store does not say the cutoff of "
            "its neighbour lists"
        )
    if manifest.cutoff is not None and cutoff > manifest.cutoff:
        raise InputError(
            f"network: Architecture.radius = {cutoff} Å is beyond the store's neighbour lists, "
            f"which end at {manifest.cutoff} Å; lower it or prepare the store anew"
        )
    asked, kept = architecture.max_neighbours, manifest.max_neighbours
    if asked is not None and kept is not None and asked != kept:
        raise InputError(
            f"network: Architecture.max_neighbours = {asked}, but the store's neighbour lists keep "
            f"{kept}; write {kept} or prepare the store anew"
        )
    shortened = manifest.cutoff is not None and cutoff < manifest.cutoff
    if shortened and not architecture.sees_lengths:
        raise InputError(
            f"network: Architecture.radius = {cutoff} Å cannot shorten the store's neighbour "
            f"lists of {manifest.cutoff} Å for a {architecture.mpnn_type} that sees no lengths; "
            f"set Architecture.edge_features to ['lengths'] or prepare the store anew"
        )
    n_attributes = batch_inputs(architecture, manifest).n_edge_attributes
    if (given := architecture.statistics) is not None:
        return DatasetStatistics(float(cutoff), **dict(given), n_attributes=n_attributes)
    of_split = manifest.statistics
    elements = tuple(z for z in manifest.elements if z not in manifest.unseen)
    return DatasetStatistics(
        cutoff=float(cutoff),
        average_neighbours=max(float(of_split.avg_num_neighbors), 1.0),
        degree_histogram=tuple(of_split.degree_histogram),
        elements=elements if ATOMIC_NUMBER in manifest.node_features else (),
        n_attributes=n_attributes,
    )


def _check_attributes(architecture: Architecture, manifest: Manifest) -> None:
    names = architecture.edge_features or ()
    key = manifest.keys.get("edge_attr")
    available = key.shape[0] if key is not None and key.shape else 0
    if architecture.attribute_columns and len(names) > available:
        raise InputError(
            f"network: Architecture.edge_features names {len(names)} columns, but the store's "
            f"edges have {available}; name them in the store's order, lengths first"
        )


def batch_inputs(architecture: Architecture, manifest: Manifest) -> BatchInputs:
    """Return which optional keys of a batch of graphs, such as ``edge_attr``, a network reads.

    Raises
    ------
    InputError
        If the store's graphs lack one of these keys, or have it with another number of columns.
    """
    encodings = architecture.encodings
    reads_edges = properties_of(architecture.mpnn_type).edge_attributes
    of_edges = encodings if reads_edges else 0
    for key, level, needed in (("pe", "node", encodings), ("rel_pe", "edge", of_edges)):
        found = manifest.keys.get(key)
        if found is not None and not getattr(found, level):
            found = None  # something else of that name
        if needed and (found is None or found.shape != (needed,)):
            has = "have none" if found is None else f"have one of shape {list(found.shape)}"
            raise InputError(
                f"network: Architecture.pe_dim = {needed} needs the key {key!r} with that "
                f"number of columns, but the store's graphs {has}; set pe_dim to 0 or bring the key"
            )
    return BatchInputs(
        edge_columns=architecture.attribute_columns,
        encodings=encodings,
        edge_encodings=encodings if reads_edges else 0,
        graph_attr=_graph_attr(manifest) if architecture.use_graph_attr_conditioning else 0,
        whole_graphs=architecture.global_attn_engine is not None,
        space=architecture.global_attn_engine == EQUIVARIANT_TRANSFORMER,
    )


def _graph_attr(manifest: Manifest) -> int:
    """Return the number of features per graph in the store's key ``graph_attr``."""
    key = manifest.keys.get("graph_attr")
    size = math.prod(key.shape) * (key.rows or 0) if key is not None else 0
    if not size:
        raise InputError(
            "network: Architecture.use_graph_attr_conditioning needs the key 'graph_attr', with as "
            "many features in every graph, which the store's graphs do not have; bring it or set "
            "use_graph_attr_conditioning to false"
        )
    return size


def wrap_layers(stack: MessagePassing, architecture: Architecture, inputs: BatchInputs) -> None:
    """Wrap each message-passing layer, in place, in the extra modules that an architecture names.

    From the innermost to the outermost, these modules are normalisation, global attention, and
    conditioning on graph features.
    """
    kind = architecture.normalization or "none"
    if kind != "none" and not isinstance(stack.layers[0], Convolution):
        width = architecture.hidden_dim
        stack.wrap(lambda layer: Followed(layer, Normalization(kind, width)))
    if architecture.global_attn_engine == GPS:
        stack.wrap(partial(_with_attention, architecture))
    elif architecture.global_attn_engine == EQUIVARIANT_TRANSFORMER:
        degrees = pairwise(stack.degrees)
        stack.wrap(lambda layer: _with_equivariant_attention(architecture, *next(degrees), layer))
    if inputs.graph_attr and architecture.graph_attr_conditioning_mode != "fuse_pool":
        stack.wrap(partial(_with_conditioning, architecture, inputs.graph_attr))


def _with_attention(architecture: Architecture, layer: nn.Module) -> nn.Module:
    width, heads = architecture.hidden_dim, architecture.global_attn_heads
    performer = architecture.global_attn_type == "performer"
    attention = PerformerAttention if performer else GlobalAttention
    return GPSLayer(
        layer,
        attention(width, heads, architecture.dropout),
        width,
        architecture.activation_function,
        architecture.normalization,
        architecture.dropout,
    )


def _with_equivariant_attention(
    architecture: Architecture, before: int, after: int, layer: nn.Module
) -> nn.Module:
    """Return a layer wrapped in equivariant attention.

    ``before`` and ``after`` are the highest degrees of the layer's input and output features.
    """
    sequential = architecture.equivariant_attn_coupling_mode == "sequential"
    width = architecture.hidden_dim
    attention = EquivariantAttention(
        width,
        after if sequential else before,
        after,
        architecture.global_attn_heads,
        architecture.equivariant_attn_lmax,
        architecture.equivariant_attn_num_radial,
        architecture.equivariant_attn_chunk_size,
        _BEGIN,
    )
    multiplier = architecture.equivariant_attn_feedforward_multiplier
    return EquivariantTransformerLayer(
        layer, attention, Perceptron(after, width, multiplier, _BEGIN), sequential=sequential
    )


def _with_conditioning(architecture: Architecture, size: int, layer: nn.Module) -> nn.Module:
    width = architecture.hidden_dim
    if architecture.graph_attr_conditioning_mode == "film":
        return Followed(layer, FiLM(width, size, architecture.activation_function))
    return Followed(layer, Join(width, size))


def fusion_with_graphs(
    stack: MessagePassing, config: HydraNetwork, inputs: BatchInputs
) -> Join | None:
    """Return the layer that joins graph features (``graph_attr``) to pooled atom features.

    The result is None unless `graph_attr_conditioning_mode` is fuse_pool. A potential does not
    pool. For a potential in this mode, the layer is appended in place to the last message-passing
    layer of ``stack``, and the result is None.

    Raises
    ------
    InputError
        If the mode is fuse_pool, and the network is not a potential and has no graph outputs.
    """
    architecture, size = config.Architecture, inputs.graph_attr
    if not size or architecture.graph_attr_conditioning_mode != "fuse_pool":
        return None
    fusion = Join(architecture.hidden_dim, size)
    if architecture.enable_interatomic_potential:
        # A potential's energy is a sum over atoms, so graph features are joined to each atom's.
        stack.layers[-1] = Followed(stack.layers[-1], fusion)
        return None
    if "graph" not in config.Variables_of_interest.type:
        raise InputError(
            "network: Architecture.graph_attr_conditioning_mode = 'fuse_pool' acts on graph "
            "outputs, and there are none; write 'concat_node' or 'film'"
        )
    return fusion


def build_model(
    network: NetworkConfig | Mapping[str, Any] | str | Path, store: GraphStore | Manifest
) -> Model:
    """Build the model that a network configuration describes, for a store's graphs.

    Weights are new. They are drawn from torch's global random numbers, so call
    ``torch.manual_seed`` before.

    Parameters
    ----------
    network
        HydraGNN's JSON, as a checked configuration, a mapping or the path of a file.
    store
        Store or manifest with targets, cutoff and statistics of the training split.

    Returns
    -------
    Model
        A :class:`~hydragnn_flow.models.potential.Potential` if `enable_interatomic_potential` is
        set, otherwise a model with an output for each target.

    Raises
    ------
    InputError
        If the network needs something that the store lacks, or its engine (external library) cannot
        build the network.
    """
    config = load_network(network)
    manifest = store if isinstance(store, Manifest) else store.manifest
    if isinstance(config, EngineNetwork):
        return build_with_engine(config, manifest)
    assert isinstance(config, HydraNetwork)
    return _build_here(config, manifest)


def _build_here(config: HydraNetwork, manifest: Manifest) -> HydraModel:
    statistics = dataset_statistics(config.Architecture, manifest)
    encoder = build_encoder(config, manifest, statistics)
    context = head_context(config.Architecture, manifest, statistics)
    is_potential = config.Architecture.enable_interatomic_potential
    build = build_potential if is_potential else build_properties
    model = build(config, manifest, encoder, context)
    model.encoder.layers.checkpointing = config.Training.conv_checkpointing
    _initialise(model)
    if isinstance(model, PotentialModel):
        model.atomic_energy.scale_weights(model.encoder.layers.first_energies)
    _set_bias(model, config)
    return model


def _initialise(model: nn.Module) -> None:
    """Draw the weights of linear layers, in place, with variance 1 / inputs (LeCun et al. 1998).

    torch's default variance is a third of that, so signals shrink from layer to layer. Forces are
    derivatives of the remaining signal, and took epochs before they were learnt at all.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            gain = layer.gain if isinstance(layer, QuietLinear) else 1.0
            nn.init.normal_(layer.weight, std=gain * layer.in_features**-0.5)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    for layers in model.modules():
        if isinstance(layers, nn.Sequential):
            for linear, after in pairwise(layers):
                if isinstance(linear, nn.Linear) and isinstance(after, nn.ReLU):
                    _mirror(linear.weight)


@torch.no_grad()
def _mirror(weight: Tensor) -> None:
    """Set the second half of a weight's rows, in place, to the negative of the first half.

    A ReLU then passes one unit of each pair for any input (Balduzzi et al., arXiv:1702.08591).
    Otherwise a narrow layer with nearly constant inputs, such as pooled features, would begin with
    all units off about once in ten, and never learn.
    """
    half = weight.shape[0] // 2
    weight[half : 2 * half] = -weight[:half]


def _set_bias(model: HydraModel, config: HydraNetwork) -> None:
    value = config.Architecture.initial_bias
    if value is None:
        return
    if "graph" not in config.Variables_of_interest.type:
        raise InputError(
            "network: Architecture.initial_bias is that of graph heads, but "
            "Variables_of_interest.type has no 'graph'; remove it"
        )
    if isinstance(model, PotentialModel):
        model.atomic_energy.set_bias(value)
    elif isinstance(model, PropertyModel) and model.graph_heads is not None:
        model.graph_heads.branches.set_bias(value)
