"""Try a site: start one block, and report what each of its GCDs is."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from hydragnn_flow.execution.options import cores_in
from hydragnn_flow.execution.pools.pools import Pools
from hydragnn_flow.execution.site import Site
from hydragnn_flow.execution.site_check.probe import run_probe

SECONDS_BETWEEN_CHECKS = 0.5
# Time for all nodes to answer: a GPU that hangs must not hang the check.
SECONDS_TO_ANSWER = 600.0
# Time to wait for the other nodes of a block after its first has started.
SECONDS_FOR_THE_OTHERS = 120.0


def check_site(
    site: Site, directory: Path, store: Path | None, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Start one block of a site, ask every GCD what it is, and give the block back.

    Parameters
    ----------
    site
        The machine.
    directory
        For Parsl's files, on a file system that the nodes see.
    store
        A store that every GCD is to read; none if not given.
    tell
        Called with a sentence about the progress.

    Returns
    -------
    list of dict
        Answer of :func:`~hydragnn_flow.execution.site_check.probe.probe` for each GCD, with its
        ``host`` and ``gcd``; a GCD that could not answer has a ``fault`` instead.

    Raises
    ------
    InputError, CampaignStopped
        If no block starts.
    """
    node = site.node
    request = {
        "device": "cuda" if node.device == "hip" else node.device,
        "store": None if store is None else str(store.absolute()),
        "interface": node.interface,
    }
    nodes = site.nodes // site.blocks
    with Pools(site, directory) as pools:
        first: float | None = None
        while (here := pools.workers("node")) < nodes:
            first = first or (time.monotonic() if here else None)
            if first is not None and time.monotonic() - first > SECONDS_FOR_THE_OTHERS:
                break
            pools.update(node=nodes)
            tell(pools.waiting() or f"{here} of {nodes} nodes have started")
            time.sleep(SECONDS_BETWEEN_CHECKS)
        asked = {pools.submit("node", run_probe, node, request) for _ in range(here)}
        waiting, give_up = asked, time.monotonic() + SECONDS_TO_ANSWER
        while waiting and time.monotonic() < give_up:
            waiting = wait(waiting, SECONDS_BETWEEN_CHECKS).not_done
            pools.update()
            tell(f"{len(waiting)} of {here} nodes are being tried")
        reports = [report for task in asked for report in _answers(task)]
    return sorted(reports, key=lambda report: report["host"])


def _answers(task: Future[Any]) -> list[dict[str, Any]]:
    if not task.done():
        told = f"did not answer within {SECONDS_TO_ANSWER:.0f} s"
        return [{"host": "a node", "gcd": "", "fault": told}]
    error = task.exception()
    if error is None:
        return list(task.result())
    return [{"host": "a node", "gcd": "", "fault": f"{type(error).__name__}: {error}"}]


def faults(site: Site, reports: list[dict[str, Any]]) -> list[str]:
    """Differences between a site and its GCDs' reports, a sentence each.

    Parameters
    ----------
    site
        The machine.
    reports
        As :func:`check_site` returns them.
    """
    node, nodes = site.node, site.nodes // site.blocks
    found = []
    hosts = {report["host"] for report in reports if report["gcd"]}
    if len(hosts) < nodes:
        found.append(f"only {len(hosts)} of the block's {nodes} nodes answered")
    versions = {report["torch"] for report in reports if "torch" in report}
    if len(versions) > 1:
        found.append(f"nodes have different versions of torch: {', '.join(sorted(versions))}")
    seen_as: dict[tuple[str, str], list[str]] = defaultdict(list)
    for report in reports:
        if report.get("identity"):
            seen_as[report["host"], report["identity"]].append(report["gcd"])
    for report in reports:
        which = f"GCD {report['gcd']} of {report['host']}" if report["gcd"] else report["host"]
        if "fault" in report:
            found.append(f"{which}: {report['fault']}")
            continue
        others = [g for g in seen_as[report["host"], report["identity"]] if g != report["gcd"]]
        if others:
            found.append(f"{which}: is the same device as GCD {', '.join(others)}")
        if node.device != "cpu" and report["memory_gib"] < node.gcd.memory_gib:
            found.append(
                f"{which}: has {report['memory_gib']:.1f} GiB of memory, less than the "
                f"{node.gcd.memory_gib:g} GiB the site lets segments use"
            )
        cores = node.cores[node.gcds.index(report["gcd"])] if node.cores else ""
        if cores and not cores_in(cores) <= set(report["cores"]):
            found.append(f"{which}: may not use all of the cores {cores} the site gives it")
    return found
