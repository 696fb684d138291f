"""Start of a campaign: the user's input is checked first, then the driver is imported.

The driver needs torch and Parsl, which take seconds to import, on a file system that many use a
minute. A wrong path is reported before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn_flow.campaign.view import View
from hydragnn_flow.config import RunConfig
from hydragnn_flow.ensemble.summary import read_summary
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import Site
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import trial_kwh


@dataclass
class CampaignSummary:
    """Result of a campaign."""

    run_directory: Path
    report: Path
    ensemble: dict[str, Any] | None
    """The content of `ensemble.json`; None where the search is for the fastest training."""
    was_complete: bool = False
    """Whether there was nothing left to do."""


def check_paths(config: RunConfig, run_directory: str | Path | None = None) -> RunDirectory:
    """Refuse a run directory or data files that will not do; imports neither torch nor Parsl.

    :func:`prepare` and :func:`run_campaign` begin with it. Called before a site is loaded, it
    reports a wrong path at once.

    Parameters
    ----------
    config, run_directory
        As :func:`run_campaign` takes them.

    Returns
    -------
    RunDirectory
        The directory of the run; nothing is written to it.

    Raises
    ------
    InputError
        If the directory belongs to something else or cannot be written to, there are no data files
        where the configuration says, or the sampler cannot propose for its search.
    """
    directory = RunDirectory(Path(run_directory or Path("runs") / config.name))
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
    """Build the GraphStore of a run on a site, unless it is there already; returns its path.

    Parameters and errors are those of :func:`run_campaign`.
    """
    directory = check_paths(config, run_directory)
    from hydragnn_flow.campaign.driver import build_store

    with _shown(view) as shown:
        build_store(config, site, directory, shown)
    return directory.store


def run_campaign(
    config: RunConfig,
    site: Site,
    run_directory: str | Path | None = None,
    view: View | None = None,
) -> CampaignSummary:
    """Run a campaign to its end, or continue one that was stopped.

    Parameters
    ----------
    config
        The campaign.
    site
        The machine.
    run_directory
        Where to keep everything; ``runs/<name>`` if not given.
    view
        The progress display, which the caller starts and ends; the terminal's if not given.

    Raises
    ------
    InputError
        If something the user gave is wrong; nearly all of that is found before a trial starts.
    StoreError
        If the store is damaged, now or while trials read it; once it is restored, the same call
        continues.
    CampaignStopped
        If something around the campaign keeps its work from being done; once that is cured, the
        same call continues.
    """
    directory = check_paths(config, run_directory)
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

        with _shown(view) as shown:
            summary = drive(config, site, directory, shown)
    return CampaignSummary(directory.path, directory.report, summary, was_complete)


def _is_complete(config: RunConfig, directory: RunDirectory) -> bool:
    """Whether there is nothing left to do."""
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


@contextmanager
def _shown(view: View | None) -> Iterator[View]:
    if view is not None:
        yield view
        return
    with CampaignView() as shown:
        yield shown


def _check_sampler(config: RunConfig) -> None:
    """Let a sampler that was chosen by its class propose; it needs Optuna, and some need torch."""
    if not isinstance(config.search.sampler, str):
        from hydragnn_flow.search.rehearsal import rehearse

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
