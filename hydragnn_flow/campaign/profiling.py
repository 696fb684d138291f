"""Profiles of training steps on the GCDs of a site, sent to its nodes as segments are."""

from __future__ import annotations

import logging
import math
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from hydragnn_flow.config.network import EngineNetwork, NetworkConfig, read_json
from hydragnn_flow.data import GraphStore
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution import Rank, Site, merged, sole_driver
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.files import copy_file, is_there
from hydragnn_flow.log import driver_log, tell
from hydragnn_flow.models import build_model
from hydragnn_flow.placement import Fleet, Room, Spot
from hydragnn_flow.report.run_files import read_run
from hydragnn_flow.retries import Retries
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import read_trials
from hydragnn_flow.segment import AGREED, SegmentResult, SegmentSpec
from hydragnn_flow.training.profile_result import TrainingProfile

# Ways of going through steps that a profile compares, and those that the parts need.
MODES, FEWEST_MODES = 5, 2
FOLDER = "profile"
"""Folder of the run directory that a profile writes to, and deletes."""
SECONDS_BETWEEN_CHECKS = 0.5
# Time for the other nodes of a batch job to come after its first.
SECONDS_FOR_THE_OTHERS = 120.0
# Time for the other ranks of a gang to end when one has.
SECONDS_TO_FOLLOW = 60.0
# Time for a network file system to show what a node has written.
SECONDS_TO_SEE = 90.0
_logger = logging.getLogger(__name__)


def profile_on_site(
    run: str | Path,
    site: Site,
    *,
    trial: int | None = None,
    gcds: int = 1,
    seconds: float = 5.0,
    trace: str | Path | None = None,
    say: Callable[[str], None] = print,
    waits: Callable[[str], None] = lambda why: None,
) -> tuple[TrainingProfile, int]:
    """Take training steps of a run's network apart, on GCDs of a site. The run stays as it is.

    Parameters
    ----------
    run
        Directory of a run with a prepared store, which the nodes see.
    site
        The machine.
    trial
        Trial whose network it is; that of the configuration if not given.
    gcds
        How many train together: on one node, or on several nodes of a batch job.
    seconds
        Time for each of the ways of going through steps that are compared.
    trace
        File for a Chrome trace of some steps of the first rank.
    say
        Called with sentences for the user.
    waits
        Called with what is going on.

    Returns
    -------
    profile : TrainingProfile
        What was measured.
    nodes : int
        How many the GCDs were on.

    Raises
    ------
    InputError
        If the run, its store, the trial, the site's GCDs or the file are not as needed; before
        anything starts.
    CampaignStopped
        If the site gives no GCDs, or their processes end again and again.
    """
    run, trace = Path(run), None if trace is None else Path(trace)
    spec = profile_spec(run, trial, site, seconds)
    check_widths([gcds], site)
    sharding = spec.network.Training.sharding
    if sharding is not None and (wrong := sharding.wrong_width(gcds)):
        raise InputError(f"network: {wrong}")
    with profiler(run, site, say, waits) as measure:
        return measure(replace(spec, traced=trace is not None), gcds, trace)


def profile_spec(run: Path, trial: int | None, site: Site, seconds: float) -> SegmentSpec:
    """The segment whose steps are profiled: those of a trial, or of the configuration.

    Raises
    ------
    InputError
        If the run has no such trial or no store, or they do not fit each other.
    """
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(f"--seconds {seconds}: must be a number above 0")
    directory, config = RunDirectory(run), read_run(run).config
    parameters: dict[str, Any] = {}
    if trial is not None:
        trials = {record.number: record for record in read_trials(directory.path)}
        if trial not in trials:
            raise InputError(f"{run}: has no trial {trial}; see `hydragnn-flow status`")
        parameters = trials[trial].parameters
    if not is_there(directory.store):
        raise InputError(f"{run}: is a run whose store is not prepared yet; run it again first")
    network = config.network_with(parameters)
    with GraphStore.open(directory.store, "random") as store:
        check_network(network, store)
    return SegmentSpec(
        kind="trial",
        number=trial or 0,
        rung=0,
        directory=str(directory.path / FOLDER),
        store=str(directory.store),
        network=network,
        until_epoch=1,
        seed=config.seed,
        may_have_begun=False,
        frozen=config.start_from.frozen if config.start_from else (),
        batches=config.batches(parameters),
        budget=config.divided_budget,
        sampling=config.data.sampling,
        criterion=config.criterion,
        run_directory=str(directory.path / FOLDER),
        site_gcds=site.nodes * len(site.node.gcds),
        threads=site.node.cores_per_gcd,
        mode=config.data.mode,
        scratch=site.node.scratch,
        profile_seconds=seconds,
    )


