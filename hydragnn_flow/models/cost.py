"""Cost of a training step of a network.

For this package's networks the cost is counted on tensors without values (device ``meta``). The
network of an engine (external library) may need values, so its operations are counted during a real
step.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hydragnn_flow.data import GraphSplit
from hydragnn_flow.models.model import Encoder, HydraModel, Model

# Operations that move no data and launch no kernel.
# fmt: off
_VIEWS = frozenset({
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "chunk", "detach", "diagonal",
    "empty", "empty_like", "empty_strided", "expand", "is_same_size", "lift_fresh",
    "new_empty", "new_empty_strided", "permute", "reshape", "select", "slice", "split",
    "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze", "view",
})
# fmt: on
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})


@dataclass(frozen=True)
class NetworkCost:
    """Cost of one training step of a network: operations, bytes, kernel launches and peak memory.

    A step is a forward pass, a backward pass and an update of the weights.

    Attributes
    ----------
    parameters
        Number of trainable parameters.
    flops
        Floating-point operations of matrix products (a multiply-add is two) and of the update.
    bytes
        Bytes read and written by all kernels, as if there were no cache.
    launches
        Number of launches of kernels (programs on the accelerator).
    peak_bytes
        Peak memory of the step: tensors saved for the backward pass, its temporaries, and
        gradients; without parameters and the batch itself.
    update_flops
        Floating-point operations of the optimiser Muon's matrix products, which every rank (process
        of a distributed job) repeats; 0 for other optimisers.
    """

    parameters: int
    flops: int
    bytes: int
    launches: int
    peak_bytes: int
    update_flops: int = 0


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's class is untyped
    """Context manager that counts kernel launches, products' operations, and bytes moved and held.

    If ``numbers`` is true, tensors have values and every operation is run. If it is false, tensors
    are on the device ``meta``, and shapes of repeated operations are looked up.
    """

    def __init__(self, numbers: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.numbers = numbers
        self.launches = self.bytes = self.flops = 0
        self.memory = _Memory()
        self.known: dict[Any, tuple[Any, ...]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in _VIEWS:
            return func(*args, **(kwargs or {}))
        result = self._result(func, args, kwargs or {})
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        written = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        for tensor in written:
            self.memory.hold(tensor)
        n_written = sum(tensor.nbytes for tensor in written)
        self.launches += 1
        # A gather reads only the rows that it returns.
        gathers = name in ("index_select", "embedding", "index")
        self.bytes += n_written
        self.bytes += n_written if gathers else sum(tensor.nbytes for tensor in read)
        if name in _PRODUCTS:
            inner = [leaf for leaf in read if leaf.dim() >= 2][-1].shape[-2]
            self.flops += 2 * written[0].numel() * inner
        return result

    def _result(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the operation's result; shapes of repeated operations are looked up.

        Layers repeat the same operations, and torch infers most shapes in slow Python code.
        """
        if self.numbers or func._schema.is_mutable:
            return func(*args, **kwargs)
        key = (func, _signature(args), _signature(tuple(kwargs.items())))
        if key in self.known:
            size, stride, dtype = self.known[key]
            return torch.empty_strided(size, stride, dtype=dtype, device="meta")
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            self.known[key] = (result.shape, result.stride(), result.dtype)
        return result


def _signature(values: Any) -> Any:
    """Return a hashable key for operands: a tensor counts by its shape, strides and dtype."""
    if isinstance(values, Tensor):
        return values.shape, values.stride(), values.dtype
    if isinstance(values, (tuple, list)):
        return tuple(map(_signature, values))
    return type(values), values


class _Memory:
    """Current and peak memory of the tensors of a step [bytes].

    Torch frees storages without values when it would free real ones.
    """

    def __init__(self) -> None:
        self.now = self.peak = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def hold(self, tensor: Tensor) -> None:
        """Count a tensor's storage, unless it is counted already."""
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key not in self._alive:
            self._alive[key] = weakref.ref(storage, lambda _: self._free(key, size))
            self.now += size
            self.peak = max(self.peak, self.now)

    def _free(self, key: int, size: int) -> None:
        del self._alive[key]
        self.now -= size


