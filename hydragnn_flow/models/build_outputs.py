"""Build the heads of a network, or an interatomic potential, for a store's targets."""

from __future__ import annotations

import math
from functools import partial

from hydragnn_flow.config.network import Architecture, HydraNetwork, NetworkConfig
from hydragnn_flow.config.network.architecture import CommonArchitecture
from hydragnn_flow.config.units import is_slope
from hydragnn_flow.data import Manifest
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.branches import BRANCH_KEY
from hydragnn_flow.models.embedding import ATOMIC_NUMBER
from hydragnn_flow.models.geometry import STRESS, TARGET_DIMS
from hydragnn_flow.models.heads import BranchedHeads, HeadContext, Heads, Output
from hydragnn_flow.models.model import Encoder, PropertyModel
from hydragnn_flow.models.mpnn import DatasetStatistics, make_stack
from hydragnn_flow.models.potential import EnergyUnits, PotentialModel, PotentialNoise


def head_context(
    architecture: Architecture, manifest: Manifest, statistics: DatasetStatistics
) -> HeadContext:
    """Return the properties of a network, such as its width, that its output heads are built from.

    Raises
    ------
    InputError
        If the store's graphs do not fit the types of heads, or the network's branches (each the
        heads of one data set).
    """
    heads = architecture.output_heads
    places = manifest.keys["x"].rows
    if any(head.type == "mlp_per_node" for head in heads.node or ()) and places is None:
        raise InputError(
            "network: Architecture.output_heads.node.type = 'mlp_per_node' needs graphs that all "
            "have the same number of atoms, which the store's do not; write 'mlp'"
        )
    check_branches(heads.branches, manifest)
    return HeadContext(
        architecture.hidden_dim,
        architecture.activation_function,
        places,
        partial(make_stack, architecture, statistics),
    )


def check_branches(branches: int, manifest: Manifest, key: str = "output_heads") -> None:
    """Raise an error if a store's graphs do not fit a network's branches (heads of one data set).

    Parameters
    ----------
    branches
        Number of branches of the network; a single one fits every store.
    manifest
        Manifest of the store to check.
    key
        Key of `Architecture` that sets the number of branches, named in the error.

    Raises
    ------
    InputError
        If the graphs do not fit the branches; the message names ``key``.
    """
    if branches == 1:
        return
    known = manifest.keys.get(BRANCH_KEY)
    if known is None or known.rows != 1 or known.shape not in ((), (1,)):
        raise InputError(
            f"network: Architecture.{key} has {branches} branches, but the store's "
            f"graphs have no key {BRANCH_KEY!r} with the number of each one's branch; add it, or "
            f"give a single branch"
        )
    if max(manifest.branches, default=0) >= branches:
        raise InputError(
            f"network: Architecture.{key} has the branches 0 to {branches - 1}, but "
            f"graphs of the store have {BRANCH_KEY!r} = {max(manifest.branches)}; give it a branch "
            f"or correct the graphs"
        )


def build_properties(
    config: HydraNetwork, manifest: Manifest, encoder: Encoder, context: HeadContext
) -> PropertyModel:
    """Build the model that predicts graph and node targets with separate heads.

    Parameters
    ----------
    config, manifest
        Configuration of the network, and manifest of the store with its targets.
    encoder
        Encoder from :func:`~hydragnn_flow.models.build_encoder.build_encoder`.
    context
        Properties of the network from :func:`head_context`.

    Raises
    ------
    InputError
        If the store lacks a target.
    """
    architecture = config.Architecture
    outputs = asked_outputs(config, manifest)
    noise = config.Training.loss_function_type == "GaussianNLLLoss"
    heads = {}
    for level in ("graph", "node"):
        here = [output for output in outputs if output.level == level]
        branches = getattr(architecture.output_heads, level)
        heads[level] = Heads(branches, here, context, noise) if here else None
    return PropertyModel(encoder, heads["graph"], heads["node"], architecture.graph_pooling)


def asked_outputs(config: NetworkConfig, manifest: Manifest) -> list[Output]:
    """Return the targets that a network must predict, each with its mean and standard deviation.

    Raises
    ------
    InputError
        If the store lacks a target, or has it with another level or dimension.
    """
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
        of_branches = [
            statistics.targets[name]
            for statistics in manifest.statistics.of_branches(config.branches)
        ]
        means = tuple(tuple(found.mean) for found in of_branches)
        stds = tuple(tuple(found.std) for found in of_branches)
        if target.classes:  # a class may be missing in one data set
            means = tuple(tuple(math.log(max(p, 1e-4)) for p in shares) for shares in means)
            stds = tuple((1.0,) * target.dim for _ in means)
        outputs.append(Output(name, level, means, stds, bool(target.classes)))
    return outputs


