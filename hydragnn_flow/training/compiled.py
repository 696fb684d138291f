"""Compiled gradients: kernels made for one network and one size of batch, by torch's inductor.

Inductor fuses a network's operations into fewer kernels, which move less memory. It cannot
differentiate what it has compiled twice, as the forces in a loss need. So a trace of the whole
gradient is compiled: operations on tensors of given sizes (:mod:`.filled`), derivatives included.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from hydragnn_flow.config.network import Architecture, NetworkConfig
from hydragnn_flow.files import sweep, whole_directory
from hydragnn_flow.models.kernels.multilinear import tracing

Compute = Callable[[], list[Tensor]]

# Speeds of compiled over ordinary gradients on a CPU in fp32, a little less than measured.
_SPEEDS = {"SchNet": 1.8, "PAINN": 1.8} | dict.fromkeys(
    ("EGNN", "MACE", "PNA", "PNAPlus", "GAT", "CGCNN", "GIN", "SAGE"), 1.3
)


def expected_speed(network: NetworkConfig) -> float:
    """Return the speed of a network's compiled over ordinary gradients; 1 where none is known."""
    architecture, training = network.Architecture, network.Training
    if (
        isinstance(architecture, Architecture)
        and architecture.global_attn_engine is None
        and not architecture.dropout  # whose compiled gradient cannot be compared
        and training.precision == "fp32"
        and not training.conv_checkpointing  # which inductor would undo
        and _has_compiler()
    ):
        return _SPEEDS.get(architecture.mpnn_type, 1.0)
    return 1.0


def _has_compiler() -> bool:
    return shutil.which(os.environ.get("CXX", "g++")) is not None


def compiled(compute: Compute, cache: Path) -> Compute:
    """Return a function that computes the same from the same tensors, by compiled kernels.

    Parameters
    ----------
    compute
        Function that reads tensors, which keep their place in memory but not their values. All
        else that it reads is constant.
    cache
        Folder in which compiled kernels are kept, for other processes too.

    Raises
    ------
    RuntimeError
        If there is no C++ compiler.
    """
    if not _has_compiler():
        raise RuntimeError("no C++ compiler: install g++ on the nodes, or name another in CXX")
    # Each takes a second to import.
    from torch._guards import TracingContext
    from torch._guards import tracing as tracing_of_torch
    from torch._inductor import compile as compile_graph
    from torch._inductor.runtime.cache_dir_utils import temporary_cache_dir
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with tracing():
        graph, tensors = _with_inputs(make_fx(compute)())
    # Without an environment of shapes, though all are constant, inductor does not ask its cache.
    fake = FakeTensorMode(shape_env=ShapeEnv())
    inputs: list[Any] = [fake.from_tensor(tensor, static_shapes=True) for tensor in tensors]
    with (
        finished(cache / _processor() / _name(graph, tensors)) as folder,
        temporary_cache_dir(str(folder)),
        torch.no_grad(),
        tracing_of_torch(TracingContext(fake)),
    ):
        # Kernels of several threads would add in any order.
        kernels = compile_graph(graph, inputs, options={"compile_threads": 1, "cpp.threads": 1})

    def run() -> list[Tensor]:
        with torch.no_grad():
            return list(kernels(*tensors))

    return run


@contextmanager
def finished(folder: Path) -> Iterator[Path]:
    """Context manager: yield a folder to compile in, which others find when it is finished only.

    A compiler that is killed leaves torn kernels, whose execution would kill other processes. The
    next one removes them.
    """
    if folder.is_dir():
        yield folder
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    sweep(folder.with_name("*"), 3600.0)  # none takes an hour
    with whole_directory(folder) as own:
        yield own


def _with_inputs(traced: fx.GraphModule) -> tuple[fx.GraphModule, list[Tensor]]:
    """Return a trace whose tensors are inputs, and the tensors; its kernels fit other values."""
    graph, inputs = traced.graph, dict[str, Tensor]()
    places: dict[str, fx.Node] = {}
    first = next(iter(graph.nodes))
    for node in list(graph.nodes):
        if node.op != "get_attr":
            continue
        name = str(node.target)
        if name not in inputs:
            inputs[name] = getattr(traced, name).detach()
            with graph.inserting_before(first):
                places[name] = graph.placeholder(f"input_{len(inputs)}")
        node.replace_all_uses_with(places[name])
    graph.eliminate_dead_code()
    return fx.GraphModule({}, graph), list(inputs.values())


def _name(graph: fx.GraphModule, tensors: list[Tensor]) -> str:
    """Return a name for the kernels of a graph of given tensors."""
    inputs = [(each.shape, each.stride(), each.dtype, each.device) for each in tensors]
    about = f"{os.environ.get('CXX')} {inputs} {graph.code}"
    return hashlib.sha256(about.encode()).hexdigest()[:24]


def _processor() -> str:
    """Return a name for the kind of the node's processor, whose kernels may not run on others."""
    about = [platform.machine(), torch.__version__]
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        about += sorted({line for line in lines if line.startswith(("model", "flags", "Feat"))})
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:12]
