"""Ranks of a job on this machine, each a process of its own, that talk through gloo."""

from __future__ import annotations

import faulthandler
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed import FileStore  # type: ignore[attr-defined]  # absent from torch's types
from torch.multiprocessing.spawn import start_processes

from hydragnn_flow.training.distributed import joined

# After which a rank that hangs ends itself, with a traceback [s].
_PATIENCE = 4 * 3600.0


def on_ranks(size: int, work: Callable[..., Any], *given: Any) -> list[Any]:
    """Answers of all ranks, as JSON has them.

    Parameters
    ----------
    size
        Number of ranks.
    work
        A function of a module, called by each with its :class:`World` and what is given.
    """
    with tempfile.TemporaryDirectory() as shared:
        start_processes(  # type: ignore[no-untyped-call]
            _rank, (size, shared, work, given), nprocs=size, join=True, start_method="spawn"
        )
        return [json.loads(_answer(shared, rank).read_bytes()) for rank in range(size)]


def _rank(
    rank: int, size: int, shared: str, work: Callable[..., Any], given: tuple[Any, ...]
) -> None:
    faulthandler.dump_traceback_later(_PATIENCE, exit=True)
    torch.set_num_threads(1)
    with joined(rank, size, FileStore(f"{shared}/store", size), "cpu") as world:
        answer: Any = work(world, *given)
    _answer(shared, rank).write_text(json.dumps(answer), encoding="utf-8")


def _answer(shared: str, rank: int) -> Path:
    return Path(shared) / f"{rank}.json"
