"""From HydraGNN's JSON and a store's manifest to a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from hydragnn_flow.config.network import Architecture, NetworkConfig, load_network
from hydragnn_flow.data import GraphStore, Manifest
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.embedding import ATOMIC_NUMBER, NodeEmbedding
from hydragnn_flow.models.heads import Heads, Output, own_layers, shared_layers
from hydragnn_flow.models.model import Encoder, HydraModel, PropertyModel
from hydragnn_flow.models.mpnn import MPNN_TYPES, TrainingFacts
from hydragnn_flow.models.potential import PotentialModel


def build_model(
    network: NetworkConfig | Mapping[str, Any] | str | Path, store: GraphStore | Manifest
) -> HydraModel:
    """Build a network for a store.

    Weights are drawn from torch's global random numbers; seed them before.

    Parameters
    ----------
    network
        HydraGNN's JSON: checked, as a mapping, or the path of a file.
    store
        The store, or its manifest: targets, cutoff, and the statistics of the training split.

    Returns
    -------
    HydraModel
        A :class:`PotentialModel` where `enable_interatomic_potential` is set.

    Raises
    ------
    InputError
        If the network asks for something the store does not have.
    """
    config = load_network(network)
    manifest = store if isinstance(store, Manifest) else store.manifest
    encoder = _encoder(config, manifest)
    make = _potential if config.Architecture.enable_interatomic_potential else _properties
    model = make(config, manifest, encoder)
    _initialise(model)
    return model


def _initialise(model: nn.Module) -> None:
    """Draw the weights of linear layers with variance 1 / inputs (LeCun et al. 1998).

    torch's default has a third of that, so a signal shrinks from layer to layer. Forces are slopes
    of what is left, and learning them took epochs to begin.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def _encoder(config: NetworkConfig, manifest: Manifest) -> Encoder:
    architecture = config.Architecture
    columns = manifest.node_features
    inputs = config.Variables_of_interest.input_node_features
    for index in inputs:
        if not 0 <= index < len(columns):
            raise InputError(
                f"network: Variables_of_interest.input_node_features names column {index}, but "
                f"the store's node features are {', '.join(columns)}; count from 0"
            )
    if not inputs or len(set(inputs)) != len(inputs):
        raise InputError(
            "network: Variables_of_interest.input_node_features needs at least one column, each "
            "once; [0] is the atomic number"
        )
    facts = _facts(architecture, manifest)
    return Encoder(
        NodeEmbedding(columns, inputs, architecture.hidden_dim),
        MPNN_TYPES[architecture.mpnn_type](architecture, facts),
        facts.cutoff,
    )


def _facts(architecture: Architecture, manifest: Manifest) -> TrainingFacts:
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
    sees_lengths = MPNN_TYPES[architecture.mpnn_type].sees_lengths(architecture)
    if manifest.cutoff is not None and cutoff < manifest.cutoff and not sees_lengths:
        raise InputError(
            f"network: Architecture.radius = {cutoff} Å cannot shorten the store's neighbour "
            f"lists of {manifest.cutoff} Å for a {architecture.mpnn_type} that sees no lengths; "
            f"set Architecture.edge_features to ['lengths'] or prepare the store anew"
        )
    statistics = manifest.statistics
    return TrainingFacts(
        cutoff=float(cutoff),
        average_neighbours=max(float(statistics.avg_num_neighbors), 1.0),
        degree_histogram=tuple(statistics.degree_histogram),
    )


def _properties(config: NetworkConfig, manifest: Manifest, encoder: Encoder) -> PropertyModel:
    architecture = config.Architecture
    outputs = _outputs(config, manifest)
    heads = {}
    for level in ("graph", "node"):
        here = [output for output in outputs if output.level == level]
        head = getattr(architecture.output_heads, level)
        heads[level] = (
            Heads(head, here, architecture.hidden_dim, architecture.activation_function)
            if here
            else None
        )
    return PropertyModel(encoder, heads["graph"], heads["node"], architecture.graph_pooling)


