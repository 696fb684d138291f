"""Start of a campaign: checks the user's input before it imports the driver.

The driver needs torch and Parsl, whose import takes seconds, and a minute on a busy shared file
system. A wrong path is reported before.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn_flow import config as schema
from hydragnn_flow.campaign.setup.origin import network_from
from hydragnn_flow.config import RunConfig
from hydragnn_flow.config.objective import ObjectiveConfig
from hydragnn_flow.config.run import load_campaign as load_any
from hydragnn_flow.ensemble.summary import read_summary
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import Site
from hydragnn_flow.log import View
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import trial_kwh


def load_config(path: str | Path, *, data: str | Path | None = None) -> RunConfig:
    """Read and check a run configuration, including the network of weights that it starts from.

    Parameters
    ----------
    path
        YAML file of the configuration.
    data
        Directory of the source's data files; overrides the file's ``data.path``.

    Raises
    ------
    InputError
        If anything in the file is wrong: one sentence naming file, key and remedy.
    """
    return with_start(schema.load_config(path, data=data), path)


def load_campaign(
    path: str | Path, *, data: str | Path | None = None
) -> RunConfig | ObjectiveConfig:
    """Read and check the configuration of a campaign for networks or for a user's function.

    Parameters and errors are those of :func:`load_config`.
    """
    config = load_any(path, data=data)
    return config if isinstance(config, ObjectiveConfig) else with_start(config, path)


def with_start(config: RunConfig, source: str | Path) -> RunConfig:
    """Return a configuration changed so that its networks fit the weights in `start_from`.

    Parameters
    ----------
    config
        Configuration that was read from the file ``source``.
    source
        File of the configuration, for error messages.

    Raises
    ------
    InputError
        If no weights are found, or they do not fit a network of the search.
    """
    if config.start_from is None:
        return config
    try:
        network = network_from(
            config.start_from,
            config.network,
            config.network_with,
            config.search.space,
            config.data.branch_names,
        )
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    return config.model_copy(update={"network": network})


@dataclass
class CampaignSummary:
    """Result of a campaign: its directory, report and ensemble."""

    run_directory: Path
    report: Path
    """Path of the report; of the table of trials for a search over a user's function."""
    ensemble: dict[str, Any] | None
    """Content of `ensemble.json`; None for a search without an ensemble."""
    was_complete: bool = False
    """True if nothing was left to do; False if this call trained."""


def check_paths(
    config: RunConfig | ObjectiveConfig, run_directory: str | Path | None = None
) -> RunDirectory:
    """Check that a campaign can use its run directory, data files and sampler.

    Parsl is not imported for that, and torch only if the sampler needs it.

    Parameters
    ----------
    config, run_directory
        Arguments as for :func:`run_campaign`.

    Returns
    -------
    RunDirectory
        Directory of the run; nothing is written to it.

    Raises
    ------
    InputError
        If the directory belongs to something else or cannot be written, data files do not exist,
        or the sampler cannot propose for the search.
    """
    directory = RunDirectory(Path(run_directory or Path("runs") / config.name))
    if isinstance(config, ObjectiveConfig):
        directory.check_objective(config)
        return directory
    try:
        directory.check(config)
        if not _is_complete(config, directory):
            _check_writable(directory.path)
            config.data.check_files()
            _check_sampler(config)
    except OSError as error:
        raise InputError(
            f"{error.filename or directory.path}: {error.strerror}; allow its use or name another "
            "place"
        ) from error
    return directory


def prepare(
    config: RunConfig,
    site: Site,
    run_directory: str | Path | None = None,
    view: View | None = None,
) -> Path:
    """Build the GraphStore (graphs on disk) of a run on a site, unless it exists; return its path.

    Parameters and errors are those of :func:`run_campaign`.
    """
    directory = check_paths(config, run_directory)
    from hydragnn_flow.campaign.driver import build_store

    with displayed(view) as shown:
        build_store(config, site, directory, shown)
    return directory.store


def run_campaign(
    config: RunConfig | ObjectiveConfig,
    site: Site,
    run_directory: str | Path | None = None,
    view: View | None = None,
) -> CampaignSummary:
    """Run a campaign to its end, or continue a stopped one.

    Parameters
    ----------
    config
        Configuration of the campaign.
    site
        Site that runs the campaign.
    run_directory
        Run directory; ``runs/<name>`` by default.
    view
        Progress display, which the caller starts and ends; None for the terminal's.

    Raises
    ------
    InputError
        If something the user gave is wrong; nearly always before a trial starts.
    StoreError
        If the store is damaged, now or while trials read it; once it is restored, the same call
        continues.
    CampaignStopped
        If an outside cause keeps the campaign from its work; once it is removed, the same call
        continues.
    """
    directory = check_paths(config, run_directory)
    if isinstance(config, ObjectiveConfig):
        from hydragnn_flow.campaign.functions import TABLE, run_objective

        run_objective(config, site, directory.path, view)
        return CampaignSummary(directory.path, directory.path / TABLE, None)
    was_complete = _is_complete(config, directory)
    summary: dict[str, Any] | None = None
    if was_complete:
        if config.ensemble is not None:
            summary = read_summary(directory.path)
        if not directory.report.exists():
            from hydragnn_flow.report.html import write_report

            write_report(directory.path)
    else:
        from hydragnn_flow.campaign.driver import drive

        with displayed(view) as shown:
            summary = drive(config, site, directory, shown)
    return CampaignSummary(directory.path, directory.report, summary, was_complete)


def _is_complete(config: RunConfig, directory: RunDirectory) -> bool:
    if config.ensemble is not None:
        return directory.is_complete(config)
    from hydragnn_flow.search import read_trials  # which imports Optuna

    trials = read_trials(directory.path)
    ended = sum(trial.state != "running" for trial in trials)
    has_result = any(trial.state in ("complete", "pruned") for trial in trials)
    if not has_result or ended < len(trials):
        return False
    limit = config.search.energy_kwh
    return ended >= config.search.trials or (
        limit is not None and trial_kwh(directory.results()) >= limit
    )


def displayed(view: View | None) -> AbstractContextManager[View]:
    """Context manager: show a campaign's progress by ``view``; if None, on the terminal."""
    return CampaignView() if view is None else nullcontext(view)


def _check_sampler(config: RunConfig) -> None:
    """Let a sampler of another package propose once; this needs Optuna, and sometimes torch."""
    if config.search.sampler not in ("auto", "batched_tpe"):
        from hydragnn_flow.search.study import rehearse

        rehearse(config.search)


def _check_writable(directory: Path) -> None:
    there = next(place for place in (directory, *directory.parents) if place.exists())
    if not there.is_dir():
        raise InputError(f"{directory}: {there} is a file; name a directory with --run-dir")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(
            f"{directory}: nothing may be written in {there}; choose another directory with "
            f"--run-dir"
        )
