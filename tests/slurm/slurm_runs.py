"""Campaigns on the test cluster, run as users run them and judged by what is on disk."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from cluster import Cluster

from hydragnn_flow.search import TrialRecord, read_trials
from hydragnn_flow.segment import Kind, SegmentResult

# Nothing here takes as long on an idle machine; these are for loaded ones.
PATIENCE = 600.0
SECONDS_BETWEEN_CHECKS = 0.1


class Campaign:
    """One campaign on a cluster, whose driver runs on the login node.

    Its run directory is beside the configuration, or ``path`` as the login node sees it.
    """

    def __init__(
        self, cluster: Cluster, config: Path, site: Path | str, path: Path | None = None
    ) -> None:
        self.cluster, self.config, self.site = cluster, config, site
        self.path = path or config.with_name("run")
        self.seen = cluster.seen_from_login(self.path)
        """The run directory, as this process reaches it."""
        self.log = config.with_name("output")
        self.driver: subprocess.Popen[bytes]

    def start(self, *before: str, workflow: bool = False) -> None:
        """Give the command, or the workflow that does the same, after other words (`taskset -c 0`).

        Given again, the campaign goes on.
        """
        if workflow:
            words = [sys.executable, "workflows/ensemble_hpo.py", "--config", self.config]
        else:
            words = [sys.executable, "-m", "hydragnn_flow", "run", self.config]
        where = ["--site", self.site, "--run-dir", self.path]
        self.driver = self.cluster.popen([*before, *words, *where], self.log)

    def wait_for(self, what: str, reached: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Wait until something is so while the driver lives."""
        give_up = time.monotonic() + seconds
        while not reached():
            assert self.driver.poll() is None, f"ended before {what}:\n{self.said()}"
            assert time.monotonic() < give_up, f"never came to {what}:\n{self.said()}"
            time.sleep(SECONDS_BETWEEN_CHECKS)

    def finish(self, seconds: float = 2 * PATIENCE) -> None:
        """Wait for the driver to end well, with nothing of it left in the queue."""
        try:
            code = self.driver.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {seconds:.0f} s:\n{self.said()}") from None
        assert code == 0, f"ended with {code}:\n{self.said()}"
        assert (self.seen / "report.html").exists()
        self.assert_queue_is_empty()

    def interrupt(self, number: int = signal.SIGINT, seconds: float = 180.0) -> int:
        """Press Ctrl-C, or send another signal; returns the exit code."""
        self.driver.send_signal(number)
        return self.driver.wait(seconds)

    def kill(self) -> None:
        """Take the driver away without a word."""
        self.driver.kill()
        self.driver.wait()

    def assert_queue_is_empty(self, seconds: float = 30.0) -> None:
        """Jobs that were cancelled take a moment to leave, and those of a dead node longer."""
        give_up = time.monotonic() + seconds
        while any(job.state not in ("CG", "COMPLETING") for job in self.cluster.squeue()):
            assert time.monotonic() < give_up, self.cluster.ask("squeue")
            time.sleep(SECONDS_BETWEEN_CHECKS)

    def status(self, *options: str) -> str:
        """What `hydragnn-flow status` prints."""
        words = (sys.executable, "-m", "hydragnn_flow", "status", self.path, *options)
        return self.cluster.ask(*words)

    def said(self) -> str:
        """What the driver and its jobs printed last, who is at work, and the end of the ledger."""
        ledger = [
            f"{r.kind} {r.number} rung {r.rung} {r.status} on {r.node} {r.gcds}: {r.reason}"
            for r in self.results()[-20:]
        ]
        files = sorted((self.seen / "parsl").glob("*/submit_scripts/*.stderr"))
        jobs = [f"{file.name}: {file.read_text()[-1000:]}" for file in files]
        at_work = f"at work: { {node: [*there] for node, there in self.at_work().items()} }"
        return "\n".join([self.log.read_text()[-3000:], at_work, *ledger, *jobs])

    def results(self) -> list[SegmentResult]:
        """Segments that have ended, in the order of the ledger."""
        file = self.seen / "segments.jsonl"
        if not file.exists():
            return []
        whole = file.read_bytes().rpartition(b"\n")[0]
        return [SegmentResult(**json.loads(line)) for line in whole.splitlines()]

    def of_trial(self, number: int) -> list[SegmentResult]:
        """The ended segments of a trial, in their order."""
        return [r for r in self.results() if (r.kind, r.number) == ("trial", number)]

    def at_work(self, kind: Kind = "trial") -> dict[str, dict[int, psutil.Process]]:
        """For each node, trials (or members) that are trained there now, and a process of each."""
        found: dict[str, dict[int, psutil.Process]] = {}
        for node in self.cluster.nodes:
            found[node] = {}
            for process in self.cluster.processes(node):
                with suppress(OSError, psutil.Error):
                    named = re.fullmatch(
                        rf"hydragnn_flow: {kind} (\d+) of {re.escape(str(self.path))}",
                        " ".join(process.cmdline()).strip(),
                    )
                    if named:
                        found[node][int(named[1])] = process
        return found

    @contextmanager
    def held(
        self, number_of: int, kind: Kind = "trial"
    ) -> Iterator[dict[str, dict[int, psutil.Process]]]:
        """Have trials at work at the same time, standing still within the ``with`` block.

        Each of them (``number_of`` or more) stands still as soon as it has a checkpoint: it might
        be done before the last begins, or before what is to happen to it has happened.
        """
        held: dict[str, dict[int, psutil.Process]] = {node: {} for node in self.cluster.nodes}

        def are_there() -> bool:
            for node, there in self.at_work(kind).items():
                for number in there.keys() - held[node].keys():
                    if not self.trains(number, kind):
                        continue
                    with suppress(psutil.NoSuchProcess):  # it has just ended
                        there[number].suspend()
                        held[node][number] = there[number]
            return len({number for there in held.values() for number in there}) >= number_of

        try:
            self.wait_for(f"{number_of} {kind}s that train", are_there)
            yield held
        finally:
            for there in held.values():
                for process in there.values():
                    with suppress(psutil.NoSuchProcess):  # it was taken away
                        process.resume()

    def trains(self, number: int, kind: Kind = "trial") -> bool:
        """Whether a trial, or a member, has a checkpoint."""
        folder = self.seen / {"trial": "trials", "member": "ensemble/members"}[kind] / str(number)
        return any(folder.glob("checkpoint-*.pt"))

    def trials(self) -> list[TrialRecord]:
        """What the study knows."""
        return read_trials(self.seen)

    def workers(self) -> dict[str, Any]:
        """What the driver wrote of its pools."""
        file = self.seen / "workers.json"
        values: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return values

    def blocks(self, state: str) -> list[dict[str, Any]]:
        """Blocks that the driver knows to be so."""
        return [block for block in self.workers().get("blocks", []) if block["state"] == state]