def _outputs(config: NetworkConfig, manifest: Manifest) -> list[Output]:
    asked = config.Variables_of_interest
    dims = asked.output_dim
    if len(set(asked.output_names)) != len(asked.output_names):
        raise InputError("network: Variables_of_interest.output_names must name each target once")
    if dims is not None and len(dims) != len(asked.output_names):
        raise InputError(
            "network: Variables_of_interest.output_dim needs one entry for each of output_names; "
            "correct or remove it"
        )
    outputs: list[Output] = []
    for position, (name, level) in enumerate(zip(asked.output_names, asked.type, strict=True)):
        target = manifest.targets.get(name)
        if target is None:
            raise InputError(
                f"network: Variables_of_interest.output_names asks for {name!r}, but the store "
                f"has {', '.join(sorted(manifest.targets)) or 'no targets'}"
            )
        if target.level != level:
            raise InputError(
                f"network: Variables_of_interest.type says {level!r} for {name!r}, but the store "
                f"holds it by {target.level}; write {target.level!r}"
            )
        if dims is not None and dims[position] != target.dim:
            raise InputError(
                f"network: Variables_of_interest.output_dim says {dims[position]} for {name!r}, "
                f"but the store holds {target.dim} components; correct or remove it"
            )
        statistics = manifest.statistics.targets[name]
        outputs.append(Output(name, level, tuple(statistics.mean), tuple(statistics.std)))
    return outputs


def _potential(config: NetworkConfig, manifest: Manifest, encoder: Encoder) -> PotentialModel:
    architecture = config.Architecture
    _check_potential(config, manifest)
    heads, width, name = (
        architecture.output_heads,
        architecture.hidden_dim,
        architecture.activation_function,
    )
    atomic_energy: nn.Module
    if config.Variables_of_interest.type[0] == "node":
        assert heads.node is not None  # load_network has seen to it
        atomic_energy = own_layers(heads.node, width, name, 1)
    else:
        assert heads.graph is not None
        shared, width = shared_layers(heads.graph, width, name)
        atomic_energy = nn.Sequential(shared, own_layers(heads.graph, width, name, 1))
    statistics = manifest.statistics
    # Forces are gradients over lengths of about 1 Å, so an energy scale of their size [eV] makes
    # both them and their gradients about one at the start. The spread of the energies per atom can
    # be a hundred times smaller (a molecule near its minimum) and would ask for huge slopes.
    scale = statistics.forces_rms or statistics.energy_per_atom_std or 1.0
    return PotentialModel(
        encoder,
        atomic_energy,
        scale,
        statistics.element_energies or {},
        list(manifest.node_features).index(ATOMIC_NUMBER),
    )


def _check_potential(config: NetworkConfig, manifest: Manifest) -> None:
    architecture = config.Architecture
    mode = "Architecture.enable_interatomic_potential"
    levels = {name: target.level for name, target in manifest.targets.items()}
    if levels.get("energy") != "graph":
        raise InputError(
            f"network: {mode} needs a graph target named 'energy', but the store has "
            f"{', '.join(sorted(levels)) or 'no targets'}"
        )
    if architecture.force_weight > 0 and levels.get("forces") != "node":
        raise InputError(
            f"network: Architecture.force_weight needs a node target named 'forces', but the "
            f"store has {', '.join(sorted(levels))}; set it to 0 to train on energies alone"
        )
    if ATOMIC_NUMBER not in manifest.node_features:
        raise InputError(
            f"network: {mode} needs the node feature '{ATOMIC_NUMBER}', but the store has "
            f"{', '.join(manifest.node_features) or 'none'}"
        )
    level = config.Variables_of_interest.type[0]
    if level == "graph" and architecture.graph_pooling not in ("add", "sum"):
        raise InputError(
            f"network: Architecture.graph_pooling = {architecture.graph_pooling!r} does not fit "
            f"{mode}: an energy is a sum over atoms; write 'add'"
        )
