"""Profiles of training steps on the GCDs of a site, and scaling studies over more of them."""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from hydragnn_flow.campaign.setup.stores import segment_of_run
from hydragnn_flow.config.network import EngineNetwork, NetworkConfig
from hydragnn_flow.config.sources import TRAIN
from hydragnn_flow.data import GraphStore
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.execution import Site, sole_driver
from hydragnn_flow.execution.jobs import Jobs, Task, run_all, wait_until_seen
from hydragnn_flow.execution.pools.shared import workers_of
from hydragnn_flow.files import copy_file, is_there, replacing
from hydragnn_flow.log import driver_log, tell
from hydragnn_flow.models import build_model
from hydragnn_flow.placement import Estimate, useful_widths
from hydragnn_flow.report.scaling import Point, Study, scaling_figure
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import read_trials
from hydragnn_flow.segment import EpochPlan, Profiling, SegmentSpec, Sender, Start, Validation
from hydragnn_flow.training.plan.batching import Budget
from hydragnn_flow.training.profile_result import TrainingProfile

FOLDER = "profile"
"""Name of the folder of the run directory for a profile's files; deleted at the end."""
# Time for the other nodes of a batch job to join after its first [s].
SECONDS_FOR_THE_OTHERS = 120.0
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
    """Profile the training steps of a run's network on GCDs of a site; leave the run unchanged.

    Parameters
    ----------
    run
        Directory of a run with a prepared store; visible to the nodes.
    site
        Site with the GCDs.
    trial
        Number of the trial whose network is profiled; None for the network of the configuration.
    gcds
        Number of GCDs that train together, on one node or on several of a batch job.
    seconds
        Total time of the measured steps [s].
    trace
        Path of a file for a Chrome trace of some steps on the first GCD; None for no trace.
    say
        Function called with sentences for the user.
    waits
        Function called with the reason why the profile waits, or its progress.

    Returns
    -------
    profile : TrainingProfile
        Measured times of the steps.
    nodes : int
        Number of nodes that the GCDs were on.

    Raises
    ------
    InputError
        If the run, its store, the trial, the number of GCDs or the time are unsuitable; raised
        before anything starts.
    CampaignStopped
        If the site provides no GCDs, or their processes repeatedly fail.
    """
    run, trace = Path(run), None if trace is None else Path(trace)
    spec = profile_spec(run, trial, site, seconds)
    check_widths([gcds], site)
    if wrong := spec.network.Training.sharding.wrong_width(gcds):
        raise InputError(f"network: {wrong}")
    with profiler(run, site, say, waits) as measure:
        profile = replace(spec.profile, traced=trace is not None)
        return measure(replace(spec, profile=profile), gcds, trace)


def profile_spec(run: Path, trial: int | None, site: Site, seconds: float) -> SegmentSpec:
    """Return the specification of the training job whose steps a profile measures.

    Parameters
    ----------
    run
        Run directory with a prepared store.
    trial
        Number of the trial whose network is profiled; None for the network of the configuration.
    site
        Site on which the steps are profiled.
    seconds
        Total time of the measured steps [s].

    Raises
    ------
    InputError
        If ``seconds`` is not positive and finite, the run has no such trial or no store, or the
        network does not fit the store.
    """
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(f"--seconds {seconds}: must be a number above 0")
    directory = RunDirectory(run)
    config = directory.config()
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
    return segment_of_run(
        *(config, site, directory.store),
        kind="trial",
        number=trial or 0,
        directory=str(directory.path / FOLDER),
        driver=Sender(run_directory=str(directory.path / FOLDER), site_gcds=site.gcds),
        network=network,
        seed=config.seed,
        start=Start(may_have_begun=False),
        epochs=EpochPlan(until_epoch=1, batches=config.batches(parameters)),
        validation=Validation(criterion=config.criterion),
        profile=Profiling(seconds=seconds),
    )


def check_network(network: NetworkConfig, store: GraphStore) -> None:
    """Raise an error if a network does not fit the data of a store.

    The network of an engine (external library that builds networks) is not checked, since it may
    need software that only the nodes have.
    """
    if not isinstance(network, EngineNetwork):
        with torch.device("meta"):
            build_model(network, store)


