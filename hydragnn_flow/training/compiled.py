"""Compiled gradients: kernels made for one network and one size of batch, by torch's inductor.

Inductor fuses a network's operations into fewer kernels, which move less memory. It cannot
differentiate what it has compiled twice, as the forces in a loss need. So a trace of the whole
gradient is compiled: operations on tensors of given sizes (:mod:`.filled`), derivatives included.

`Training.compile: auto` compiles where the steps to come are worth the time that it takes. The
rules for that are here, and the trainer asks them.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx
from torch_geometric.data import Batch

from hydragnn_flow.config.network import Architecture, NetworkConfig
from hydragnn_flow.data import GraphSplit
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import sweep, whole_directory, write_json
from hydragnn_flow.models.kernels.multilinear import tracing
from hydragnn_flow.plain_files import read_json
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.filled import Size, choose_sizes
from hydragnn_flow.training.plan.batching import Ints

Compute = Callable[[], list[Tensor]]

# Speeds of compiled over ordinary gradients on a CPU in fp32, a little less than measured.
_SPEEDS = {"SchNet": 1.8, "PAINN": 1.8} | dict.fromkeys(
    ("EGNN", "MACE", "PNA", "PNAPlus", "GAT", "CGCNN", "GIN", "SAGE"), 1.3
)
# Time to compile the kernels of one size [CPU s], at most; half of it is usual.
_COMPILED = 120.0
# File of a segment's directory with the sizes that were chosen: after a restart, their kernels are
# there.
_CHOSEN = "compiled.json"


class FirstBatches(NamedTuple):
    """Batches of the first epoch, which stand for those of a whole training.

    All but :attr:`left` are the same after a restart.
    """

    pieces: list[Ints]
    """Indices of the graphs of each batch."""
    rows: Ints
    """Number of graphs, atoms and edges of each batch, ``[n, 3]``."""
    largest: int
    """Number of atoms of the largest graph."""
    number: int
    """Number of batches of the whole training."""
    left: int
    """Number of batches to come."""

    def sizes(self, most: int) -> list[Size]:
        """Choose at most ``most`` sizes for batches of the training, by :func:`choose_sizes`."""
        return choose_sizes(self.rows, self.largest, self.number, most)

    def of_sizes(self, sizes: Sequence[Size]) -> Iterator[Ints]:
        """Yield the graphs of the first two batches that are filled up to each of ``sizes``."""
        done = Counter[Size]()
        for piece, (graphs, atoms, edges) in zip(self.pieces, self.rows.tolist(), strict=True):
            fitting = (size for size in sizes if size.holds(graphs, atoms, edges, self.largest))
            size = next(fitting, None)
            if size is not None and done[size] < 2:
                done[size] += 1
                yield piece


def sizes_that_pay(
    spec: SegmentSpec,
    device: torch.device,
    ranks: int,
    first_batches: Callable[[], FirstBatches],
    split: GraphSplit,
    gradient: Callable[[Batch], object],
) -> list[Size]:
    """Choose the sizes of batches to compile steps for; none if that takes longer than it saves.

    Parameters
    ----------
    spec
        Segment to train; a choice is kept in its directory.
    device, ranks
        Device and number of ranks that train it.
    first_batches
        Function that returns the first batches.
    split, gradient
        Graphs to train on, and function that computes the ordinary gradient of a batch of them,
        which is measured.
    """
    speed = expected_speed(spec.network)
    # Compiled kernels use one thread.
    if speed == 1.0 or device.type != "cpu" or spec.threads * ranks > 1:
        return []
    file = spec.folder / _CHOSEN
    with suppress(InputError, KeyError, TypeError):  # it is not there yet, or damaged
        return [Size(*size) for size in read_json(file)["sizes"]]
    first = first_batches()
    if first.left < 300:  # so that three gradients take 1 % at most
        return []
    batches = map(split.batch, (3 * first.pieces)[:3])
    seconds = min((_seconds_of_an_edge(gradient, one) for one in batches), default=math.inf)
    sizes = sizes_to_compile(first, seconds, speed)
    with suppress(OSError):
        if sizes:
            write_json(file, {"sizes": [[*map(int, size)] for size in sizes]})
    return sizes


def sizes_to_compile(first: FirstBatches, seconds: float, speed: float) -> list[Size]:
    """Choose the sizes whose compiled kernels save the most time; none if that is too little.

    Parameters
    ----------
    first
        Batches of the training; compiling has to pay in those to come.
    seconds
        Measured time of an ordinary gradient, divided by the edges of its batch [s].
    speed
        Speed of compiled over ordinary gradients of the same size.
    """
    own, best, most, pays = first.rows[:, 2], list[Size](), 0.0, False
    for count in range(1, 7):
        if sizes := first.sizes(count):
            edges = np.array([size.edges for size in sizes])
            filled = edges[np.searchsorted(edges, own).clip(max=len(edges) - 1)]
            saved = seconds * float(np.mean(own - filled / speed))
            cost = _COMPILED * len(sizes)
            if first.number * saved - cost > most:
                most, pays = first.number * saved - cost, first.left * saved > cost
                best = sizes
    return best if pays else []


def _seconds_of_an_edge(gradient: Callable[[Batch], object], batch: Batch) -> float:
    began = time.thread_time()
    gradient(batch)
    seconds = time.thread_time() - began
    return seconds / max(1, int(batch.num_edges))


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
