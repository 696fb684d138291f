"""Schema of `NeuralNetwork.Architecture.output_heads`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    Field,
    PlainSerializer,
    ValidationInfo,
    field_validator,
    model_validator,
)

from hydragnn_flow.config.base import Section, unknown_key

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

    @model_validator(mode="after")
    def _one_width_per_layer(self) -> _HeadLayers:
        if len(self.dim_headlayers) < self.num_headlayers:
            raise ValueError(
                f"dim_headlayers needs a width for each of num_headlayers = {self.num_headlayers}"
            )
        return self


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
    """Write one branch as a mapping, several as a list of named branches."""
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
    """Return a `NeuralNetwork` section with a branch of heads for each data set.

    Heads that are described once are repeated for each branch; a list of branches stays as it is.
    An engine, whose keys are its own, gets the number of branches.

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
    """Return HydraGNN's `output_heads` with heads described once repeated for each branch."""
    return {
        level: [
            {"type": f"branch-{number}", "architecture": described} for number in range(branches)
        ]
        if isinstance(described, dict)
        else described
        for level, described in heads.items()
    }


class OutputHeads(Section):
    """`output_heads`: layers by level of the outputs, and for each level by branch.

    In a file, a level is a mapping, which is its one branch, or HydraGNN's list of ``{type:
    branch-N, architecture: {...}}``. Here it is a tuple of the branches in their order, and it is
    written in HydraGNN's form again.
    """

    graph: Branches[GraphHead] = None
    """Layers of graph-level outputs: a mapping, or a list of branches `branch-0`, `branch-1`, …"""
    node: Branches[NodeHead] = None
    """Layers of node-level outputs, in the same form."""

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

    @model_validator(mode="after")
    def _same_branches(self) -> OutputHeads:
        if self.graph and self.node and len(self.graph) != len(self.node):
            raise ValueError(
                f"graph has {len(self.graph)} branches and node {len(self.node)}; a graph's branch "
                f"has its heads of both levels, so give as many of each"
            )
        for node in self.node or ():
            if self.node and (node.type == "conv") != (self.node[0].type == "conv"):
                raise ValueError("node heads of type 'conv' must be so in all branches")
        return self

    @property
    def branches(self) -> int:
        """Number of branches."""
        return len(self.graph or self.node or ())