def _meta_batch(
    encoder: Encoder, atoms: int, edges: int, graphs: int, largest: int | None, finite: bool
) -> Any:
    """Return a batch without values, with all keys that a network may read.

    Parameters
    ----------
    encoder
        Encoder of the network that reads the batch.
    atoms, edges, graphs
        Total numbers of atoms, edges and graphs in the batch.
    largest
        Number of atoms of the largest graph; None for graphs of equal size.
    finite
        True if at least one graph is not periodic.
    """

    def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    read = encoder.inputs
    return SimpleNamespace(
        x=numbers(atoms, encoder.embedding.n_columns),
        pos=numbers(atoms, 3),
        edge_index=numbers(2, edges, dtype=torch.int64),
        edge_shifts=numbers(edges, 3),
        batch=numbers(atoms, dtype=torch.int64),
        edge_attr=numbers(edges, max(read.edge_columns, default=0) + 1),
        pe=numbers(atoms, read.encodings),
        rel_pe=numbers(edges, read.edge_encodings),
        graph_attr=numbers(graphs, read.graph_attr),
        cell=numbers(3 * graphs, 3),
        dataset_name=numbers(graphs, 1, dtype=torch.int64),
        num_graphs=graphs,
        largest_graph=largest or -(-atoms // graphs),
        any_finite=finite,
    )


class _Step(nn.Module):
    """Forward and backward pass in one call, because checkpointed layers run in both."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> None:
        squares = [value.float().square().mean() for value in self.model(batch).values()]
        trained = [value for value in self.model.parameters() if value.requires_grad]
        torch.autograd.backward(torch.stack(squares).sum(), inputs=trained)


def network_cost(
    model: Model,
    atoms: int,
    edges: int,
    graphs: int,
    largest: int | None = None,
    *,
    finite: bool = True,
    muon: bool = False,
) -> NetworkCost:
    """Count the cost of one training step of a model for a batch of a given size.

    Nothing is computed and the model is not changed. The model may be on the meta device itself
    (``with torch.device("meta"): model = build_model(…)``), which saves drawing weights.

    Parameters
    ----------
    model
        Model from :func:`~hydragnn_flow.models.build_model` whose network no engine (external
        library) has built; for a network of an engine, see :func:`probed_cost`.
    atoms, edges, graphs
        Total numbers of atoms, edges and graphs in the batch.
    largest
        Number of atoms of the largest graph, to which attention pads the others; by default graphs
        of equal size.
    finite
        True if at least one graph is not periodic, which makes attention that reads positions more
        expensive; false if all are periodic.
    muon
        True if `Training.Optimizer.type` is Muon.

    Returns
    -------
    NetworkCost
        Cost of forward and backward pass (double backward for a potential) and the update.
    """
    assert isinstance(model, HydraModel)
    batch = _meta_batch(model.encoder, atoms, edges, graphs, largest, finite)
    parameters = {
        f"model.{name}": torch.empty_like(value, device="meta", requires_grad=value.requires_grad)
        for name, value in model.named_parameters()
    }
    buffers = {
        f"model.{name}": torch.empty_like(value, device="meta")
        for name, value in model.named_buffers()
    }
    was_training = model.training
    model.train()
    counter = _Counter(numbers=False)
    try:
        with counter:
            functional_call(_Step(model), {**parameters, **buffers}, (batch,))
    finally:
        model.train(was_training)
    cost = _with_update(counter, model)
    return _with_muon(cost, model) if muon else cost


def probed_cost(
    model: Model, split: GraphSplit, atoms: int, edges: int, graphs: int
) -> NetworkCost:
    """Estimate the cost of a training step of a model by running steps on two batches.

    This is for the network of an engine (external library), which may need real values. The cost is
    extrapolated linearly from the two batches of the split, the larger one with about 50,000 atoms
    and edges. The steps do not change weights, but they may change buffers, clear gradients, and
    leave the model in training mode.

    Parameters
    ----------
    model
        Model on the CPU.
    split
        Split of a store that the graphs are taken from.
    atoms, edges, graphs
        Total numbers of atoms, edges and graphs in the batch whose cost is estimated.
    """
    # Number of atoms and edges in the larger batch of a real step, and least number of graphs:
    # networks that normalise over the batch need two.
    most = min(graphs, max(4, 50_000 * graphs // (atoms + edges)), len(split))
    # Graphs of mean size, so that the two batches differ enough to show how the cost grows.
    off = np.abs(split.n_atoms + split.n_edges - (atoms + edges) / graphs)
    chosen = np.argsort(off, kind="stable")[:most]
    model.train()
    sizes, costs = [], []
    for count in sorted({most, -(-most // 2)}):
        batch = split.batch(chosen[:count])
        counter = _Counter(numbers=True)
        with counter:
            _Step(model)(batch)
        model.zero_grad()
        sizes.append(batch.num_nodes + batch.num_edges)
        costs.append(_with_update(counter, model))
    grown = (atoms + edges - sizes[-1]) / (sizes[-1] - sizes[0]) if len(sizes) > 1 else 0.0

    def at(name: str) -> int:
        first, last = (int(getattr(cost, name)) for cost in (costs[0], costs[-1]))
        return max(0, round(last + grown * (last - first)))

    return replace(costs[-1], flops=at("flops"), bytes=at("bytes"), peak_bytes=at("peak_bytes"))


def _with_update(counter: _Counter, model: Model) -> NetworkCost:
    n = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    element = model.dtype.itemsize
    # Kernels, passes over the parameters, and operations per parameter of a fused Adam step: it
    # reads the parameter, its gradient and two moments, and writes three of them.
    return NetworkCost(
        parameters=n,
        flops=counter.flops + 12 * n,
        bytes=counter.bytes + 7 * n * element,
        launches=counter.launches + 4,
        peak_bytes=counter.memory.peak,
    )


def weight_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return a model's trained weight matrices, without embedding tables, whose rows are looked up.

    If the optimiser is Muon, it updates these matrices, and AdamW the other weights.
    """
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    return [
        weight
        for name, weight in model.named_parameters()
        if weight.requires_grad
        # A vector has one singular direction, along which no step of Muon would be short.
        and weight.dim() == 2
        and min(weight.shape) > 1
        and id(weight) not in tables
        and not name.endswith("bias")
    ]


def _with_muon(cost: NetworkCost, model: Model) -> NetworkCost:
    """Add the products with which Muon makes singular values alike.

    For a shape these are 17 of the smaller square, and two that read the whole matrix.
    """
    shapes = [(min(weight.shape), max(weight.shape)) for weight in weight_matrices(model)]
    flops = sum(34 * few**3 + 4 * few**2 * many for few, many in shapes)
    return replace(cost, update_flops=flops, launches=cost.launches + 19 * len(set(shapes)))
