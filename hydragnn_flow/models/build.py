"""Build a model from HydraGNN's JSON and a store's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hydragnn_flow.config.network import Architecture, NetworkConfig, load_network
from hydragnn_flow.data import GraphStore, Manifest
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.branches import BRANCH_KEY
from hydragnn_flow.models.build_encoder import batch_inputs, fusion_with_graphs, wrap_layers
from hydragnn_flow.models.embedding import ATOMIC_NUMBER, NodeEmbedding
from hydragnn_flow.models.head_layers import HeadContext
from hydragnn_flow.models.heads import BranchedHeads, Heads, Output
from hydragnn_flow.models.model import Encoder, HydraModel, PropertyModel
from hydragnn_flow.models.mpnn import DatasetStatistics, MessagePassing, mpnn_class
from hydragnn_flow.models.potential import PotentialModel
from hydragnn_flow.models.stress import STRESS, TARGET_DIMS
from hydragnn_flow.models.units import is_slope


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
    _set_bias(model, config)
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
    for layers in model.modules():
        if isinstance(layers, nn.Sequential):
            for linear, after in pairwise(layers):
                if isinstance(linear, nn.Linear) and isinstance(after, nn.ReLU):
                    _mirror(linear.weight)


@torch.no_grad()
def _mirror(weight: Tensor) -> None:
    """Make the second half of the rows the negative of the first.

    Of each pair of units a ReLU then lets one pass, whatever comes in (Balduzzi et al.,
    arXiv:1702.08591). A narrow layer whose inputs hardly differ, such as pooled features, else
    begins with all its units off about once in ten, and never learns.
    """
    half = weight.shape[0] // 2
    weight[half : 2 * half] = -weight[:half]


def _set_bias(model: HydraModel, config: NetworkConfig) -> None:
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


def _encoder(config: NetworkConfig, manifest: Manifest) -> Encoder:
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
    statistics, inputs = _statistics(architecture, manifest), batch_inputs(architecture, manifest)
    width, kind = architecture.hidden_dim, mpnn_class(architecture.mpnn_type)
    embedding = NodeEmbedding(columns, read, width, inputs.encodings)
    stack = kind(architecture, statistics, width, architecture.num_conv_layers)
    wrap_layers(stack, architecture, inputs)
    if architecture.freeze_conv_layers:
        embedding.requires_grad_(False)
        stack.requires_grad_(False)
    # Behind the frozen layers: it belongs to the heads.
    fusion = fusion_with_graphs(stack, config, inputs)
    return Encoder(embedding, stack, statistics.cutoff, inputs, fusion)


def _statistics(architecture: Architecture, manifest: Manifest) -> DatasetStatistics:
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
    of_split = manifest.statistics
    elements = tuple(z for z in manifest.elements if z not in manifest.unseen)
    return DatasetStatistics(
        cutoff=float(cutoff),
        average_neighbours=max(float(of_split.avg_num_neighbors), 1.0),
        degree_histogram=tuple(of_split.degree_histogram),
        elements=elements if ATOMIC_NUMBER in manifest.node_features else (),
        n_attributes=batch_inputs(architecture, manifest).n_edge_attributes,
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


def _properties(config: NetworkConfig, manifest: Manifest, encoder: Encoder) -> PropertyModel:
    architecture = config.Architecture
    outputs = _outputs(config, manifest)
    context = _head_context(architecture, manifest)
    noise = config.Training.loss_function_type == "GaussianNLLLoss"
    heads = {}
    for level in ("graph", "node"):
        here = [output for output in outputs if output.level == level]
        branches = getattr(architecture.output_heads, level)
        heads[level] = Heads(branches, here, context, noise) if here else None
    return PropertyModel(encoder, heads["graph"], heads["node"], architecture.graph_pooling)


def _head_context(architecture: Architecture, manifest: Manifest) -> HeadContext:
    """Facts about the network that heads need.

    Raises
    ------
    InputError
        If the store does not fit the kinds of heads or their branches.
    """
    heads = architecture.output_heads
    places = manifest.keys["x"].rows
    if any(head.type == "mlp_per_node" for head in heads.node or ()) and places is None:
        raise InputError(
            "network: Architecture.output_heads.node.type = 'mlp_per_node' needs graphs that all "
            "have the same number of atoms, which the store's do not; write 'mlp'"
        )
    key = manifest.keys.get(BRANCH_KEY)
    if heads.branches > 1 and (key is None or key.rows != 1 or key.shape not in ((), (1,))):
        raise InputError(
            f"network: Architecture.output_heads has {heads.branches} branches, but the store's "
            f"graphs have no key {BRANCH_KEY!r} with the number of each one's branch; add it, or "
            f"give a single branch"
        )
    if heads.branches > 1 and max(manifest.branches, default=0) >= heads.branches:
        raise InputError(
            f"network: Architecture.output_heads has the branches 0 to {heads.branches - 1}, but "
            f"graphs of the store have {BRANCH_KEY!r} = {max(manifest.branches)}; give it a branch "
            f"or correct the graphs"
        )
    statistics, kind = _statistics(architecture, manifest), mpnn_class(architecture.mpnn_type)

    def convolutions(width: int, depth: int) -> MessagePassing:
        return kind(architecture, statistics, width, depth)

    return HeadContext(
        architecture.hidden_dim, architecture.activation_function, places, convolutions
    )


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
    heads = getattr(architecture.output_heads, config.Variables_of_interest.type[0])
    atomic_energy = BranchedHeads(heads, [1], _head_context(architecture, manifest))
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
        _has_stress(architecture, manifest),
    )


def _has_stress(architecture: Architecture, manifest: Manifest) -> bool:
    """Whether the store's graphs have a stress that a potential can be compared with."""
    target = manifest.targets.get(STRESS)
    fits = target is not None and target.level == "graph" and target.dim in TARGET_DIMS
    if target is not None and fits and "cell" in manifest.keys:
        energy = manifest.targets["energy"].unit
        if is_slope(target.unit, energy, by_volume=True):
            return True
        if architecture.stress_weight > 0:
            raise InputError(
                f"network: Architecture.stress_weight needs the stress in {energy}/Å³, but the "
                f"store has it in {target.unit}; convert it, or set the weight to 0"
            )
        return False
    if architecture.stress_weight > 0:
        raise InputError(
            f"network: Architecture.stress_weight needs graphs with the key 'cell' and a graph "
            f"target named {STRESS!r} of 6 or 9 numbers, which the store does not have; set it to 0"
        )
    return False