def check_network(network: NetworkConfig, store: GraphStore) -> None:
    """Refuse, here and not on a node, a network that the store does not fit.

    What an engine builds may need anything, and is built on the nodes alone.
    """
    if not isinstance(network, EngineNetwork):
        with torch.device("meta"):
            build_model(network, store)


def check_widths(widths: Sequence[int], site: Site) -> None:
    """Refuse numbers of GCDs that the site does not have in a batch job.

    Raises
    ------
    InputError
        Naming the first.
    """
    most = site.gcds_of_a_block
    for width in widths:
        if not 1 <= width <= most:
            gcds, nodes = len(site.node.gcds), site.nodes // site.blocks
            where = f"in a batch job of {nodes} nodes" if site.scheduler else "in all"
            raise InputError(
                f"--gcds {width}: site {site.name} has {most} GCDs {where}, {gcds} on a node; ask "
                f"for 1 to {most}" + (", or for more nodes by -N" if site.scheduler else "")
            )


Measure = Callable[[SegmentSpec, int, Path | None], tuple[TrainingProfile, int]]
"""Profiles a segment on a number of GCDs, with a trace or without; also says on how many nodes."""


class OutOfMemory(CampaignStopped):
    """A step takes more memory than the GCDs have."""


@contextmanager
def profiler(
    run: Path, site: Site, say: Callable[[str], None], waits: Callable[[str], None]
) -> Iterator[Measure]:
    """The pool of a site, that profiles one segment after the other in a ``with`` block.

    Parameters
    ----------
    run
        The run directory; all is written to its folder `profile`, which is deleted if all went
        well.
    site, say, waits
        As for :func:`profile_on_site`.
    """
    folder = run.resolve() / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    with (
        sole_driver(folder) as token,
        driver_log(folder, say),
        Pool(site, folder / "parsl") as pool,
    ):
        pool.bring(RunDirectory(run).store)

        def measure(
            spec: SegmentSpec, gcds: int, trace: Path | None = None
        ) -> tuple[TrainingProfile, int]:
            sent, nodes = _Gang(pool, site, waits).run(replace(spec, token=token), gcds)
            profile = TrainingProfile.from_dict(read_json(_seen(sent.profile)))
            if trace is not None:
                copy_file(_seen(sent.trace), trace)
            return profile, nodes

        yield measure
    shutil.rmtree(folder, ignore_errors=True)


