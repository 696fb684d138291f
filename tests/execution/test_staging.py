"""The environment on a node's own disk: packed, verified and unpacked by the real programs."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import load_site
from hydragnn_flow.execution.sites.batch import Executors
from hydragnn_flow.execution.sites.staging import ARCHIVE, SCRIPT, pack_environment
from hydragnn_flow.testing.sites import executors_of


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A small environment, which this process is made to believe it runs in."""
    prefix = tmp_path / "shared"
    packages = prefix / "lib"
    (packages / "torch-1.dist-info").mkdir(parents=True)
    (prefix / "bin").mkdir()
    (prefix / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(packages))
    return prefix


@pytest.fixture
def packed(tmp_path, shared):
    """Directories of a run that has it, and of a node."""
    pack_environment(tmp_path / "run", tmp_path / "node")
    return tmp_path / "run", tmp_path / "node"


def start(run, shared):
    """Start workers as a node does; returns the Python they start with, and what is said."""
    ran = subprocess.run(
        ["sh", "-c", f". {run / SCRIPT}; command -v python"],
        env={"PATH": f"{shared}/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.strip(), ran.stderr


def test_workers_start_from_the_nodes_own_copy_which_is_unpacked_once(packed, shared):
    run, node = packed
    with ThreadPoolExecutor(4) as pool:
        started = set(pool.map(lambda _: start(run, shared), range(4)))
    ((python, said),) = started
    assert Path(python).is_relative_to(node)
    assert said == ""
    assert subprocess.run([python, "-c", ""]).returncode == 0
    (run / ARCHIVE).unlink()
    assert start(run, shared) == (python, ""), "the copy was not used again"


def test_a_damaged_archive_is_not_unpacked(packed, shared):
    run, node = packed
    with (run / ARCHIVE).open("r+b") as file:
        file.seek(100)
        file.write(b"damage")
    python, said = start(run, shared)
    assert python == str(shared / "bin" / "python")
    assert "is not what was packed" in said
    assert "workers use the shared one" in said
    assert [path.suffix for path in node.iterdir()] == [".lock"]


def test_a_node_without_room_uses_the_shared_environment(tmp_path, shared):
    run, node = tmp_path / "run", tmp_path / "node"
    node.write_text("where the directory should be")
    pack_environment(run, node)
    python, said = start(run, shared)
    assert python == str(shared / "bin" / "python")
    assert "has no copy of the environment" in said


def test_a_copy_is_unpacked_anew_after_a_kill_and_from_what_was_broadcast(packed, shared):
    run, _ = packed
    copy = Path(start(run, shared)[0]).parents[1]
    (copy / ".complete").unlink()  # it was killed before the end
    (copy / "bin" / "python").unlink()
    assert start(run, shared) == (str(copy / "bin" / "python"), "")
    subprocess.run(["rm", "-r", copy], check=True)
    sent = copy.with_name(f"{copy.name}.tar")
    (run / ARCHIVE).rename(sent)
    assert start(run, shared) == (str(copy / "bin" / "python"), "")
    assert not sent.exists()


def test_it_is_packed_again_only_for_other_packages(tmp_path, shared, capsys):
    run, node = tmp_path / "run", tmp_path / "node"
    said = []
    for _ in range(2):
        pack_environment(run, node)
        said.append(capsys.readouterr().err)
    (shared / "lib" / "numpy-2.dist-info").mkdir()
    pack_environment(run, node)
    said.append(capsys.readouterr().err)
    assert [bool(line) for line in said] == [True, False, True]


@pytest.mark.parametrize(
    ("options", "is_staged", "sends"),
    [
        ({"nodes": 63}, False, False),
        ({"nodes": 64}, True, True),
        ({"nodes": 64, "environment": "shared"}, False, True),
        ({"nodes": 1, "environment": "stage"}, True, False),
    ],
)
def test_many_nodes_start_from_their_own_disks(options, is_staged, sends, tmp_path):
    site = load_site("frontier", account="ABC123", **options)
    assert site.sends_store is sends
    executor, script = executors_of(site, tmp_path)["gcd"], tmp_path / SCRIPT
    assert executor.launch_cmd.startswith(f". {script}; python") is is_staged
    assert (f"sh {script} broadcast" in executor.provider.worker_init) is is_staged
    assert ("umask 077; srun" in executor.provider.worker_init) is sends


def test_where_nobody_asked_for_it_an_environment_that_cannot_be_packed_stays_where_it_is(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    caplog.set_level("INFO", "hydragnn_flow")
    executors = load_site("frontier", account="ABC123", nodes=64).parsl_config
    assert isinstance(executors, Executors) and not executors.has_to_stage
    executors = replace(executors, address=lambda: "127.0.0.1")
    (executor,) = executors(tmp_path).executors
    assert SCRIPT not in executor.launch_cmd
    assert "nodes read it where it is" in caplog.text
    asked = load_site("frontier", account="ABC123", environment="stage").parsl_config
    assert isinstance(asked, Executors)
    with pytest.raises(InputError, match="is the system's Python"):
        replace(asked, address=executors.address)(tmp_path)
