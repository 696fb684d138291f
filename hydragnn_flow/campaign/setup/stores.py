"""Store of a campaign: preparation, and checks before any training on it."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hydragnn_flow.campaign.setup.engine_probe import EngineProbe
from hydragnn_flow.campaign.setup.starting import check_start
from hydragnn_flow.config import NetworkConfig, RunConfig
from hydragnn_flow.config.network import EngineNetwork
from hydragnn_flow.config.sources import CALIBRATION, TRAIN, VALIDATION
from hydragnn_flow.data import GraphStore, Manifest, prepare_store
from hydragnn_flow.data.preparing import Workers
from hydragnn_flow.data.reading.inspection import left_out, masked_labels, truncated, unseen
from hydragnn_flow.data.reading.split import Split
from hydragnn_flow.data.store.manifest import SplitSize, Target
from hydragnn_flow.ensemble import needed_for_coverage
from hydragnn_flow.ensemble.uncertainty.calibration import calibration_split
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import Site
from hydragnn_flow.log import View, tell
from hydragnn_flow.models import build_model
from hydragnn_flow.segment import EpochPlan, Sampling, SegmentSpec, Start, StoreAccess
from hydragnn_flow.training.measures.losses import terms_of
from hydragnn_flow.training.plan.batching import Budget, graphs_kept
from hydragnn_flow.training.plan.sampling import drawn_size, judged_by, shares_of

_logger = logging.getLogger(__name__)


def checked_store(
    config: RunConfig, path: Path, view: View, workers: Workers | None = None
) -> GraphStore:
    """Open a campaign's GraphStore, prepared first if missing; check that it fits the campaign.

    The data in the store must fit the network, the ensemble and other sections of the
    configuration.

    Parameters
    ----------
    config
        Configuration of the campaign.
    path
        Path of the store.
    view
        Display of the progress.
    workers
        Function that runs the tasks of the preparation on workers; None to run them in this
        process.

    Raises
    ------
    InputError
        If the data cannot be read, or do not fit the network or the ensemble.
    """
    base = config.network_with({})
    architecture = base.Architecture
    assert architecture.radius is not None  # checked by load_config
    for sentence in config.remarks():
        tell(_logger, "%s", sentence)
    store = prepare_store(
        config.data,
        architecture.radius,
        architecture.max_neighbours,
        config.seed,
        path,
        view.step,
        workers,
        whole_lists=architecture.enable_interatomic_potential
        and architecture.truncated_neighbours == "refuse",
        encodings=config.encodings,
    )
    told = [*left_out(store), *masked_labels(store.manifest.lacking)]
    for sentence in [*told, *unseen(store), *truncated(store)]:
        tell(_logger, "%s", sentence)
    _check_budget(base, store)
    _check_sampling(config, store)
    _check_model(base, store, config.data.sampling)
    if config.ensemble is not None:
        _check_calibration(config, store)
    _check_judged(config, store)
    if config.start_from is not None:
        check_start(config.start_from, base, store)
    return store


def graphs_judged(config: RunConfig, manifest: Manifest) -> int:
    """Return the number of validation graphs by which each epoch of a run is judged.

    By default it is the number of all validation graphs. With a `search.budget` it is the number
    of graphs that an epoch trains on, at least 1,000. If no objective is a prediction error it is
    1, or as many as surely have a label. It is never more than the split has.

    Parameters
    ----------
    config
        Configuration of the run; `search.validation_samples` may set the number.
    manifest
        Manifest of the store.
    """
    there = manifest.splits[VALIDATION].graphs
    asked, budget = config.search.validation_samples, config.divided_budget
    if isinstance(asked, int):
        return min(asked, there)
    if asked == "auto" and not config.search.judges_errors:
        # No error decides, but it must exist: as many graphs surely have a label of some target.
        lacking = manifest.lacking.get(VALIDATION, {})
        return min(1 + min(lacking.get(name, 0) for name in _learnt(config, manifest)), there)
    if asked == "all" or budget is None:
        return there
    unit, size = budget
    trained = size / config.num_epoch
    if unit == "steps":
        train = drawn_size(manifest, config.data.sampling)
        limits = Budget.of(config.network_with({}))
        trained *= train.graphs / limits.least_steps(train.graphs, train.atoms, train.edges)
    # 1,000 graphs resolve differences of a few per cent between trials.
    return min(max(1000, math.ceil(trained)), there)


def _check_calibration(config: RunConfig, store: GraphStore) -> None:
    """Raise an error if too few structures of the split for calibration have a label of a target.

    The coverage of intervals, `ensemble.coverage`, decides how many are needed.
    """
    split, coverage = calibration_split(store), config.members.coverage
    lacking = store.manifest.lacking.get(split.name, {})
    target = max(_learnt(config, store.manifest), key=lambda name: lacking.get(name, 0))
    there, needed = len(split) - lacking.get(target, 0), needed_for_coverage(coverage)
    if there >= needed:
        return
    drawn = config.data.split
    if split.name == CALIBRATION:
        is_drawn, remedy = drawn.calibration is not None, "give more of them"
    else:
        is_drawn, remedy = drawn.val is not None, "draw some by data.split.calibration"
    of_target = f" with a label of {target}" if target in lacking else ""
    raise InputError(
        f"{config.name}: ensemble.coverage = {coverage} needs at least {needed} structures to "
        f"calibrate on, and {split.name} has {there}{of_target}; "
        f"{'raise its fraction in data.split' if is_drawn else remedy} or lower the coverage"
    )


def _check_judged(config: RunConfig, store: GraphStore) -> None:
    """Tell the user how many validation structures judge epochs, if not all.

    Raises
    ------
    InputError
        If these have no label of a target, in a data set of which others have one.
    """
    split, n = store[VALIDATION], graphs_judged(config, store.manifest)
    some, data_sets = judged_by(split, (n, config.seed)), store.manifest.data_sets
    if some is split or not config.search.judges_errors:
        return
    tell(_logger, "epochs are judged by %d of %d validation structures", n, len(split))
    for name in _learnt(config, store.manifest) & store.manifest.lacking.get(VALIDATION, {}).keys():
        target = store.manifest.targets[name]
        for branch in sorted(_labelled(split, name, target) - _labelled(some, name, target)):
            of = f" of data set {data_sets[branch]}" if branch in data_sets else ""
            raise InputError(
                f"{config.name}: the {n} validation structures that judge epochs have no label of "
                f"{name}{of}, but others have; raise search.validation_samples, or write all"
            )


def _labelled(split: Split, name: str, target: Target) -> set[int]:
    """Return the branches of graphs with a label of a target; 0 if graphs name no branch."""
    branch = np.zeros(len(split), np.int64) if split.branch is None else split.branch
    known = np.isfinite(split.target(name)).any(axis=1)
    return set(target.rows_of(branch, split.n_atoms)[known].tolist())


def _learnt(config: RunConfig, manifest: Manifest) -> set[str]:
    """Return the targets that the networks of a run learn."""
    return {term.target for term in terms_of(config.network_with({}), manifest)}


def _check_sampling(config: RunConfig, store: GraphStore) -> None:
    """Raise an error if `data.sampling` does not suit the branches (data sets) of the store."""
    if config.data.sampling != "proportional":
        names = store.manifest.branch_names
        try:
            shares_of(config.data.sampling, store[TRAIN].branch_runs.graphs, names)
        except InputError as error:
            raise InputError(f"{config.name}: {error}") from None


def _check_model(network: NetworkConfig, store: GraphStore, sampling: Sampling) -> None:
    """Raise an error if a network does not fit the data.

    The network of an engine (external library that builds networks) is tried in another process,
    as it may crash that process.
    """
    if isinstance(network, EngineNetwork):
        with EngineProbe(store.path) as probe:
            probe.cost(network, *_mean_batch(network, drawn_size(store.manifest, sampling)))
        return
    with torch.device("meta"):
        build_model(network, store)


def _mean_batch(network: NetworkConfig, train: SplitSize) -> tuple[int, int, int]:
    """Return the mean numbers of atoms, edges and graphs in a step of one batch, rounded up.

    ``train`` is the size of the training split.
    """
    steps = Budget.of(network).least_steps(train.graphs, train.atoms, train.edges)
    return -(-train.atoms // steps), -(-train.edges // steps), -(-train.graphs // steps)


def _check_budget(network: NetworkConfig, store: GraphStore) -> None:
    """Tell the user how many training structures exceed `Training.Batching` and are left out.

    Raises
    ------
    InputError
        If the network refuses such structures, or no structure is left.
    """
    budget, train = Budget.of(network), store["trainset"]
    if set(budget.limits) == {"graphs"}:  # one graph always fits
        return
    too_large = int((~graphs_kept(train, budget)).sum())
    if too_large:
        tell(
            _logger,
            "%d of %d structures to train on are larger than Training.Batching allows and are left "
            "out",
            *(too_large, len(train)),
        )


def segment_of_run(
    config: RunConfig, site: Site, store: Path, *, start: Start, epochs: EpochPlan, **others: Any
) -> SegmentSpec:
    """Build the specification of a segment (training job), with the fields common to a run.

    Parameters
    ----------
    config, site
        Configuration of the run, and the site.
    store
        Path of the run's store.
    start, epochs
        Sections of the segment; frozen layers, budget and sampling are added from ``config``.
    **others
        Other fields of :class:`SegmentSpec`.
    """
    return SegmentSpec(
        threads=site.node.cores_per_gcd,
        store=StoreAccess(path=str(store), mode=config.data.mode, scratch=site.node.scratch),
        start=replace(start, frozen=config.start_from.frozen if config.start_from else ()),
        epochs=replace(epochs, budget=config.divided_budget, sampling=config.data.sampling),
        **others,
    )