class _Gang:
    """Runs the ranks of a profile on nodes of a pool, again where some of them were lost."""

    def __init__(self, pool: Pool, site: Site, waits: Callable[[str], None]) -> None:
        self._pool, self._site, self._waits = pool, site, waits

    def run(self, spec: SegmentSpec, gcds: int) -> tuple[SegmentSpec, int]:
        """Run a profile to its end; the segment as it was sent, and its number of nodes."""
        retries = Retries()
        while True:
            spec = replace(spec, attempt=uuid.uuid4().hex[:12])
            spots = self._spots(gcds, _seconds(spec))
            result, nodes = self._sent(spec, spots)
            if result.status == "ok":
                return spec, nodes
            if result.status == "out_of_memory":
                raise OutOfMemory(
                    f"a step on {gcds} GCDs takes more memory than they have ({result.reason}); "
                    "ask for more GCDs, or raise Training.accumulation_steps"
                )
            is_lost = result.status in ("lost", "interrupted")
            retries = retries.lost() if is_lost else retries.failed()
            if retries.is_hopeless:
                raise CampaignStopped(
                    f"the profile on {gcds} GCDs ended {retries.total} times, last on "
                    f"{result.node or 'a lost node'}: {result.reason}; its log is in {spec.folder}"
                )
            tell(_logger, "the profile is begun again: %s", result.reason)

    def _spots(self, gcds: int, seconds: float) -> Sequence[Spot]:
        """GCDs on one node, or on as few as they need; waits until they are there."""
        site, pool = self._site, self._pool
        first = math.inf
        while True:
            pool.update(gcds)
            now = time.monotonic()
            fleet = Fleet(site.node.gcd, len(site.node.gcds), site.gcds_of_a_block)
            fleet.update(pool.hosts())
            if spots := Room(fleet, now).take(gcds, seconds):
                return spots
            # Between two batch jobs there are none, and the wait begins anew.
            first = min(first, now) if fleet.free else math.inf
            if now - first > SECONDS_FOR_THE_OTHERS:
                raise CampaignStopped(
                    f"of {gcds} GCDs in a batch job of site {site.name}, {fleet.free} came within "
                    f"{SECONDS_FOR_THE_OTHERS:.0f} s; see `hydragnn-flow site check`, or ask for "
                    "fewer"
                )
            self._waits(pool.waiting() or f"{fleet.free} of {gcds} GCDs are there")
            time.sleep(SECONDS_BETWEEN_CHECKS)

    def _sent(self, spec: SegmentSpec, spots: Sequence[Spot]) -> tuple[SegmentResult, int]:
        """Run the ranks of a sending; how they ended, and their number of nodes."""
        parts = [(node, list(there)) for node, there in groupby(spots, lambda spot: spot.node)]
        ends = {host.name: host.ends for host in self._pool.hosts()}
        memory = self._site.node.gcd.memory_gib
        futures: dict[Future[list[SegmentResult]], str] = {}
        number = 0
        for node, there in parts:
            left = ends.get(node, math.inf) - time.monotonic()
            ranks = [
                Rank(
                    spec,
                    number + place,
                    len(spots),
                    gcd=spot.gcd,
                    nodes=len(parts),
                    memory_gib=memory,
                    seconds=None if left == math.inf else left,
                )
                for place, spot in enumerate(there)
            ]
            number += len(there)
            futures[self._pool.run(ranks, node)] = node
        return merged(self._results(spec, futures, len(spots))), len(parts)

    def _results(
        self, spec: SegmentSpec, futures: dict[Future[list[SegmentResult]], str], gcds: int
    ) -> list[SegmentResult]:
        """Wait for the ranks of all nodes, which end as one."""
        left, follow_by = set(futures), math.inf
        bad: list[SegmentResult] = []
        words = f"{_gcds(gcds)} for {_seconds(spec):.0f} s, after a start"
        while left:
            done, left = wait(left, SECONDS_BETWEEN_CHECKS, FIRST_COMPLETED)
            self._pool.update(gcds)
            self._waits(words)
            bad += [r for future in done for r in future.result() if r.status != "ok"]
            if any(r.status not in AGREED or not r.node for r in bad):
                follow_by = min(follow_by, time.monotonic())
            elif bad:
                follow_by = min(follow_by, time.monotonic() + SECONDS_TO_FOLLOW)
            if time.monotonic() >= follow_by:
                for future in left:
                    self._pool.call_off(futures[future], spec.attempt, bad[0].reason)
                follow_by, bad = math.inf, []
        results = [result for future in futures for result in future.result()]
        for result in results:
            if result.node and result.status in ("refused", "killed", "error"):
                self._pool.record(result.node, spec.attempt, worked=False)
        return results


def _seconds(spec: SegmentSpec) -> float:
    return (FEWEST_MODES if spec.parts_only else MODES) * spec.profile_seconds


def _gcds(count: int) -> str:
    return "1 GCD trains" if count == 1 else f"{count} GCDs train"


def _seen(path: Path) -> Path:
    """A file that a node has written, once this one sees it: NFS tells for a while what was."""
    give_up = time.monotonic() + SECONDS_TO_SEE
    while not is_there(path):
        if time.monotonic() > give_up:
            raise CampaignStopped(
                f"{path}: a node has written it, and it is not there; the run directory must be "
                "on a file system that the nodes share with this one"
            )
        time.sleep(SECONDS_BETWEEN_CHECKS)
    return path
