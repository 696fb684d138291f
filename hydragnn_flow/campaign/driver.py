"""Driver: searches, places, runs and judges until done; then makes the ensemble.

Only the driver writes results into the study (Optuna's record of the search), though any program
may enqueue trials there. It records each decision in the run directory before acting on it, so it
may be killed at any moment and restarted by the same command.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from typing import Any

from hydragnn_flow.campaign.context import Context, answering
from hydragnn_flow.campaign.cost_files import CostFile
from hydragnn_flow.campaign.phases import run_phases
from hydragnn_flow.campaign.setup.starting import bring_weights
from hydragnn_flow.campaign.setup.stores import checked_store
from hydragnn_flow.campaign.trackers import Trackers
from hydragnn_flow.config import RunConfig
from hydragnn_flow.config.search_checks import GCDS
from hydragnn_flow.data import GraphStore
from hydragnn_flow.ensemble import Member, finish_ensemble
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import Site, sole_driver
from hydragnn_flow.execution.jobs import Jobs, Task, run_calls
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.execution.pools.shared import Share, workers_of
from hydragnn_flow.locks import local_locks
from hydragnn_flow.log import View, driver_log, tell
from hydragnn_flow.report.gcd_time import cost_of, nodes_cost, rest_watts
from hydragnn_flow.report.html import write_report
from hydragnn_flow.run_directory import CONFIG, RunDirectory

_PREPARES = "hydragnn_flow.data:run_task"
_logger = logging.getLogger(__name__)


def build_store(config: RunConfig, site: Site, directory: RunDirectory, view: View) -> None:
    """Build the store of a run (the graphs on disk to train on), unless the store exists."""
    with _driving(directory, config, view), _started(site, directory) as pool:
        _prepare(config, site, directory, view, pool)


def drive(
    config: RunConfig, site: Site, directory: RunDirectory, view: View
) -> dict[str, Any] | None:
    """Run a campaign to its end, or continue it; return the content of its `ensemble.json`.

    Returns None for a search without an ensemble.

    Raises
    ------
    InputError
        If trials whose speed is measured ask for more GCDs than the site has for a trial.
    """
    check_gcds(config, site)
    with _driving(directory, config, view) as token:
        # After more trials another ensemble takes the place of the one that is there.
        of_members = f"-of-{config.search.trials}-trials"
        trackers = Trackers(config.trackers, directory.path, config.name, of_members)
        with closing(trackers), _started(site, directory) as pool:
            store = _prepare(config, site, directory, view, pool)
            if config.start_from is not None:
                bring_weights(config.start_from, config.network_with({}), directory, store)
            costs = CostFile(site)
            context = Context(
                config, site, directory, store, token, view, cost_file=costs, trackers=trackers
            )
            members = run_phases(context, lambda: _with_store(pool(), directory))
        return _finish(context, members)


def check_gcds(config: RunConfig, site: Site) -> None:
    """Refuse a search by speed whose trials ask for more GCDs than the site has for a trial.

    Raises
    ------
    InputError
        If trials ask for too many GCDs; the message names the key.
    """
    if not config.search.times_steps:
        return
    searched, there = config.search.space.get(GCDS), site.gcds_of_a_block
    asked = searched.examples() if searched else [config.gcds({})]
    if (most := max(int(number or 1) for number in asked)) > there:
        key = f"search.space.{GCDS}" if searched else "resources.gcds"
        raise InputError(
            f"{key}: asks for {most} GCDs, and the site has {there} for a trial, so that its "
            f"speed could not be measured; lower it, or take more nodes"
        )


def _with_store(pool: Pool | Share, directory: RunDirectory) -> Pool | Share:
    pool.bring(directory.store)
    return pool


def _prepare(
    config: RunConfig,
    site: Site,
    directory: RunDirectory,
    view: View,
    pool: Callable[[], Pool | Share],
) -> GraphStore:
    def workers(requests: Mapping[int, Mapping[str, Any]]) -> Iterator[int]:
        if requests:
            jobs, work = Jobs[Task](pool(), site), "preparing the store"
            yield from run_calls(jobs, "preparation", _PREPARES, requests, work)

    return checked_store(config, directory.store, view, workers)


@contextmanager
def _driving(directory: RunDirectory, config: RunConfig, view: View) -> Iterator[str]:
    """Context manager: lock and prepare the run directory; yield the driver's token.

    If the input of a new run turns out to be wrong, its files are deleted, unless it has a store.
    """
    new = not directory.path.exists()
    fresh = not (directory.path / CONFIG).exists()
    directory.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    with sole_driver(directory.path) as token, driver_log(directory.path, view.say):
        if option := local_locks(directory.path):
            tell(
                _logger,
                "%s: its file system is mounted with `%s`, so that nothing keeps a driver on "
                "another node out of it; start one at a time",
                *(directory.path, option),
            )
        if directory.is_extended(config):
            aside = directory.set_ensemble_aside()
            tell(_logger, "more trials are asked for; the ensemble of fewer is now %s", aside)
        elif directory.has_stray_members:
            aside = directory.set_ensemble_aside()
            tell(_logger, "%s holds members whose choice no longer counts; all begin anew", aside)
        directory.record_start(config)
        try:
            with answering(directory.path):
                yield token
        except InputError:
            if fresh and not directory.journal.exists():
                directory.clear(remove=new)
            raise


@contextmanager
def _started(site: Site, directory: RunDirectory) -> Iterator[Callable[[], Pool | Share]]:
    """Context manager: check the site's pool now; yield a function that returns the started pool.

    The pool is started when the function is first called.
    """
    pool = workers_of(site, directory.path / "parsl")
    with ExitStack() as stack:
        yield cache(lambda: stack.enter_context(pool))


def _finish(context: Context, members: Sequence[Member]) -> dict[str, Any] | None:
    """Calibrate and test the ensemble once, and write the report; return `ensemble.json`.

    For a search without an ensemble only the report is written, and None returned.
    """
    config, directory, view = context.config, context.directory, context.view
    context.ledger.write(lambda: None)  # raises if another driver is in charge
    rest = rest_watts(directory)
    if rest is not None:
        context.estimator.costs.observe_rest(rest)
    context.keep_costs()
    summary, steps = None, 1 if config.ensemble is None else 2
    if config.ensemble is not None:
        view.step("finish", 0, steps, "calibrating and testing")
        totals = {
            "wall_seconds": directory.wall_seconds(),
            **cost_of(directory.results()),
            **nodes_cost(directory.path),
        }
        network = config.network_with({})
        summary = finish_ensemble(
            directory.path, config.members, network, context.store, members, totals
        )
    view.step("finish", steps - 1, steps, "writing the report")
    write_report(directory.path)
    view.step("finish", steps, steps)
    return summary
