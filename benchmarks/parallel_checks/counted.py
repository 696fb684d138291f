"""What a step exchanges with other ranks, and what memory it takes; counted, not timed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

# Which argument of a collective has all that is summed, gathered or scattered; and how often that
# goes around a ring of the ranks.
_PAYLOADS = {
    "allreduce_": (0, 2),
    "all_reduce": (0, 2),
    "all_reduce_": (0, 2),
    "_allgather_base_": (0, 1),
    "_reduce_scatter_base_": (1, 1),
}
_NOTHING = {"_wrap_tensor_autograd", "barrier", "wait_tensor"}


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what this rank sends in collectives, each around a ring.

    Raises
    ------
    ValueError
        On leaving, if there were collectives that it has not seen; in one that it does not know.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0.0
        self._seen = 0

    def __enter__(self) -> Traffic:
        self._before = _collectives()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        made = _collectives() - self._before
        if error[0] is None and made != self._seen:
            raise ValueError(f"{made} collectives were made, {self._seen} seen")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # it is taken apart, and comes here again
        name = func.overloadpacket.__name__
        if func.namespace in ("c10d", "_c10d_functional") and name not in _NOTHING:
            if name not in _PAYLOADS:
                raise ValueError(f"{func} is a collective that this program does not know")
            place, times = _PAYLOADS[name]
            ranks = _group_of(args).size()
            payload = sum(tensor.nbytes for tensor in tree_leaves(args[place]))
            self.bytes += times * (ranks - 1) / ranks * payload
            self._seen += 1
        return func(*args, **(kwargs or {}))


class Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the memory of all tensors that it has been given, or has seen made.

    Attributes
    ----------
    peak
        Most bytes at a time.
    """

    def __init__(self, *there: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages = WeakIdKeyDictionary()
        self.peak = 0
        for tensor in (tensor for tensors in there for tensor in tensors):
            self._take(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented
        found = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, found)):
            if isinstance(value, Tensor):
                self._take(value)
        held = sum(storage.nbytes() for storage in self._storages)
        self.peak = max(self.peak, held)
        return found

    def _take(self, tensor: Tensor) -> None:
        self._storages[here(tensor).untyped_storage()] = None


def here(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def held(tensors: Iterable[Tensor]) -> int:
    """Memory of tensors on this rank, each storage once [B]."""
    storages = {}
    for tensor in tensors:
        storage = here(tensor).untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def tensors_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """An optimiser's state, as far as it is tensors."""
    return [value for value in tree_leaves(_states(optimizer)) if isinstance(value, Tensor)]


def _states(optimizer: torch.optim.Optimizer) -> list[Mapping[str, Any]]:
    return [dict(state) for state in optimizer.state.values()]


def _collectives() -> int:
    """Number of collectives of all groups so far."""
    groups: Any = distributed_c10d._world.pg_map
    return sum(group._get_sequence_number_for_group() for group in groups)


def _group_of(args: Any) -> dist.ProcessGroup:
    for value in args:
        if isinstance(value, torch.ScriptObject):
            try:
                return dist.ProcessGroup.unbox(value)
            except RuntimeError:  # the kind of sum
                continue
        if isinstance(value, dist.ProcessGroup):
            return value
    # The last name: that of the kind of sum comes before it.
    resolve: Any = vars(distributed_c10d)["_resolve_process_group"]
    found: dist.ProcessGroup = resolve([value for value in args if isinstance(value, str)][-1])
    return found