def _check_lists(architecture: Architecture, manifest: Manifest) -> None:
    """Refuse neighbour lists that end before the radius."""
    cutoff = architecture.radius or manifest.cutoff or 0.0
    truncation = manifest.truncation
    if truncation is not None:
        own = manifest.provenance.get("own_edges", False)
        if truncation.reaches(cutoff):
            kept = None if own else manifest.max_neighbours
            raise InputError(truncation.refusal(cutoff, kept))
        return
    # Nobody has counted: a list that is as long as lists may be is taken for one that was cut.
    kept = manifest.max_neighbours
    if kept is None and manifest.cutoff is None:
        kept = architecture.max_neighbours
    suspects = 0 if kept is None else sum(manifest.statistics.degree_histogram[kept:])
    if suspects:
        raise InputError(
            f"network: Architecture.max_neighbours = {kept} may leave out neighbours of {suspects} "
            f"atoms of the store, which have as many or more, and a potential whose neighbours "
            f"change places has no forces; prepare the store again, which counts them, or accept "
            f"jumps of the energy with Architecture.truncated_neighbours: allow"
        )


def _check_potential(config: NetworkConfig, manifest: Manifest) -> None:
    architecture = config.Architecture
    if architecture.truncated_neighbours == "refuse":
        _check_lists(architecture, manifest)
    mode = "Architecture.enable_interatomic_potential"
    levels = {name: target.level for name, target in manifest.targets.items()}
    if levels.get("energy") != "graph":
        raise InputError(
            f"network: {mode} needs a graph target named 'energy', but the store has "
            f"{', '.join(sorted(levels)) or 'no targets'}"
        )
    dims = config.Variables_of_interest.output_dim
    if dims not in (None, (1,)):
        raise InputError(
            f"network: Variables_of_interest.output_dim is {list(dims or ())}, but the one output "
            f"of {mode} is an energy, one number; write [1] or remove it"
        )
    if not manifest.is_extensive("energy"):
        raise InputError(
            f"network: the energy of {mode} is the sum over the atoms of a structure, but the "
            f"store's is not ({manifest.targets['energy'].unit}); give total energies"
        )
    if architecture.force_weight > 0 and levels.get("forces") != "node":
        raise InputError(
            f"network: Architecture.force_weight needs a node target named 'forces', but the "
            f"store has {', '.join(sorted(levels))}; set it to 0 to train on energies alone"
        )
    energy, forces = manifest.targets["energy"].unit, manifest.targets.get("forces")
    if forces is not None and not is_slope(forces.unit, energy):
        raise InputError(
            f"network: the forces of {mode} are slopes of its energy, in {energy}/Å, but the store "
            f"has them in {forces.unit}; convert one of them"
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
