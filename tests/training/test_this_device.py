"""What is computed on where nobody says."""

import os
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from hydragnn_flow.execution.sites.this_node import this_node
from hydragnn_flow.training.distributed import lost_a_rank, this_device


def seen(monkeypatch, kind, available):
    """Have torch be a build for a kind of accelerator."""

    def current(check_available=False):
        return torch.device(kind) if kind and (available or not check_available) else None

    monkeypatch.setattr(torch.accelerator, "current_accelerator", current)


@pytest.mark.parametrize(
    ("kind", "available"),
    [(None, False), ("cuda", False), ("mps", True)],  # "cuda": torch of PyPI, on a login node
)
def test_an_accelerator_that_is_no_use_is_not_taken(monkeypatch, kind, available):
    seen(monkeypatch, kind, available)
    assert this_device().type == "cpu"


@pytest.mark.parametrize(
    ("kind", "hip", "expected"),
    [("cuda", None, "cuda"), ("cuda", "7.0", "hip"), ("xpu", None, "xpu")],
)
def test_the_site_of_this_machine_has_its_accelerators(monkeypatch, kind, hip, expected):
    """Stood in for: what is asked of torch's module for the device, since none is here."""
    seen(monkeypatch, kind, True)
    runtime: Any = SimpleNamespace(
        device_count=lambda: 4,
        get_device_properties=lambda number: SimpleNamespace(total_memory=40 * 2**30),
    )
    monkeypatch.setattr(torch, kind, runtime)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert this_device().type == kind
    node = this_node()
    assert (node.gcds, node.device) == (("0", "1", "2", "3"), expected)
    assert node.gcd.memory_gib == pytest.approx(36)


def test_slots_of_cpu_cores_have_room_for_a_process(monkeypatch):
    """On a laptop of many cores and little memory, no trial would fit a slot for each core."""
    seen(monkeypatch, "cuda", False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=8 * 2**30))
    node = this_node()
    assert (len(node.gcds), node.cores_per_gcd) == (7, 2)
    assert node.gcd.memory_gib > node.gcd.process_gib


@pytest.mark.parametrize(
    ("said", "is_lost"),
    [
        ("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer", True),
        ("NCCL error in: ../ProcessGroupNCCL.cpp:94, remote process exited", True),
        ("oneCCL: atl_ofi_comm.cpp:125 allgatherv: EXCEPTION: send failed", True),
        ("oneCCL: allreduce_entry.hpp:63 update: EXCEPTION: ALLREDUCE entry failed. "
         "atl_status: FAILURE", True),
        # Every rank would say so again, wherever it is sent.
        ("oneCCL: exec.cpp:134 start_workers: EXCEPTION: failed to start worker # 0", False),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)  # fmt: skip
def test_a_lost_rank_is_known_by_the_words_of_each_backend(said, is_lost):
    assert lost_a_rank(RuntimeError(said)) is is_lost
