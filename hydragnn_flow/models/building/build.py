"""Build a model from HydraGNN's JSON and a store's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hydragnn_flow.config.network import EngineNetwork, HydraNetwork, NetworkConfig, load_network
from hydragnn_flow.data import GraphStore, Manifest
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.building.build_encoder import build_encoder, dataset_statistics
from hydragnn_flow.models.building.build_heads import build_properties, head_context
from hydragnn_flow.models.building.build_potential import build_potential
from hydragnn_flow.models.engine import build_with_engine
from hydragnn_flow.models.model import HydraModel, Model, PropertyModel
from hydragnn_flow.models.potential import PotentialModel
from hydragnn_flow.models.quiet import QuietLinear


def build_model(
    network: NetworkConfig | Mapping[str, Any] | str | Path, store: GraphStore | Manifest
) -> Model:
    """Build a network for a store.

    Weights are drawn from torch's global random numbers; seed them before.

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
        set.

    Raises
    ------
    InputError
        If the network needs something that the store lacks, or its engine cannot build it.
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
    """Draw the weights of linear layers with variance 1 / inputs (LeCun et al. 1998).

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
    """Set the second half of the rows to the negative of the first.

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
        model.graph_heads.set_bias(value)