def build_potential(
    config: HydraNetwork, manifest: Manifest, encoder: Encoder, context: HeadContext
) -> PotentialModel:
    """Build an interatomic potential for a store with energies, and perhaps forces and stresses.

    Parameters are those of :func:`build_properties`.

    Raises
    ------
    InputError
        If the store's graphs or the network's keys do not permit a potential.
    """
    architecture = config.Architecture
    check_potential(config, manifest)
    level = config.Variables_of_interest.type[0]
    if level == "graph" and architecture.graph_pooling not in ("add", "sum"):
        raise InputError(
            f"network: Architecture.graph_pooling = {architecture.graph_pooling!r} does not fit "
            f"Architecture.enable_interatomic_potential: an energy is a sum over atoms; write 'add'"
        )
    heads = getattr(architecture.output_heads, level)
    atomic_energy = BranchedHeads(heads, [1], context)
    return PotentialModel(
        encoder,
        atomic_energy,
        energy_units(config, manifest),
        has_stress(architecture, manifest),
        _noise(config, manifest, context),
    )


def energy_units(config: NetworkConfig, manifest: Manifest) -> EnergyUnits:
    """Return the energy scales and the elements' reference energies of a potential.

    Both are in the store's unit of energy, such as eV. The scale of a branch (heads of one data
    set) is the root mean square of the forces in its graphs, or without forces the standard
    deviation of their energies per atom.
    """
    statistics = manifest.statistics.of_branches(config.branches)
    # Forces are gradients over lengths of about 1 Å, so an energy scale of their size [eV] makes
    # the raw forces and their gradients about one at first. The spread of energies per atom can be
    # a hundred times smaller (a molecule near its minimum) and would need huge slopes.
    return EnergyUnits(
        [found.forces_rms or found.energy_per_atom_std or 1.0 for found in statistics],
        [found.reference_energies or found.element_energies for found in statistics],
        list(manifest.node_features).index(ATOMIC_NUMBER),
    )


def _noise(config: HydraNetwork, manifest: Manifest, context: HeadContext) -> PotentialNoise | None:
    """Return heads for the noise of the trained targets; None unless the loss is a likelihood."""
    if config.Training.loss_function_type != "GaussianNLLLoss":
        return None
    architecture = config.Architecture
    statistics = manifest.statistics.of_branches(config.branches)
    scales = {}
    if architecture.energy_weight > 0 or architecture.energy_peratom_weight > 0:
        scales["energy"] = [found.energy_per_atom_std or 1.0 for found in statistics]
    if architecture.force_weight > 0:
        scales["forces"] = [found.forces_rms or 1.0 for found in statistics]
    heads = getattr(architecture.output_heads, config.Variables_of_interest.type[0])
    return PotentialNoise(BranchedHeads(heads, [1] * len(scales), context), scales)


def has_stress(architecture: CommonArchitecture, manifest: Manifest) -> bool:
    """Return whether the store has a stress in units that a potential can be trained on.

    Raises
    ------
    InputError
        If the store has no such stress, but `stress_weight` is above 0.
    """
    target, energy = manifest.targets.get(STRESS), manifest.targets["energy"].unit
    fits = target is not None and target.level == "graph" and target.dim in TARGET_DIMS
    if target is None or not fits or "cell" not in manifest.keys:
        lacking = (
            f"graphs with the key 'cell' and a graph target named {STRESS!r} of 6 or 9 numbers, "
            f"which the store does not have; set it to 0"
        )
    elif not is_slope(target.unit, energy, by_volume=True):
        lacking = (
            f"the stress in {energy}/Å³, but the store has it in {target.unit}; convert it, or set "
            f"the weight to 0"
        )
    else:
        return True
    if architecture.stress_weight > 0:
        raise InputError(f"network: Architecture.stress_weight needs {lacking}")
    return False


def _check_lists(architecture: CommonArchitecture, manifest: Manifest) -> None:
    """Raise an error if the store's neighbour lists leave out neighbours within the radius."""
    cutoff = architecture.radius or manifest.cutoff or 0.0
    truncation = manifest.truncation
    if truncation is not None:
        own = manifest.provenance.get("own_edges", False)
        if truncation.reaches(cutoff):
            kept = None if own else manifest.max_neighbours
            raise InputError(truncation.refusal(cutoff, kept))
        return
    # An older store has no count: lists of the maximum length are assumed to be truncated.
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


def check_potential(config: NetworkConfig, manifest: Manifest) -> None:
    """Raise an error if a store's neighbour lists, energies or forces cannot train a potential.

    Raises
    ------
    InputError
        If a target, unit or feature does not fit; the message names the key of the network that
        needs it.
    """
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
