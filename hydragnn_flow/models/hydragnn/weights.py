"""Weights that HydraGNN has trained, by their names in our networks.

The networks are those with the layers of this package. Their outputs are the same with these
weights; `tests/models/test_hydragnn_weights.py` compares them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from hydragnn_flow.errors import InputError
from hydragnn_flow.files import open_regular
from hydragnn_flow.models.exact import pack_exact
from hydragnn_flow.models.head_layers import PlaceLinear
from hydragnn_flow.models.hydragnn.connections import MFCLayer
from hydragnn_flow.models.hydragnn.lengths import CFConvolution
from hydragnn_flow.models.hydragnn.stack import HydraGNNStack
from hydragnn_flow.models.hydragnn.vectors import PNAEqMessage, VectorConvolution
from hydragnn_flow.models.model import HydraModel

Weights = Callable[[str], Tensor]
"""HydraGNN's weights by name."""

# A batch's spread may be zero; what torch adds to its square.
_BATCH_NORM = 1e-5
# What HydraGNN keeps beside its weights: counts of batches, and constants over again.
_NO_WEIGHTS = re.compile(
    r".*\.num_batches_tracked|.*\.module_1\.offset|(.*\.)?activation_function\.weight"
)
_OF_HEADS = ("graph_shared.", "heads_NN.", "convs_node_", "batch_norms_node_")
# Blocks of a layer with vectors, in the order in which HydraGNN numbers them.
_BLOCKS = ("message", "update", "scalars", "vectors")


def read_hydragnn_weights(
    file: Path, model: HydraModel, levels: Sequence[str], heads: str = "keep"
) -> dict[str, Tensor]:
    """The weights of a checkpoint of HydraGNN's, by their names in a network of ours.

    Parameters
    ----------
    file
        Written by HydraGNN's `save_model`; read with ``weights_only=True``.
    model
        The network, whose weights are not read.
    levels
        Level of each output, `Variables_of_interest.type`.
    heads
        Whether those of the heads are wanted, ``keep``, or not, ``new``.

    Raises
    ------
    InputError
        If it is none, or of another network.
    """
    try:
        with open_regular(file) as opened:
            content = torch.load(opened, map_location="cpu", weights_only=True)
        state = dict(content["model_state_dict"])
    except Exception as error:  # damaged bytes make torch raise whatever it stumbles over
        first = next(iter(str(error).splitlines()), "").partition(". ")[0]
        raise InputError(
            f"start_from: {file} is no readable checkpoint of HydraGNN's "
            f"({type(error).__name__}: {first}); name another"
        ) from None
    try:
        return _by_our_names(state, model, levels, heads)
    except ValueError as error:
        raise InputError(
            f"start_from: {file} is of another network than its config.json says: {error}; put "
            f"the one it was trained with beside it"
        ) from None


def _by_our_names(
    state: Mapping[str, Tensor], model: HydraModel, levels: Sequence[str], heads: str
) -> dict[str, Tensor]:
    """The weights in a `state_dict` of HydraGNN's; what is missing or left is a ValueError."""
    theirs = {re.sub(r"^(module\.|model\.)+", "", name): value for name, value in state.items()}
    read: set[str] = set()

    def of(name: str) -> Tensor:
        if name not in theirs:
            raise ValueError(f"it has no {name}")
        read.add(name)
        return theirs[name]

    weights: dict[str, Tensor] = {}
    for name, mine in model.state_dict().items():
        if heads == "new" and not name.startswith("encoder."):
            continue
        value = _value(name, mine, model, levels, of)
        weights[name] = value.to(mine.dtype) if value.is_floating_point() else value
    rest = [
        name
        for name in theirs.keys() - read
        if not _NO_WEIGHTS.fullmatch(name) and (heads == "keep" or not name.startswith(_OF_HEADS))
    ]
    if rest:
        raise ValueError(f"nothing reads its {min(rest)}")
    return weights


def _value(
    name: str, mine: Tensor, model: HydraModel, levels: Sequence[str], of: Weights
) -> Tensor:
    """HydraGNN's value of one entry of our state."""
    if name.startswith("encoder.embedding."):
        return _embedding(name, model)
    if found := re.fullmatch(r"encoder\.layers\.layers\.(\d+)\.(\w+)\.(.+)", name):
        return _of_layer(int(found[1]), found[2], found[3], mine, model, of)
    if name.startswith("encoder.layers."):
        return of(name.removeprefix("encoder.layers."))
    # Outputs are as HydraGNN gives them: in the data's units, from zero.
    if name.endswith((".std", "scale")):
        return _filled(mine, 1.0)
    if name.endswith((".mean", "element_energies")):
        return _filled(mine, 0.0)
    return _of_head(name, mine, model, levels, of)


