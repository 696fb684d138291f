"""A campaign on a whole machine: driver, search and interchange are real; its nodes only speak.

    python whole_machine.py FOLDER NODES BLOCKS HEARTBEAT-SECONDS MEDIAN-SECONDS

As a program, it is the driver.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from parsl.launchers import SimpleLauncher
from parsl.providers import LocalProvider
from results import Line, say
from rich.console import Console

from execution_race.workplace import config, cpu_seconds
from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.dispatch import Dispatch
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.data import prepare_store
from hydragnn_flow.execution import Node, Site, sole_driver
from hydragnn_flow.execution.pools.calls import AGENT
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.execution.site import Options
from hydragnn_flow.execution.sites.batch import Executors
from hydragnn_flow.log import driver_log
from hydragnn_flow.placement import Gcd
from hydragnn_flow.processes import end_with_parent
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory

_GCDS = 8
# Never asked for in full.
_TRIALS = 10_000_000
_PROGRAM = Path(__file__).with_name("node_pools.py")
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_AT_MOST = 900.0
_SECONDS_TO_END = 30.0


@dataclass(frozen=True)
class Plan:
    """Size of the machine, and times."""

    nodes: int
    blocks: int
    median: float
    """Time of a segment [s]."""
    steady: float
    """Time for which a full machine is watched [s]."""
    heartbeat: int
    """Time between two signs of life of a node [s]."""

    @property
    def workers(self) -> int:
        """GCDs of all nodes."""
        return self.nodes * _GCDS


def lines(folder: Path, plan: Plan) -> list[Line]:
    """Fill a machine, watch it, lose a batch job, and lose the driver.

    Parameters
    ----------
    folder
        For run directories.
    plan
        Plan of the machine.
    """
    with _Run(folder, plan) as run:
        found = _filled(run, plan) + _watched(run, plan)
        return found + _lost_block(run, plan) + _lost_driver(run, plan)


def _filled(run: _Run, plan: Plan) -> list[Line]:
    say(f"{plan.nodes:,} nodes come")
    run.until(lambda now: now.nodes == plan.nodes and now.took > 0)
    say(f"{plan.workers:,} GCDs get a segment each")
    end = run.until(lambda now: now.open >= plan.workers)
    return [Line(f"{plan.workers:,} GCDs: full after", end.time - run.began, "s")]


def _watched(run: _Run, plan: Plan) -> list[Line]:
    # Segments that began together end together at first.
    say("segments end and begin")
    full = time.time()
    run.until(lambda now: now.time > full + plan.median / 2)
    begin, cpu = run.now(), run.cpu_seconds()
    end = run.until(lambda now: now.time > begin.time + plan.steady)
    spent, seconds = run.cpu_seconds() - cpu, end.time - begin.time
    idle = end.idle_seconds - begin.idle_seconds
    share = idle / (idle + end.busy_seconds - begin.busy_seconds)
    return [
        Line("GCD time between segments of ten minutes", 100 * share, "%", at_most=2),
        Line("CPU of the driver", 100 * spent / seconds, "% of a core", at_most=60),
        Line("memory of the driver", run.driver().memory_info().rss / 2**30, "GiB", at_most=4),
    ]


def _lost_block(run: _Run, plan: Plan) -> list[Line]:
    say("a block loses all its nodes")
    before, lost = run.blocks(), run.lost()
    run.kill_block(min(before))
    killed = time.time()
    run.until(lambda _: run.lost() > lost)
    noticed = time.time()
    each = plan.workers // plan.blocks
    run.until(lambda _: any(run.took(block) >= each for block in run.blocks() - before))
    what = "an eighth of the nodes is lost: noticed after"
    return [Line(what, noticed - killed, "s", at_most=90)]


def _lost_driver(run: _Run, plan: Plan) -> list[Line]:
    say("the driver is lost, and begins again")
    run.kill()
    run.start()
    ready = run.ready()
    run.until(lambda now: now.open >= plan.workers)
    return [
        Line("the driver is lost: another knows all after", ready - run.began, "s", at_most=60),
        Line("segments done twice", run.done_twice(), at_most=0),
    ]


@dataclass(frozen=True)
class _Now:
    """State that all blocks report together."""

    time: float
    nodes: int
    open: int
    """GCDs that have had a segment."""
    took: int
    idle_seconds: float
    busy_seconds: float


class _Run:
    """A driver with a run directory of its own."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._folder, self._plan = folder, plan
        self.began = 0.0
        """Unix time at which the last driver was started [s]."""

    def __enter__(self) -> _Run:
        self.statistics.mkdir(parents=True)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def statistics(self) -> Path:
        """Folder of the blocks' figures."""
        return self._folder / "statistics"

    def start(self) -> None:
        """Start a driver."""
        (self._folder / "ready").unlink(missing_ok=True)
        self.began = time.time()
        plan = [self._plan.nodes, self._plan.blocks, self._plan.heartbeat, self._plan.median]
        with (self._folder / "output").open("ab") as output:
            self._driver = subprocess.Popen(
                [sys.executable, __file__, str(self._folder), *map(str, plan)],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdout=output,
                stderr=output,
            )

    def kill(self) -> None:
        """Kill the driver and then all nodes."""
        self._driver.kill()
        self._driver.wait()
        for pid in self.blocks():
            self.kill_block(pid)
        # The shells that started the nodes still write how these ended.
        give_up = time.monotonic() + _SECONDS_TO_END
        while time.monotonic() < give_up and any(map(self._is_named, psutil.process_iter())):
            time.sleep(0.1)

    def _is_named(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            return str(self._folder) in " ".join(process.cmdline())
        return False

    def kill_block(self, pid: int) -> None:
        """Kill the nodes of a block, as a power failure does."""
        file = self.statistics / f"{pid}.json"
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        file.unlink()

    def until(self, condition: Callable[[_Now], bool]) -> _Now:
        """Wait for a state.

        Raises
        ------
        SystemExit
            If it does not come, or the driver ends.
        """
        give_up = time.monotonic() + _SECONDS_AT_MOST + self._plan.steady
        while not condition(now := self.now()):
            if self._driver.poll() is not None or time.monotonic() > give_up:
                output = (self._folder / "output").read_text(encoding="utf-8")
                raise SystemExit(f"the driver has ended, or nothing moves: {now}\n{output[-2000:]}")
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return now

    def now(self) -> _Now:
        """The state."""
        total = Counter[str]()
        for file in self.statistics.glob("*.json"):
            said = self._said(file)
            if said.get("time", 0.0) < time.time() - 5.0:
                said["nodes"] = 0  # they are gone
            total.update(said)
        names = ("nodes", "open", "took", "idle_seconds", "busy_seconds")
        return _Now(time.time(), *(total[name] for name in names))

    def blocks(self) -> set[int]:
        """The processes that are the blocks' nodes."""
        found = {int(file.stem) for file in self.statistics.glob("*.json")}
        return set(filter(psutil.pid_exists, found))

    def took(self, block: int) -> int:
        """Segments that a block has been given."""
        return int(self._said(self.statistics / f"{block}.json").get("took", 0))

    def _said(self, file: Path) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(file.read_bytes())
        return said

    def driver(self) -> psutil.Process:
        """The driver's process."""
        return psutil.Process(self._driver.pid)

    def cpu_seconds(self) -> float:
        """CPU time of the driver up to now [s]."""
        return cpu_seconds([self.driver()])

    def lost(self) -> int:
        """Number of segments on record that are lost."""
        return (self._folder / "run" / "segments.jsonl").read_bytes().count(b'"lost"')

    def done_twice(self) -> int:
        """Segments that more than one result on record has done."""
        *whole, _ = (self._folder / "run" / "segments.jsonl").read_bytes().split(b"\n")
        results = map(json.loads, whole)  # without the last, which may still be being written
        done = Counter((r["number"], r["rung"]) for r in results if r["status"] == "ok")
        return sum(times > 1 for times in done.values())

    def ready(self) -> float:
        """Unix time at which the driver knows all that ran [s]."""
        self.until(lambda _: (self._folder / "ready").exists())
        return (self._folder / "ready").stat().st_mtime


def drive(folder: Path, nodes: int, blocks: int, heartbeat: int, median: float) -> None:
    """Search as `hydragnn-flow run` does, as long as the benchmark lives."""
    end_with_parent(os.getppid())
    path = folder / "run"
    path.mkdir(exist_ok=True)
    options = Options(nodes=nodes, blocks=blocks, heartbeat=heartbeat)
    site, campaign = _site(options, median, folder / "statistics"), config(_TRIALS)
    directory = RunDirectory(path)
    with sole_driver(path) as token, driver_log(path, print):
        directory.record_start(campaign)
        store = prepare_store(campaign.data, 4.0, None, 0, directory.store)
        view = CampaignView(Console(quiet=True))
        phase = TrialPhase(Context(campaign, site, directory, store, token, view))
        (folder / "ready").touch()
        with Pool(site, path / "parsl") as pool:
            phase.run(Dispatch(phase.context, pool))


def _site(options: Options, median: float, statistics: Path) -> Site:
    """A machine whose blocks are processes of this one, each with all its nodes."""
    gcd = Gcd(64.0, 1e13, 1e12, launch_seconds=1e-5, process_gib=0.6, most_segments=1)
    node = Node(tuple(map(str, range(_GCDS))), gcd, cores_per_gcd=7, device="cpu")
    provider = partial(LocalProvider, launcher=SimpleLauncher())
    nodes, each = options.nodes or 1, options.nodes_per_block
    executors = Executors(node, options, provider, lambda: "127.0.0.1")

    def parsl_config(directory: Path) -> Any:
        made: Any = executors(directory)
        (executor,) = made.executors
        real = f"{Path(sys.executable).name} -m {AGENT}"
        speaks = f"{sys.executable} {_PROGRAM} {each} {median} {statistics}"
        assert real in executor.launch_cmd
        executor.launch_cmd = executor.launch_cmd.replace(real, speaks)
        return made

    return Site("machine", nodes, node, parsl_config, blocks=options.blocks or 1)


if __name__ == "__main__":
    place, nodes, blocks, heartbeat, seconds = sys.argv[1:]
    drive(Path(place), int(nodes), int(blocks), int(heartbeat), float(seconds))
