"""Cost of a training step of a network.

That of our own networks is counted on tensors without numbers (device ``meta``). What an engine
builds may do things that need numbers, so its operations are counted while it takes a real step.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hydragnn_flow.data import GraphSplit
from hydragnn_flow.models.model import Encoder, HydraModel, Model

# Operations that move no data and start no kernel.
# fmt: off
_VIEWS = frozenset({
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "chunk", "detach", "diagonal",
    "empty", "empty_like", "empty_strided", "expand", "is_same_size", "lift_fresh",
    "new_empty", "new_empty_strided", "permute", "reshape", "select", "slice", "split",
    "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze", "view",
})
# fmt: on
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
# Kernels, and passes over the parameters, of one fused step of Adam: reads of the parameter, its
# gradient and two moments, writes of three of them.
_ADAM_LAUNCHES, _ADAM_PASSES, _ADAM_FLOPS = 4, 7, 12
# Atoms and edges of the larger batch of a step that is really taken, and graphs at least: a network
# that normalises over its batch needs two.
_PROBED, _FEWEST_PROBED = 50_000, 4


@dataclass(frozen=True)
class NetworkCost:
    """One training step: forward, backward, update.

    Attributes
    ----------
    parameters
        Number of trainable numbers.
    flops
        Floating-point operations of matrix products (a multiply-add is two) and of the update.
    bytes
        Read and written by all kernels, as if nothing stayed in a cache.
    launches
        Kernels started.
    peak_bytes
        Most memory that the step holds at a time: what is saved for the backward pass, what that
        pass makes in between, and gradients; without parameters and the batch itself.
    """

    parameters: int
    flops: int
    bytes: int
    launches: int
    peak_bytes: int


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's class is untyped
    """Counts kernels, their products' operations, the bytes they touch and those they keep.

    Where tensors have ``numbers``, each operation must run.
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
        n_written = sum(map(_size, written))
        self.launches += 1
        # A gather reads only the rows that it returns.
        gathers = name in ("index_select", "embedding", "index")
        self.bytes += n_written + (n_written if gathers else sum(map(_size, read)))
        if name in _PRODUCTS:
            inner = [leaf for leaf in read if leaf.dim() >= 2][-1].shape[-2]
            self.flops += 2 * written[0].numel() * inner
        return result

    def _result(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Result of the operation; shapes of a repeated one are looked up.

        Layers repeat the same operations, and torch infers most shapes in Python, slowly.
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
    """Operands as a dictionary key, tensors by their layout."""
    if isinstance(values, Tensor):
        return values.shape, values.stride(), values.dtype
    if isinstance(values, (tuple, list)):
        return tuple(map(_signature, values))
    return type(values), values


class _Memory:
    """Adds up storages as long as they are alive; torch frees them as it would real ones."""

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


@dataclass
class _MetaBatch:
    """A batch of a given size without numbers, with all keys that a network may read."""

    x: Tensor
    pos: Tensor
    edge_index: Tensor
    edge_shifts: Tensor
    batch: Tensor
    edge_attr: Tensor
    pe: Tensor
    rel_pe: Tensor
    graph_attr: Tensor
    cell: Tensor
    dataset_name: Tensor
    num_graphs: int
    largest_graph: int
    any_finite: bool


def _meta_batch(
    encoder: Encoder, atoms: int, edges: int, graphs: int, largest: int | None, finite: bool
) -> _MetaBatch:
    def numbers(*shape: int) -> Tensor:
        return torch.empty(shape, device="meta")

    def integers(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int64, device="meta")

    read = encoder.inputs
    return _MetaBatch(
        x=numbers(atoms, encoder.embedding.n_columns),
        pos=numbers(atoms, 3),
        edge_index=integers(2, edges),
        edge_shifts=numbers(edges, 3),
        batch=integers(atoms),
        edge_attr=numbers(edges, max(read.edge_columns, default=0) + 1),
        pe=numbers(atoms, read.encodings),
        rel_pe=numbers(edges, read.edge_encodings),
        graph_attr=numbers(graphs, read.graph_attr),
        cell=numbers(3 * graphs, 3),
        dataset_name=integers(graphs, 1),
        num_graphs=graphs,
        largest_graph=largest or -(-atoms // graphs),
        any_finite=finite,
    )


class _Step(nn.Module):
    """Forward and backward pass in one call, as layers that are checkpointed are called in both."""

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
) -> NetworkCost:
    """Count one training step of a model on a batch of a given size.

    Nothing is computed and the model is not changed; it may live on the meta device itself
    (``with torch.device("meta"): model = build_model(…)``), which saves drawing weights.

    Parameters
    ----------
    model
        Any model of :func:`~hydragnn_flow.models.build_model` that no engine has built; for those
        there is :func:`probed_cost`.
    atoms, edges, graphs
        Totals over the batch.
    largest
        Atoms of the largest graph, to which attention pads the others; if not given, the graphs
        are taken to be of one size.
    finite
        Whether one of the graphs is not periodic. Attention that reads where atoms are costs more
        then.

    Returns
    -------
    NetworkCost
        Forward, backward (double backward for a potential) and an Adam update.
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
    return _with_update(counter, model)


def probed_cost(
    model: Model, split: GraphSplit, atoms: int, edges: int, graphs: int
) -> NetworkCost:
    """Cost of a training step of a model that must be run to know it, as one that an engine built.

    Steps on two batches of the split, the larger of about 50,000 atoms and edges, say how it grows;
    that of a larger batch is extrapolated in a straight line. The model's buffers and gradients
    change.

    Parameters
    ----------
    model
        On the CPU.
    split
        Where the graphs come from.
    atoms, edges, graphs
        Totals over the batch whose cost is asked for.
    """
    most = min(graphs, max(_FEWEST_PROBED, _PROBED * graphs // (atoms + edges)), len(split))
    # Of mean size: two batches that hardly differ would say nothing of how the cost grows.
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
    return NetworkCost(
        parameters=n,
        flops=counter.flops + _ADAM_FLOPS * n,
        bytes=counter.bytes + _ADAM_PASSES * n * element,
        launches=counter.launches + _ADAM_LAUNCHES,
        peak_bytes=counter.memory.peak,
    )


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
