"""The device of these tests, and what they all read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from device_cases import write_labelled
from trainer_cases import end_all

from hydragnn_flow.data import GraphStore
from hydragnn_flow.execution import Node
from hydragnn_flow.execution.site import Device, guessed_gcd
from hydragnn_flow.execution.workers.worker import trainers_of
from hydragnn_flow.training.distributed import this_device


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    """What ``--device`` names, or an accelerator that torch sees, or the CPU."""
    found = this_device().type
    asked = request.config.getoption("--device") or found
    if asked not in ("cpu", found):
        pytest.fail(f"--device {asked}: torch {torch.__version__} sees no such device")
    return torch.device(asked)


@pytest.fixture
def accelerator(device: torch.device) -> torch.device:
    """The device, for what a CPU cannot show."""
    if device.type == "cpu":
        pytest.skip("NOT CHECKED on a CPU: there is nothing on another device")
    return device


@pytest.fixture(scope="session")
def store(alloy_store: GraphStore, tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    return write_labelled(tmp_path_factory.mktemp("labelled") / "store.gs", alloy_store)


@pytest.fixture
def node(device: torch.device) -> Iterator[Node]:
    """One node with every device that torch sees, or two CPU slots; trainers end with the test."""
    on_cpu = device.type == "cpu"
    n = 2 if on_cpu else torch.get_device_module(device).device_count()
    kind: Device = "hip" if torch.version.hip and not on_cpu else device.type  # type: ignore[assignment]
    node = Node(tuple(map(str, range(n))), guessed_gcd(kind, 4.0), 1, kind)
    yield node
    end_all(trainers_of(node))
    trainers_of.cache_clear()
