"""Build the heads of a network for a store's targets."""

from __future__ import annotations

from functools import partial

from hydragnn_flow.config.network import Architecture, HydraNetwork, NetworkConfig
from hydragnn_flow.data import Manifest
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.model import Encoder, PropertyModel
from hydragnn_flow.models.mpnn import DatasetStatistics, make_stack
from hydragnn_flow.models.outputs.branches import BRANCH_KEY
from hydragnn_flow.models.outputs.head_layers import HeadContext
from hydragnn_flow.models.outputs.heads import Heads, Output


def head_context(
    architecture: Architecture, manifest: Manifest, statistics: DatasetStatistics
) -> HeadContext:
    """Return what heads need to know about the network.

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
    check_branches(heads.branches, manifest)
    return HeadContext(
        architecture.hidden_dim,
        architecture.activation_function,
        places,
        partial(make_stack, architecture, statistics),
    )


def check_branches(branches: int, manifest: Manifest, key: str = "output_heads") -> None:
    """Raise an error if the graphs of a store lack the network's branches.

    Parameters
    ----------
    branches
        Number of branches of the network.
    manifest
        Manifest of the store.
    key
        Key of `Architecture` that sets the number, for messages.

    Raises
    ------
    InputError
        If the branches do not fit the store; it names the key.
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
    if not manifest.statistics.by_branch and len(manifest.branches) > 1:
        raise InputError(
            f"network: Architecture.{key} has several branches, but the store does not know "
            f"the reference energies and scales of each; prepare the store again"
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
    """Build a model of separate graph and node targets.

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
    """Return the outputs of a network, with the statistics of each target.

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
        outputs.append(
            Output(
                name,
                level,
                tuple(tuple(found.mean) for found in of_branches),
                tuple(tuple(found.std) for found in of_branches),
            )
        )
    return outputs
