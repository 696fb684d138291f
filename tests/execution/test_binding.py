"""What a trainer process is bound to: its device, its cores, its network interface."""

import os
from dataclasses import replace

import pytest

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import Node
from hydragnn_flow.execution.binding import LOOPBACK, address_of, bound_to, cores_of, environment
from hydragnn_flow.placement import Gcd

ALLOWED = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def node_of(device, *gcds, cores=()):
    gcd = Gcd(8, 1e10, 1e10, 1e-5, 0.5, 4)
    return Node(gcds=gcds or ("0", "1", "2"), gcd=gcd, cores_per_gcd=7, device=device, cores=cores)


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch):
    for name in ("CUDA", "ROCR", "HIP"):
        monkeypatch.delenv(f"{name}_VISIBLE_DEVICES", raising=False)
    for name in ("ZE_AFFINITY_MASK", "NCCL_SOCKET_IFNAME", "CCL_KVS_IFACE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("device", "gcd", "bound"),
    [
        # Set, the other two would count among what ROCR_VISIBLE_DEVICES has left.
        ("hip", "1", {"ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": None}),
        ("hip", "1", {"HIP_VISIBLE_DEVICES": None}),
        ("cuda", "1", {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ("xpu", "3", {"ZE_AFFINITY_MASK": "3", "ZE_FLAT_DEVICE_HIERARCHY": "FLAT"}),
        # No MPI launcher starts trainers, whatever the modules of the machine say.
        ("xpu", "3", {"CCL_PROCESS_LAUNCHER": "none", "CCL_KVS_MODE": None}),
        ("xpu", "1.0", {"ZE_AFFINITY_MASK": "1.0", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}),
        ("cpu", "1", {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "7"}),
    ],
)
def test_a_process_sees_the_device_of_its_gcd_alone(device, gcd, bound):
    assert bound.items() <= environment(node_of(device, "0", gcd), 1).items()


@pytest.mark.parametrize(
    ("given", "devices"),
    [
        ("4,5,6", ["4", "5", "6"]),  # a share of a node
        ("2,0,1", ["0", "1", "2"]),  # all that the site names, however ordered
        ("1,2,3", ["1", "2", "3"]),
    ],
)
def test_trainers_keep_to_the_devices_the_job_was_given(monkeypatch, given, devices):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    node = node_of("cuda")
    found = [environment(node, position)["CUDA_VISIBLE_DEVICES"] for position in range(3)]
    assert found == devices


def test_a_device_the_job_was_not_given_is_refused(monkeypatch):
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "4,5")
    with pytest.raises(InputError, match="only ROCR_VISIBLE_DEVICES=4,5; ask the scheduler"):
        environment(node_of("hip"), 2)


def test_nccl_keeps_to_the_interface_unless_the_user_chose(monkeypatch):
    node = replace(node_of("hip"), interface="hsn0")
    assert environment(node, 0)["NCCL_SOCKET_IFNAME"] == "=hsn0"
    assert environment(node_of("hip"), 0)["NCCL_SOCKET_IFNAME"] == f"={LOOPBACK}"
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "hsn0,hsn1")
    assert "NCCL_SOCKET_IFNAME" not in environment(node, 0)


@pytest.mark.skipif(len(ALLOWED) < 2, reason="needs two cores and Linux to bind to")
def test_cores_are_those_of_the_gcd_that_the_process_may_use():
    first, last = ALLOWED[0], ALLOWED[-1]
    node = node_of("cpu", cores=(f"{first}", f"{last},100000-100007", "100000-100007"))
    assert [cores_of(node, position) for position in range(3)] == [{first}, {last}, set()]
    assert cores_of(node_of("cpu"), 0) == set()
    with bound_to({last}):
        assert os.sched_getaffinity(0) == {last}
        with bound_to(set()):
            assert os.sched_getaffinity(0) == {last}, "without cores of its own it keeps what is"
    assert sorted(os.sched_getaffinity(0)) == ALLOWED


def test_an_interface_that_is_not_there_is_named():
    assert address_of(LOOPBACK) == "127.0.0.1"
    with pytest.raises(InputError, match=rf"no network interface 'hsn7' .*\b{LOOPBACK}\b"):
        address_of("hsn7")
