"""A device made of host memory, which objects to what a real one would suffer from.

Its tensors hold those of the CPU that computes for them, but torch takes it for an accelerator:
code that asks for ``device.type`` goes the accelerator's way, gradients are computed in a thread of
the device, and tensors of host and device do not mix. What would make the host wait for a real
device raises :class:`Waits`, and so does using a copy whose memory another stream may take. What
is copied on a stream of its own is not there before somebody waits for it.

It is built on torch's hooks for devices written in Python, which it calls experimental. They belong
to a whole process, so tests use it in one of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration as registration
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = "pretended:0"
_NAME = "pretended"
# The host reads a number or a size from the device.
_READING = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "bincount")
# Of CUDA's kernels this one has no bfloat16 (torch 2.11), where a CPU's has.
_NO_BFLOAT16 = "_embedding_bag_per_sample_weights_backward"


class Waits(RuntimeError):
    """The host would wait for the device, or a stream would not wait for another."""


class _Rules(threading.local):
    stream: Stream | None = None


_rules = _Rules()
_strict = False


@contextmanager
def strictly() -> Iterator[None]:
    """Within this, object."""
    global _strict
    _strict = True
    try:
        yield
    finally:
        _strict = False


class Stream:
    """Copies on a stream of their own are done when somebody waits for them."""

    def __init__(self, device: object = None) -> None:
        self.waiting: list[Callable[[], object]] = []

    def record_event(self) -> list[Callable[[], object]]:
        waiting, self.waiting = self.waiting, []
        return waiting

    def wait_event(self, event: list[Callable[[], object]]) -> None:
        for copy in event:
            copy()
        event.clear()


class _Runtime(registration._DummyBackendModule):
    """What torch.cuda is to CUDA."""

    Stream = Stream
    _main = Stream()

    def current_stream(self, device: object = None) -> Stream:
        return _rules.stream or self._main

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, _rules.stream = _rules.stream, stream
        try:
            yield
        finally:
            _rules.stream = before

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def init(self) -> None:
        pass

    def synchronize(self, device: object = None) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def reset_peak_memory_stats(self, device: object = None) -> None:
        pass

    def max_memory_reserved(self, device: object = None) -> int:
        return 0

    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        pass


class Pretended(Tensor):
    """A tensor of the device."""

    host: Tensor
    """Its numbers."""
    copied_on: Stream | None
    """The stream that copied them, until the stream that uses them is made known."""

    @staticmethod
    def __new__(cls, host: Tensor) -> Pretended:
        made: Pretended = Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=DEVICE,
        )
        made.host, made.copied_on = host, None
        return made

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(op, args, kwargs or {})

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Pretended({self.host})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.host.__reduce_ex__(protocol)

    def tolist(self) -> Any:
        _object("tolist")
        return self.host.tolist()

    def record_stream(self, stream: Any) -> None:
        self.copied_on = None


def _object(what: str) -> None:
    if _strict:
        raise Waits(what)


def _run(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = op.overloadpacket.__name__
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    here = [tensor for tensor in given if isinstance(tensor, Pretended)]
    to_host = kwargs.get("device") is not None and kwargs["device"].type == "cpu"
    if name == "copy_" and len(here) < len(given):
        return _copy(*args, **kwargs)
    if name in _READING or to_host:
        _object(name)
    elif any(tensor.dim() for tensor in given if not isinstance(tensor, Pretended)):
        raise RuntimeError(f"{op}: tensors on both the host and the device")
    if name == _NO_BFLOAT16 and here[0].dtype == torch.bfloat16:
        raise NotImplementedError(f"{name} of bfloat16")
    if any(tensor.copied_on not in (None, _rules.stream) for tensor in here):
        raise Waits(f"{op}: of a copy whose memory another stream may use again")
    made = op(*tree_map(_host, args), **tree_map(_host, kwargs))

    def back(value: Any) -> Any:
        if to_host or not isinstance(value, Tensor):
            return value
        for tensor in here:
            if tensor.host is value:  # written in place
                return tensor
        return Pretended(value)

    return tree_map(back, made)


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Between the host and the device."""
    if isinstance(source, Pretended) or not (non_blocking and hasattr(source, "pinned")):
        _object("a copy between host and device that is not from pinned memory")
        _host(target).copy_(_host(source))
        return target
    assert isinstance(target, Pretended)
    if _rules.stream is None:
        target.host.copy_(source)
        return target
    target.host.fill_(float("nan") if target.is_floating_point() else -(2**20))
    target.copied_on = _rules.stream
    _rules.stream.waiting.append(lambda: target.host.copy_(source))
    return target


def _host(value: Any) -> Any:
    if isinstance(value, Pretended):
        return value.host
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _pinned(tensor: Tensor, device: object = None) -> Tensor:
    copy = tensor.clone()
    copy.pinned = True  # type: ignore[attr-defined]
    return copy


def _made(op: Any) -> Callable[..., Tensor]:
    def make(*args: Any, **kwargs: Any) -> Tensor:
        kwargs.pop("pin_memory", None)
        return Pretended(op(*args, **kwargs | {"device": "cpu"}))

    return make


def register() -> None:
    """Make torch know the device, for the rest of this process."""
    registration._setup_privateuseone_for_python_backend(_NAME, backend_module=_Runtime())
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", _made(torch.ops.aten.empty.memory_format), "PrivateUse1")
    library.impl("empty_strided", _made(torch.ops.aten.empty_strided.default), "PrivateUse1")
    # torch.tensor(numbers, device=…) comes here past the class above.
    library.impl("_copy_from", lambda source, target, *_: _copy(target, source), "PrivateUse1")
    _libraries.append(library)  # what it registers goes with it
    Tensor.pin_memory = _pinned  # type: ignore[method-assign,assignment]


_libraries: list[torch.library.Library] = []
