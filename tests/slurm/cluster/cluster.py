"""A private Slurm cluster of real daemons on one machine, started in about two seconds.

Each node is a slurmd in network, process, mount, IPC and host-name namespaces of its own: it has
its own loopback, ports, /dev/shm and scratch disk, and can lose power. The login node has some of
them too, and the bridge to the nodes exists there only: the machine's own network is not touched,
and clusters side by side do not meet. The kernel ends every process with the one that started the
cluster, however that ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from cluster.settings import GCDS, INTERFACE, LOGIN, LOGIN_ADDRESS, address, write_settings

_HERE = Path(__file__).resolve().parent
_PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "munged": "munge",
    "ip": "iproute2",
    "nsenter": "util-linux",
}
_DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
# The tests themselves may run under nohup, which their children would inherit.
_HEARS_HANGUPS = ("env", "--default-signal=HUP")


@dataclass(frozen=True)
class Job:
    """A batch job as squeue shows it."""

    number: str
    state: str
    reason: str
    n_nodes: int
    nodes: str
    """As Slurm writes a list of them; empty while it waits."""


def missing() -> str:
    """What this machine lacks for a cluster, and the remedy; nothing where it lacks nothing."""
    if os.geteuid() != 0:
        return "a private Slurm needs root: run `sudo make test-slurm`, or a container as root"
    absent = sorted({package for name, package in _PACKAGES.items() if not shutil.which(name)})
    if absent:
        return f"a private Slurm needs `apt-get install --no-install-recommends {' '.join(absent)}`"
    probe = "ip link add b0 type bridge && ip link add v0 type veth peer name v1"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "sh", "-c", probe],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode != 0:
        return (
            "a private Slurm needs namespaces and virtual network links "
            f"({tried.stderr.strip()}): run the container with `--privileged`"
        )
    return ""


class Cluster:
    """A cluster from entering a ``with`` block to leaving it; each node has eight GCDs."""

    def __init__(self, nodes: int = 4, latency: float = 0.0) -> None:
        self._latency = latency  # of the first node's cable [s]; the second's is twice as long
        self.nodes = tuple(f"frontier{number:05d}" for number in range(1, nodes + 1))
        self.home = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.disk = self.home / "disk"
        """A small shared disk that all nodes see."""
        self.freezer = self.home / "freezer"
        """Another one, which can be frozen; see :meth:`freezer_is_there`."""
        self.scratch = self.home / "scratch"
        """A disk of each node's own, by the same name."""
        self.environment = {"SLURM_CONF": str(self.home / "etc/slurm.conf")}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._drivers: list[subprocess.Popen[bytes]] = []
        self._cleared = frozenset[str]()

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def on_login(self, *command: str | Path) -> list[str]:
        """A command as it is given on the login node; it keeps its process number."""
        login = str(self._running[LOGIN].pid)
        words = [str(word) for word in command]
        return ["nsenter", "-t", login, "--net", "--mount", "--uts", f"--wd={Path.cwd()}", *words]

    def popen(self, command: Sequence[str | Path], log: Path) -> subprocess.Popen[bytes]:
        """Start a command on the login node; it is killed with the cluster at the latest."""
        with log.open("ab") as output:
            started = subprocess.Popen(
                [*_DIES_WITH_US, *_HEARS_HANGUPS, *self.on_login(*command)],
                stdout=output,
                stderr=output,
                env={**os.environ, **self.environment},
            )
        self._drivers.append(started)
        return started

    def ask(self, *command: str | Path, seconds: float = 60.0) -> str:
        """What a command prints on the login node."""
        return subprocess.run(
            self.on_login(*command),
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=seconds,
        ).stdout

    def squeue(self) -> list[Job]:
        """Jobs that have not ended."""
        return self._jobs()

    def jobs(self) -> list[Job]:
        """Every job there has been since the last clearing, in the order of submission."""
        jobs = self._jobs("--states=all", "--sort=i")
        return [job for job in jobs if job.number not in self._cleared]

    def nodes_of(self, job: Job) -> list[str]:
        """The nodes a job has."""
        return self.ask("scontrol", "show", "hostnames", job.nodes).split() if job.nodes else []

    def scancel(self, job: str) -> None:
        """End a job, as its owner or an operator does."""
        self.ask("scancel", job)

    def power_off(self, node: str) -> None:
        """End every process of a node at once; what it had in memory and on its disk is gone.

        It stays off until the cluster is cleared.
        """
        process = self._running.pop(node)
        process.kill()
        process.wait()

    @contextmanager
    def without_scheduler(self) -> Iterator[None]:
        """Have no slurmctld, which was killed, within the ``with`` block; jobs go on."""
        process = self._running.pop("slurmctld")
        process.kill()
        process.wait()
        try:
            yield
        finally:
            self._start_scheduler()
            self._wait("slurmctld to answer", lambda: self._answers("squeue"))

    def freezer_is_there(self) -> bool:
        """Whether this machine could mount a file system that can be frozen."""
        return self.seen_from_login(self.freezer).is_mount()

    def freeze(self, seconds: int) -> None:
        """Have a file system block whoever writes to it, for so long [s].

        The command thaws it itself, should the test be killed.
        """
        thaws = f"fsfreeze --freeze $0 && sleep {seconds}; fsfreeze --unfreeze $0"
        self.ask("sh", "-c", thaws, self.freezer, seconds=seconds + 60.0)

    def on_node(self, node: str, *command: str | Path) -> None:
        """Run a command that sees what a node sees of the disks."""
        where = ["nsenter", "-t", str(self._running[node].pid), "--mount"]
        subprocess.run([*where, *map(str, command)], check=True)

    def files(self, node: str, under: Path) -> set[str]:
        """Names of the files and folders below a folder, as a node sees it."""
        there = Path(f"/proc/{self.processes(node)[0].pid}/root") / under.relative_to("/")
        return {path.name for path in there.rglob("*")}

    def processes(self, node: str) -> list[psutil.Process]:
        """The processes of a node; none if it is off."""
        if node not in self._running:
            return []
        return psutil.Process(self._running[node].pid).children(recursive=True)

    def wait_until(self, reached: Callable[[], bool], seconds: float = 60.0) -> bool:
        """Wait for something that Slurm or a node does; whether it came in time."""
        give_up = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > give_up:
                return False
            time.sleep(0.1)
        return True

    def seen_from_login(self, path: Path) -> Path:
        """A path on the login node's own mounts, as this process reaches it."""
        return Path(f"/proc/{self._running[LOGIN].pid}/root") / path.relative_to("/")

    def clear(self) -> None:
        """Be as after the start: no driver, no job, every node on, nothing on any disk."""
        for driver in self._drivers:
            driver.kill()
            driver.wait()
        self._drivers.clear()
        self.ask("scancel", "--full", "--user=root")
        for node in self.nodes:
            if node not in self._running:
                self._start_node(node)
        self._wait("cancelled jobs to leave", lambda: not self.squeue())
        for node in self.nodes:
            self.on_node(node, "find", "/dev/shm", self.scratch, "-mindepth", "1", "-delete")
        self.ask("find", self.disk, self.freezer, "-mindepth", "1", "-delete")
        # Slurm goes on listing them.
        self._cleared = frozenset(job.number for job in self._jobs("--states=all"))
        self._wait_for_nodes(self.nodes)

    def _jobs(self, *options: str) -> list[Job]:
        jobs = []
        for line in self.ask("squeue", "--noheader", "--format=%i|%T|%r|%D|%N", *options).split():
            number, state, reason, n_nodes, nodes = line.split("|")
            jobs.append(Job(number, state, reason, int(n_nodes), nodes))
        return jobs

    def _start(self) -> None:
        for folder in ("etc", "state", "spool", "run", "log", "dev", "scratch", "disk", "freezer"):
            (self.home / folder).mkdir()
        write_settings(self.home, self.nodes)
        for gcd in range(GCDS):
            os.mknod(self.home / f"dev/gcd{gcd}", 0o666 | 0o020000, os.makedev(1, 3))
        self._daemon(
            LOGIN,
            ["unshare", "--net", "--mount", "--uts", "--propagation=private"],
            [_HERE / "login.sh", self.home, LOGIN, LOGIN_ADDRESS, INTERFACE],
        )
        self._wait("the login node", (self.home / "run/login.ready").exists)
        run, log = self.home / "run", self.home / "log"
        key = self.home / "etc/munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        munged = f"""munged --force --foreground --key-file={key} --socket={run}/munge.socket
            --pid-file={run}/munged.pid --log-file={log}/munged.log --seed-file={run}/munge.seed"""
        self._daemon("munged", [], munged.split())
        self._wait("munged", (run / "munge.socket").exists)
        self._start_scheduler("-c")
        for node in self.nodes:
            self._start_node(node)
        self._wait_for_nodes(self.nodes)

    def _start_scheduler(self, *options: str) -> None:
        # In a process namespace, for none of its children to stay behind.
        alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._daemon("slurmctld", [*self.on_login(), *alone], ["slurmctld", "-D", *options])

    def _start_node(self, node: str) -> None:
        number = self.nodes.index(node) + 1
        (self.home / "spool" / node).mkdir(exist_ok=True)
        namespaces = "--net --uts --ipc --mount --pid --fork --kill-child --mount-proc"
        process = self._daemon(
            node,
            [*self.on_login(), "unshare", *namespaces.split(), "--propagation=private"],
            [_HERE / "node.sh", self.home, node, address(number), INTERFACE],
        )
        ours = Path("/proc/self/ns/net").readlink()
        login = Path(f"/proc/{self._running[LOGIN].pid}/ns/net").readlink()
        link = Path(f"/proc/{process.pid}/ns/net")
        self._wait(node, lambda: link.readlink() not in (ours, login))
        plug = f"ip link add node{number} type veth peer name {INTERFACE} netns {process.pid}"
        if self._latency:
            ends = f"{process.pid} {INTERFACE} {self._running[LOGIN].pid} node{number}".split()
            command = [sys.executable, _HERE / "cable.py", str(number * self._latency), *ends]
            self._daemon(f"cable{number}", [], command)
            plug = f"until ip link show node{number}; do sleep 0.1; done"
        self.ask("sh", "-ec", f"{plug}\nip link set node{number} master {INTERFACE} up")
        wire = f"""
            ip link set lo up
            ip addr add {address(number)}/24 dev {INTERFACE}
            ip link set {INTERFACE} up"""
        subprocess.run(["nsenter", "-t", str(process.pid), "-n", "sh", "-ec", wire], check=True)

    def _daemon(
        self, name: str, before: Sequence[str], command: Sequence[str | Path]
    ) -> subprocess.Popen[bytes]:
        with (self.home / "log" / f"{name}.out").open("ab") as output:
            process = subprocess.Popen(
                [*_DIES_WITH_US, *before, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **self.environment},
                start_new_session=True,  # Ctrl-C is for the test, not for the machine
            )
        self._running[name] = process
        return process

    def _wait_for_nodes(self, nodes: Sequence[str]) -> None:
        def idle() -> bool:
            asked = self._tried("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N")
            return set(nodes) <= set(asked.stdout.split())

        self._wait("slurmctld to call its nodes idle", idle)

    def _answers(self, command: str) -> bool:
        return self._tried(command).returncode == 0

    def _tried(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.on_login(*command),
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def _wait(self, what: str, ready: Callable[[], bool], seconds: float = 60.0) -> None:
        give_up = time.monotonic() + seconds
        while not ready():
            dead = [name for name, p in self._running.items() if p.poll() is not None]
            if dead or time.monotonic() > give_up:
                logs = [self.home / "log" / f"{name}.out" for name in dead or ("slurmctld",)]
                said = "\n".join(log.read_text()[-2000:] for log in logs)
                raise RuntimeError(f"waited in vain for {what}; {dead or 'nothing'} died: {said}")
            time.sleep(0.05)

    def _stop(self) -> None:
        processes = [*self._drivers, *reversed(self._running.values())]
        for process in processes:
            process.send_signal(signal.SIGKILL)
        for process in processes:
            process.wait()
        self._running.clear()
        shutil.rmtree(self.home, ignore_errors=True)
