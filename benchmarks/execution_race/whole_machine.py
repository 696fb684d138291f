"""A campaign on a whole machine: driver, search and interchange are real; its nodes only speak.

    python whole_machine.py FOLDER NODES BLOCKS HEARTBEAT-SECONDS MEDIAN-SECONDS

As a program, it is the driver.
"""

from __future__ import annotations

import json
import math
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
from statistics import NormalDist
from typing import Any

import psutil
from parsl.launchers import SimpleLauncher
from parsl.providers import LocalProvider
from results import Line
from rich.console import Console

from execution_race.node_pools import SIGMA
from execution_race.processes import cpu_seconds, family, wait_until_unnamed
from execution_race.shared_directory import STRACE, calls_per_second
from execution_race.workplace import config
from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.dispatch import Dispatch
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.data import prepare_store
from hydragnn_flow.execution import Node, Site, sole_driver
from hydragnn_flow.execution.options import Options
from hydragnn_flow.execution.pools.calls import AGENT
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.execution.sites.batch import Executors
from hydragnn_flow.log import driver_log
from hydragnn_flow.placement import Gcd
from hydragnn_flow.processes import end_with_parent
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.training.monitor import SAVES_PER_SECOND

_ROW = "campaign"
CALLS = "calls of driver to the file system"
"""Name of a line."""
_GCDS = 8
# Never asked for in full.
_TRIALS = 10_000_000
_PROGRAM = Path(__file__).with_name("node_pools.py")
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_AT_MOST = 900.0


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    nodes: int
    blocks: int
    median: float
    """Time of a segment [s]."""
    steady: float
    """Time for which a full machine is watched [s]."""
    short: float
    """Time of a segment where the driver is the limit [s]."""
    heartbeat: int
    """Time between two signs of life of a node [s]."""

    @property
    def workers(self) -> int:
        """GCDs of all nodes."""
        return self.nodes * _GCDS

    @property
    def segments(self) -> float:
        """Segments that end on a machine that is full [1/s]."""
        return self.workers / (self.median * math.exp(SIGMA**2 / 2))

    @property
    def saves(self) -> float:
        """Checkpoints that these segments write on the way, before their ends [1/s]."""
        seconds, of_log = self.workers / SAVES_PER_SECOND, NormalDist(math.log(self.median), SIGMA)
        reach = (1 - of_log.cdf(math.log(n * seconds)) for n in range(1, 100))
        return self.segments * sum(reach)


def lines(folder: Path, plan: Plan, say: Callable[[str], None]) -> list[Line]:
    """Fill a machine, watch it, lose a batch job, lose the driver; then ask for all it can do.

    Parameters
    ----------
    folder
        For run directories.
    plan
        Of the machine.
    say
        Told what is being done.
    """
    with _Run(folder / "long", plan, plan.median) as run:
        found = _filled(run, plan, say) + _watched(run, plan, say)
        found += _lost_block(run, plan, say) + _lost_driver(run, plan, say)
    with _Run(folder / "short", plan, plan.short) as run:
        return found + _at_most(run, plan, say)


def _filled(run: _Run, plan: Plan, say: Callable[[str], None]) -> list[Line]:
    say(f"{plan.nodes:,} nodes come")
    run.until(lambda now: now.nodes == plan.nodes and now.took > 0)
    say(f"{plan.workers:,} GCDs get a segment each")
    begin = run.now()
    end = run.until(lambda now: now.open >= plan.workers)
    rate = (end.took - begin.took) / (end.time - begin.time)
    return [
        _line(plan, "full after", end.time - run.began, "s"),
        _line(plan, "segments given out while it fills", rate, "1/s", at_least=400),
    ]


def _watched(run: _Run, plan: Plan, say: Callable[[str], None]) -> list[Line]:
    # Segments that began together end together at first.
    say("segments end and begin")
    full = time.time()
    run.until(lambda now: now.time > full + plan.median / 2)
    begin, cpu = run.now(), run.cpu_seconds()
    took, since, longest = begin.took, begin.time, 0.0

    def is_over(now: _Now) -> bool:
        nonlocal took, since, longest
        if now.took > took:
            took, since = now.took, now.time
        longest = max(longest, now.time - since)
        return now.time > begin.time + plan.steady

    end = run.until(is_over)
    spent = {name: after - cpu[name] for name, after in run.cpu_seconds().items()}
    seconds = end.time - begin.time
    idle = end.idle_seconds - begin.idle_seconds
    share = idle / (idle + end.busy_seconds - begin.busy_seconds)
    driver, interchange = run.processes()
    calls = []
    if STRACE:
        calls.append(_line(plan, CALLS, run.calls_per_second(plan.steady / 10), "1/s"))
    return [
        *calls,
        _line(plan, "segments that end", (end.gave - begin.gave) / seconds, "1/s"),
        _line(plan, "GCD time between segments", 100 * share, "%", at_most=2),
        _line(plan, "longest time without a new one", longest, "s"),
        _line(plan, "CPU of driver", 100 * spent["driver"] / seconds, "% of a core", at_most=60),
        _line(plan, "CPU of interchange", 100 * spent["interchange"] / seconds, "% of a core"),
        _line(plan, "memory of driver", driver.memory_info().rss / 2**30, "GiB", at_most=4),
        _line(plan, "memory of interchange", interchange.memory_info().rss / 2**30, "GiB"),
        _line(plan, "file descriptors of interchange", interchange.num_fds(), ""),
    ]