def check_widths(widths: Sequence[int], site: Site) -> None:
    """Refuse numbers of GCDs that a batch job of the site cannot have.

    Parameters
    ----------
    widths
        Numbers of GCDs that train together.
    site
        Site with the batch jobs.

    Raises
    ------
    InputError
        If a number is too large or below 1; the message names the first such number.
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
"""Function (segment, number of GCDs, path of a trace or None) -> (profile, number of nodes)."""


class OutOfMemory(CampaignStopped):
    """Error of a profile whose steps need more memory than the GCDs have."""


@contextmanager
def profiler(
    run: Path, site: Site, say: Callable[[str], None], waits: Callable[[str], None]
) -> Iterator[Measure]:
    """Context manager: start a site's workers; yield a function that profiles training steps.

    The function may be called repeatedly.

    Parameters
    ----------
    run
        Run directory; its folder `profile` takes all files and is deleted if all goes well.
    site, say, waits
        Site and functions to call, as in :func:`profile_on_site`.
    """
    folder = run.resolve() / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    with (
        sole_driver(folder) as token,
        driver_log(folder, say),
        workers_of(site, folder / "parsl") as pool,
    ):
        pool.bring(RunDirectory(run).store)

        def measure(
            spec: SegmentSpec, gcds: int, trace: Path | None = None
        ) -> tuple[TrainingProfile, int]:
            jobs, whole = Jobs[Task](pool, site), site.node.gcd.memory_gib
            task = Task(
                spec=replace(spec, driver=replace(spec.driver, token=token)),
                width=gcds,
                estimate=Estimate(gcds * spec.profile.seconds, whole, 0.0, busy=1.0),
            )
            for sent, end in run_all(jobs, [task], "profiling", _Waits(jobs, task, waits)):
                assert isinstance(sent.spec, SegmentSpec)
                spec = sent.spec
                if end.status == "out_of_memory":
                    raise OutOfMemory(
                        f"a step on {gcds} GCDs takes more memory than they have ({end.reason}); "
                        "ask for more GCDs, or raise Training.accumulation_steps"
                    )
                if end.status != "ok":
                    tell(_logger, "the profile is begun again: %s", end.reason)
            if trace is not None:
                wait_until_seen(
                    lambda: [] if is_there(spec.trace) else [spec.trace],
                    "the run directory must be on a file system that the nodes share with this one",
                )
                copy_file(spec.trace, trace)
            profile = msgspec.convert(end.answer, TrainingProfile)
            return profile, len({node for node, _ in end.places})

        yield measure
    shutil.rmtree(folder, ignore_errors=True)


class _Waits:
    """Callback that reports why a profile waits.

    It raises an error if a batch job started, but has had too few GCDs for
    :data:`SECONDS_FOR_THE_OTHERS`.
    """

    def __init__(self, jobs: Jobs[Task], task: Task, say: Callable[[str], None]) -> None:
        self._jobs, self._task, self._say = jobs, task, say
        self._first = math.inf

    def __call__(self, why: str) -> None:
        gcds, free = self._task.width, self._jobs.fleet.free
        if self._jobs.running:
            seconds = self._task.seconds
            who = "1 GCD trains" if gcds == 1 else f"{gcds} GCDs train"
            self._say(f"{who} for {seconds:.0f} s, after a start")
            self._first = math.inf
            return
        # Between two batch jobs no GCDs are free, and the wait starts again.
        now = time.monotonic()
        self._first = min(self._first, now) if free else math.inf
        if now - self._first > SECONDS_FOR_THE_OTHERS:
            raise CampaignStopped(
                f"of {gcds} GCDs in a batch job of site {self._jobs.site.name}, {free} came within "
                f"{SECONDS_FOR_THE_OTHERS:.0f} s; see `hydragnn-flow site check`, or ask for fewer"
            )
        self._say(why or f"{free} of {gcds} GCDs are there")


Shown = Callable[[int, int, str], None]
"""Function (number of finished points, number of all points, current activity) -> None."""


def scaling_study(
    run: str | Path,
    site: Site,
    *,
    trial: int | None = None,
    gcds: Sequence[int] = (),
    seconds: float = 5.0,
    say: Callable[[str], None] = print,
    progress: Shown = lambda done, total, note: None,
) -> tuple[Study, Path]:
    """Profile the training steps of a run's network on several numbers of GCDs of a site.

    Weak scaling: each GCD has a batch of its own. Strong scaling: all GCDs share one batch. A point
    of the study is the profile for one number of GCDs and of batches. Each point is written once it
    is measured, and the same call continues a stopped study. A complete study is not measured
    again, only drawn.

    Parameters
    ----------
    run, site, trial, seconds, say
        Arguments of :func:`~hydragnn_flow.campaign.profiling.profile_on_site`.
    gcds
        Numbers of GCDs; by default powers of two within a node, then 1, 2, 4, ... whole nodes, up
        to a batch job of the site.
    progress
        Function called with the number of finished points, the number of all points, and the
        current activity.

    Returns
    -------
    study : Study
        All measured points of the study.
    picture : Path
        Path of the figure, in the folder of the study's file.

    Raises
    ------
    InputError, CampaignStopped
        The errors of :func:`~hydragnn_flow.campaign.profiling.profile_on_site`.
    """
    run = Path(run)
    spec = profile_spec(run, trial, site, seconds)
    widths = sorted({*gcds} or {*useful_widths(len(site.node.gcds), site.gcds_of_a_block)})
    check_widths(widths, site)
    study = Study(
        run=run.resolve().name,
        trial=trial,
        site=site.name,
        device=site.node.device,
        seconds=seconds,
        network=json.loads(json.dumps(spec.network.to_json())),
    )
    study = _continued(study, run)
    points = [Point(width, batches) for width in widths for batches in sorted({1, width})]
    measured = {(one.gcds, one.batches) for one in study.points if one.profile is not None}
    left = [point for point in points if (point.gcds, point.batches) not in measured]
    most, graphs = _limits(spec)
    sharding = spec.network.Training.sharding
    possible = []
    for point in left:
        if fault := sharding.wrong_width(point.gcds) or _impossible(point, most, graphs):
            study = study.with_point(replace(point, fault=fault))
        else:
            possible.append(point)
    if not possible and not measured:
        raise InputError(f"{run}: nothing can be measured: {study.points[0].fault}")
    note, done = "", len(points) - len(possible)

    def waits(why: str) -> None:
        nonlocal note
        note = why
        progress(done, len(points), note)

    if possible:
        with profiler(run, site, say, waits) as measure:
            for point in possible:
                try:
                    wide = replace(spec, epochs=replace(spec.epochs, batches=point.batches))
                    profile, nodes = measure(wide, point.gcds, None)
                    point = replace(point, profile=profile, nodes=nodes)
                except OutOfMemory as error:
                    point = replace(point, fault=str(error))
                study = study.with_point(point)
                study.write(run)
                done += 1
                progress(done, len(points), note)
    return study, draw(study, run)


def draw(study: Study, run: Path) -> Path:
    """Write a scaling study and its figure to the run directory; return the figure's path."""
    path = study.write(run).with_suffix(".png")
    figure = scaling_figure(study)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=192)
    return path


