"""Internals of Parsl that the package uses: each is there, and none is used that is not listed."""

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType

import parsl.addresses
import pytest
from parsl.executors import HighThroughputExecutor
from parsl.executors.high_throughput import executor, interchange, process_worker_pool
from parsl.executors.high_throughput.manager_record import ManagerRecord
from parsl.executors.high_throughput.mpi_resource_management import TaskScheduler
from parsl.providers import LocalProvider, LSFProvider, PBSProProvider, SlurmProvider

import hydragnn_flow
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import site

EXECUTION = Path(hydragnn_flow.__file__).parent / "execution"
# Documented names, which other modules import from Parsl than `parsl_internals.py`.
DOCUMENTED = {"parsl", "parsl.executors", "parsl.launchers", "parsl.providers"}
OF_PROVIDERS = (
    "script_dir resources worker_init launcher nodes_per_block max_blocks submit cancel "
    "status_polling_interval"
)
OF_BATCH = f"{OF_PROVIDERS} execute_wait scheduler_options walltime"
# What is read, set or replaced.
USED = {
    HighThroughputExecutor: "provider label address encrypted logdir run_id run_dir cert_dir "
    "interchange_launch_cmd launch_cmd interchange_proc outgoing_q incoming_q command_client "
    "_result_queue_thread bad_state_is_set executor_exception status_facade blocks_to_job_id "
    "scale_out_facade submit_payload outstanding start shutdown heartbeat_period logconf_path "
    "worker_port initialize_scaling _get_launch_command available_accelerators cpu_affinity "
    "max_workers_per_node workers_per_node cores_per_worker mem_per_worker",
    interchange.Interchange: "start process_command process_task_incoming count socks "
    "process_manager_socket_message expire_bad_managers expire_drained_managers command_channel "
    "task_incoming manager_sock results_outgoing _ready_managers heartbeat_threshold",
    ManagerRecord: "tasks active draining drain_time idle_since",
    process_worker_pool.Manager: "start create_reg_message heartbeat_to_incoming task_scheduler "
    "pending_result_queue worker_count",
    TaskScheduler: "put_task get_result",
    interchange: "time",
    process_worker_pool: "time distributions SpawnContext get_arg_parser",
    SlurmProvider: f"{OF_BATCH} cores_per_node mem_per_node",
    PBSProProvider: f"{OF_BATCH} cpus_per_node select_options",
    LSFProvider: f"{OF_BATCH} request_by_nodes cores_per_node",
    LocalProvider: f"{OF_PROVIDERS} status",
    parsl.providers.cluster_provider: "execute_wait",
    parsl.addresses: "address_by_interface",
    executor: "get_all_addresses",
}


def attributes(owner):
    """Those of a module, or of a class and of its objects, which its methods name."""
    found = {*dir(owner), *getattr(owner, "__annotations__", ())}
    for kind in () if isinstance(owner, ModuleType) else owner.__mro__:
        for method in filter(inspect.isfunction, vars(kind).values()):
            found |= {*inspect.unwrap(method).__code__.co_names}
    return found


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in USED.items() for name in names.split()]
)
def test_it_is_there(owner, name):
    assert name in attributes(owner)


def test_only_documented_names_are_imported_elsewhere():
    for path in EXECUTION.parent.rglob("*.py"):
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        found = {node.module for node in tree if isinstance(node, ast.ImportFrom) and node.module}
        used = {module for module in found if module.partition(".")[0] == "parsl"}
        assert path.name == "parsl_internals.py" or used <= DOCUMENTED, path


@pytest.mark.parametrize(
    ("module", "pattern"),
    [
        ("pools/parsl_executor.py", r"\b(?:executor|_executor|_provider)\.(\w+)"),
        ("pools/interchange.py", r'\bsuper\(\)\.(\w+)|\brecord\["(\w+)'),
        ("pools/agent.py", r"\b(?:super\(\)|_parsls|process_worker_pool)\.(\w+)"),
        ("sites/preview.py", r"\b(?:executor|provider)\.(\w+)"),
        ("sites/own_config.py", r"\b(?:executor|provider|made)\.(\w+)"),
    ],
)
def test_what_is_used_is_listed(module, pattern):
    text = (EXECUTION / module).read_text(encoding="utf-8")
    used = {name for match in re.finditer(pattern, text) for name in match.groups() if name}
    listed = {name for names in USED.values() for name in names.split()}
    assert not used - listed - {"__init__", "Manager"}


@pytest.mark.parametrize("other", ["2026.10.12", "2026.11.2", "2027.1.4+dev"])
def test_another_version_is_said_in_a_sentence(other, monkeypatch):
    site.load_site("local")
    monkeypatch.setattr(site, "version", {"parsl": other}.get)
    with pytest.raises(InputError, match=rf"^Parsl {re.escape(other)} was not tested .* install "):
        site.load_site("local")


def test_the_installation_is_bounded_alike():
    text = (EXECUTION.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert '"parsl>={},<{}"'.format(*site.PARSL) in text
