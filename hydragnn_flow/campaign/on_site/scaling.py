"""Scaling study on the GCDs of a site: profiles on more and more of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hydragnn_flow.campaign.on_site.profiling import (
    OutOfMemory,
    check_widths,
    profile_spec,
    profiler,
)
from hydragnn_flow.data import GraphStore
from hydragnn_flow.data.splits import TRAIN
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import Site
from hydragnn_flow.files import is_there, replacing
from hydragnn_flow.placement import useful_widths
from hydragnn_flow.report.scaling import Point, Study, scaling_figure
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.plan.batching import Budget

Shown = Callable[[int, int, str], None]
"""Function called with the number of finished points, their total, and the current activity."""


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
    """Profile the steps of a run's network on more and more GCDs of a site.

    Weak scaling: each GCD has a batch of its own. Strong scaling: all of them share one batch. Each
    point is written once it is measured, and the same call continues a stopped study. A complete
    one is only drawn again.

    Parameters
    ----------
    run, site, trial, seconds, say
        Arguments of :func:`~hydragnn_flow.campaign.on_site.profiling.profile_on_site`.
    gcds
        Numbers of GCDs; by default powers of two up to a batch job of the site.
    progress
        Function called with the progress of the study.

    Returns
    -------
    study : Study
        All measured points of the study.
    picture : Path
        Path of the figure, next to the study's file.

    Raises
    ------
    InputError, CampaignStopped
        The errors of :func:`~hydragnn_flow.campaign.on_site.profiling.profile_on_site`.
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
        fault = "" if sharding is None else sharding.wrong_width(point.gcds)
        if fault := fault or _impossible(point, most, graphs):
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
                    wide = replace(spec, batches=point.batches)
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
    """Write the study and its figure."""
    path = study.write(run).with_suffix(".png")
    figure = scaling_figure(study)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=192)
    return path


def _continued(study: Study, run: Path) -> Study:
    """Add the points of an earlier study; InputError if that is of another network."""
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
    """Number of batches in the training split, and mean number of graphs in one."""
    with GraphStore.open(spec.store, "random") as store:
        train = store.manifest.splits[TRAIN]
    batches = Budget.of(spec.network).least_steps(train.graphs, train.atoms, train.edges)
    return batches, train.graphs / batches


def _impossible(point: Point, batches: int, graphs: float) -> str:
    """Reason why a point cannot be measured; empty if it can."""
    if point.batches > batches:
        return f"the training split has {batches} batches; lower Training.batch_size"
    if point.batches == 1 and point.gcds > graphs:
        return f"a batch has {graphs:.0f} graphs, fewer than GCDs; raise Training.batch_size"
    return ""