def _continued(study: Study, run: Path) -> Study:
    """Return the study that the run directory has, to continue it; else ``study``.

    Raises
    ------
    InputError
        If the study in the run directory is of another network or measured time.
    """
    path = study.path(run)
    if not is_there(path):
        return study
    before = Study.read(path)
    if before.about != study.about:
        raise InputError(
            f"{path}: is a study of another network, or with other --seconds; move it away, or "
            "give the --seconds that it was measured with"
        )
    return replace(before, run=study.run)


def _limits(spec: SegmentSpec) -> tuple[int, float]:
    """Return the number of batches in the training split, and the mean number of graphs in one."""
    with GraphStore.open(spec.store.path, "random") as store:
        train = store.manifest.splits[TRAIN]
    batches = Budget.of(spec.network).least_steps(train.graphs, train.atoms, train.edges)
    return batches, train.graphs / batches


def _impossible(point: Point, batches: int, graphs: float) -> str:
    """Return why a point cannot be measured, as a sentence; empty if it can be measured.

    ``batches`` and ``graphs`` are the two values of :func:`_limits`.
    """
    if point.batches > batches:
        return f"the training split has {batches} batches; lower Training.batch_size"
    if point.batches == 1 and point.gcds > graphs:
        return f"a batch has {graphs:.0f} graphs, fewer than GCDs; raise Training.batch_size"
    return ""