def spans(results: Iterable[SegmentResult]) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """For each (node, GCD), when it had a segment, in order."""
    found = defaultdict(list)
    for result in results:
        for place in result.places:
            found[place].append((result.started, result.ended))
    return {place: sorted(times) for place, times in sorted(found.items())}


def assert_one_at_a_time(results: Sequence[SegmentResult]) -> None:
    """No GCD had two processes at once."""
    for place, times in spans(results).items():
        for (_, ended), (started, _) in pairwise(times):
            assert ended <= started, f"{place} was shared for {ended - started:.2f} s"


def assert_nothing_lost_or_repeated(campaign: Campaign, trials: int, rungs: Sequence[int]) -> None:
    """Every trial was trained once through its rungs, epochs at which it is judged."""
    records = campaign.trials()
    assert [record.number for record in records] == list(range(trials))
    assert {record.state for record in records} <= {"complete", "pruned"}, records
    for record in records:
        mine = [
            result
            for result in campaign.results()
            if (result.kind, result.number, result.status) == ("trial", record.number, "ok")
        ]
        assert [result.to_epoch for result in mine] == list(rungs[: len(mine)]), mine
        assert (record.state == "complete") == (len(mine) == len(rungs)), record
        reached = 0
        for result in filter(lambda result: result.to_epoch, campaign.of_trial(record.number)):
            assert result.from_epoch >= reached, "trained again what was on record"
            reached = result.to_epoch