def _filled(mine: Tensor, value: float) -> Tensor:
    return pack_exact([value] * mine.numel()).reshape(mine.shape)


def _embedding(name: str, model: HydraModel) -> Tensor:
    """An embedding whose first features are the input columns, as HydraGNN reads them."""
    embedding = model.encoder.embedding
    # HydraGNN's columns are in the order of `input_node_features`, which its data were made by.
    place = {column: k for k, column in enumerate(embedding.inputs)}
    if name.endswith("elements.weight"):
        assert embedding.elements is not None and embedding.element_column is not None
        table = torch.zeros(embedding.elements.weight.shape)
        table[:, place[embedding.element_column]] = torch.arange(len(table)).float()
        return table
    assert embedding.others is not None
    if name.endswith("others.bias"):
        return torch.zeros(embedding.others.bias.shape)
    matrix = torch.zeros(embedding.others.weight.shape)
    for k, column in enumerate(embedding.other_columns):
        matrix[place[column], k] = 1.0
    return matrix


def _of_layer(
    layer: int, part: str, rest: str, mine: Tensor, model: HydraModel, of: Weights
) -> Tensor:
    if part == "activation":
        return of("activation_function.weight")
    if part == "norm":
        norm = f"feature_layers.{layer}.module"
        scale = of(f"{norm}.weight") * (of(f"{norm}.running_var") + _BATCH_NORM).rsqrt()
        shift = of(f"{norm}.bias") - of(f"{norm}.running_mean") * scale
        return scale if rest == "weight" else shift
    stack = model.encoder.layers
    assert isinstance(stack, HydraGNNStack)
    block = stack.layers[layer]
    convolution, begin = block.convolution, f"graph_convs.{layer}.module_"
    if isinstance(convolution, CFConvolution):
        return of(f"{begin}2.{rest}")  # behind the search for neighbours and the Gaussians
    if isinstance(convolution, MFCLayer):
        return _by_degree(f"{begin}0", rest.endswith("bias"), mine, of)
    if isinstance(convolution, VectorConvolution):
        name, _, rest = rest.partition(".")
        if isinstance(convolution.message, PNAEqMessage):
            rest = rest.replace("update_U", "update_X")
        return of(f"{begin}{_BLOCKS.index(name)}.{rest}")
    return of(f"{begin}0.{rest}")


def _by_degree(name: str, bias: bool, mine: Tensor, of: Weights) -> Tensor:
    """Maps for each number of neighbours as one tensor: of the neighbours, then of the atom."""
    maps = torch.zeros(mine.shape)
    half = mine.shape[1] // 2
    for degree in range(len(mine)):
        if bias:
            maps[degree] = of(f"{name}.lins_l.{degree}.bias")
            continue
        for start, lins in ((0, "lins_l"), (half, "lins_r")):
            weight = of(f"{name}.{lins}.{degree}.weight")
            maps[degree, start : start + weight.shape[1]] = weight.T
    return maps


def _of_head(
    name: str, mine: Tensor, model: HydraModel, levels: Sequence[str], of: Weights
) -> Tensor:
    """A weight of a head: ours are by level and branch, HydraGNN's by output and branch."""
    pattern = r"(graph_heads|node_heads|atomic_energy)\.(?:branches\.)+(\d+)\.(\w+)\.(.+)"
    found = re.fullmatch(pattern, name)
    if found is None:
        raise ValueError(f"it has no counterpart of {name}")
    kind, branch, part, rest = found.groups()
    if part == "shared":
        return of(f"graph_shared.branch-{branch}.{rest}")
    number, _, rest = rest.partition(".")
    level = levels[0] if kind == "atomic_energy" else kind.removesuffix("_heads")
    output = [place for place, other in enumerate(levels) if other == level][int(number)]
    begin = f"heads_NN.{output}.branch-{branch}"
    if level == "graph":
        return of(f"{begin}.{rest}")
    if not isinstance(model.get_submodule(name.rpartition(".")[0]), PlaceLinear):
        return of(f"{begin}.mlp.0.{rest}")
    by_place = torch.stack([of(f"{begin}.mlp.{place}.{rest}") for place in range(len(mine))])
    return by_place.transpose(1, 2) if by_place.dim() == 3 else by_place[:, None]