def _lost_block(run: _Run, plan: Plan, say: Callable[[str], None]) -> list[Line]:
    say("a block loses all its nodes")
    before, lost = run.blocks(), run.lost()
    run.kill_block(min(before))
    killed = time.time()
    run.until(lambda _: run.lost() > lost)
    noticed = time.time()
    each = plan.workers // plan.blocks
    run.until(lambda _: any(run.took(block) >= each for block in run.blocks() - before))
    again = time.time() - noticed
    return [
        _line(plan, "a block's nodes are lost: noticed after", noticed - killed, "s", at_most=90),
        _line(plan, "others run in its place after", again, "s", at_most=60),
        _line(plan, "segments done twice", run.done_twice(), "", at_most=0),
    ]


def _lost_driver(run: _Run, plan: Plan, say: Callable[[str], None]) -> list[Line]:
    say("the driver is lost, and begins again")
    answered = run.kill()
    known = sum(result["status"] == "ok" for result in run.results())
    run.start()
    ready = run.ready()
    run.until(lambda now: now.open >= plan.workers)
    return [
        _line(plan, "lost driver: segments on record", known, ""),
        _line(plan, "ended, and not on record", answered - known, ""),
        _line(plan, "another knows all that ran after", ready - run.began, "s", at_most=60),
        _line(plan, "all of it runs again after", time.time() - run.began, "s"),
        _line(plan, "segments done twice by both", run.done_twice(), "", at_most=0),
    ]


def _at_most(run: _Run, plan: Plan, say: Callable[[str], None]) -> list[Line]:
    say(f"segments of {plan.short:g} s: more than the driver can do")
    run.until(lambda now: now.gave > plan.workers / 2)
    begin, known = time.time(), len(run.results())
    run.until(lambda now: now.time > begin + plan.steady / 2)
    rate = (len(run.results()) - known) / (time.time() - begin)
    return [_line(plan, "most segments recorded and replaced", rate, "1/s", at_least=400)]


def _line(
    plan: Plan,
    what: str,
    value: float,
    unit: str,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Line:
    what = f"{plan.workers:,} workers: {what}"
    return Line(_ROW, what, value, unit, at_least=at_least, at_most=at_most)


@dataclass(frozen=True)
class _Now:
    """What all blocks say together."""

    time: float
    nodes: int
    open: int
    """GCDs that have had a segment."""
    took: int
    gave: int
    idle_seconds: float
    busy_seconds: float


class _Run:
    """A driver with a run directory of its own."""

    def __init__(self, folder: Path, plan: Plan, median: float) -> None:
        self._folder, self._plan, self._median = folder, plan, median
        self._answered = 0
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
        plan = [self._plan.nodes, self._plan.blocks, self._plan.heartbeat, self._median]
        with (self._folder / "output").open("ab") as output:
            self._driver = subprocess.Popen(
                [sys.executable, __file__, str(self._folder), *map(str, plan)],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdout=output,
                stderr=output,
            )

    def kill(self) -> int:
        """Kill the driver and then all nodes; returns the segments that these had answered."""
        self._driver.kill()
        self._driver.wait()
        for pid in self.blocks():
            self.kill_block(pid)
        # The shells that started the nodes still write how these ended.
        wait_until_unnamed(self._folder)
        return self._answered

    def kill_block(self, pid: int) -> None:
        """Kill the nodes of a block, as a power failure does."""
        file = self.statistics / f"{pid}.jsonl"
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._answered += self._said(file).get("gave", 0)
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
        for file in self.statistics.glob("*.jsonl"):
            said = self._said(file)
            if said.get("time", 0.0) < time.time() - 5.0:
                said["nodes"] = 0  # they are gone
            total.update(said)
        names = ("nodes", "open", "took", "gave", "idle_seconds", "busy_seconds")
        return _Now(time.time(), *(total[name] for name in names))

    def blocks(self) -> set[int]:
        """The processes that are the blocks' nodes."""
        found = {int(file.stem) for file in self.statistics.glob("*.jsonl")}
        return set(filter(psutil.pid_exists, found))

    def took(self, block: int) -> int:
        """Segments that a block has been given."""
        return int(self._said(self.statistics / f"{block}.jsonl").get("took", 0))

    def _said(self, file: Path) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(_last_line(file) or b"{}")
        return said

    def processes(self) -> tuple[psutil.Process, psutil.Process]:
        """The driver, and the interchange it has started."""
        driver, *others = family(self._driver.pid)
        (interchange,) = (other for other in others if "interchange" in " ".join(other.cmdline()))
        return driver, interchange

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time up to now of both [s]."""
        driver, interchange = self.processes()
        return {"driver": cpu_seconds([driver]), "interchange": cpu_seconds([interchange])}

    def calls_per_second(self, seconds: float) -> float:
        """Calls of the driver for files of its directory [1/s]."""
        trace = self._folder / "trace"
        return calls_per_second(self._driver.pid, self._folder / "run", seconds, trace)

    def results(self) -> list[dict[str, Any]]:
        """The segments on record; the last may still be being written."""
        text = (self._folder / "run" / "segments.jsonl").read_bytes()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]

    def lost(self) -> int:
        """Number of segments on record that are lost."""
        return (self._folder / "run" / "segments.jsonl").read_bytes().count(b'"lost"')

    def done_twice(self) -> int:
        """Segments that more than one result on record has done."""
        done = Counter((r["number"], r["rung"]) for r in self.results() if r["status"] == "ok")
        return sum(times > 1 for times in done.values())

    def ready(self) -> float:
        """Unix time at which the driver knows all that ran [s]."""
        self.until(lambda _: (self._folder / "ready").exists())
        return (self._folder / "ready").stat().st_mtime


def _last_line(file: Path) -> bytes:
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - 4096))
        whole = [line for line in opened.read().splitlines(keepends=True) if line.endswith(b"\n")]
    return whole[-1] if whole else b""


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
