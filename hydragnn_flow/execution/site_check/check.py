"""Try a site: start one block, report what each of its GCDs is, and have two exchange data."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from hydragnn_flow.execution.options import cores_in
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.execution.site import Site
from hydragnn_flow.execution.site_check.calibration import SECONDS, run_calibration
from hydragnn_flow.execution.site_check.exchange import run_exchange
from hydragnn_flow.execution.site_check.probe import run_probe

SECONDS_BETWEEN_CHECKS = 0.5
# Time for all nodes to answer: a GPU that hangs must not hang the check.
SECONDS_TO_ANSWER = 600.0
# Time to wait for the other nodes of a block after its first has started.
SECONDS_FOR_THE_OTHERS = 120.0


def check_site(
    site: Site,
    directory: Path,
    store: Path | None,
    tell: Callable[[str], None],
    *,
    calibrates: bool = False,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
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
    calibrates
        Whether the first GCD is to train networks for a minute.

    Returns
    -------
    reports : list of dict
        Answer of :func:`~hydragnn_flow.execution.site_check.probe.probe` for each GCD, with its
        ``host`` and ``gcd``; a GCD that could not answer has a ``fault`` instead.
    exchanges : list of dict
        ``between`` which GCDs, with the answer of
        :func:`~hydragnn_flow.execution.site_check.exchange.exchange` or a ``fault``: two of the
        first node, where it has two, and two of different nodes, where two answered.
    calibration : dict
        Answer of :func:`~hydragnn_flow.execution.site_check.calibration.calibrate` or a ``fault``;
        empty if not asked for.

    Raises
    ------
    InputError, CampaignStopped
        If no block starts.
    """
    node = site.node
    device = "cuda" if node.device == "hip" else node.device
    request = {
        "device": device,
        "store": None if store is None else str(store.absolute()),
        "interface": node.interface,
    }
    nodes = site.nodes // site.blocks
    with Pool(site, directory) as pool:
        first: float | None = None
        while (here := len(pool.hosts())) < nodes:
            first = first or (time.monotonic() if here else None)
            if first is not None and time.monotonic() - first > SECONDS_FOR_THE_OTHERS:
                break
            pool.update(site.gcds_of_a_block)
            tell(pool.waiting() or f"{here} of {nodes} nodes have started")
            time.sleep(SECONDS_BETWEEN_CHECKS)
        asked = {pool.submit(run_probe, node, request, manager=host.name) for host in pool.hosts()}
        waiting, give_up = asked, time.monotonic() + SECONDS_TO_ANSWER
        while waiting and time.monotonic() < give_up:
            waiting = wait(waiting, SECONDS_BETWEEN_CHECKS).not_done
            pool.update()
            tell(f"{len(waiting)} of {here} nodes are being tried")
        reports = [report for task in asked for report in _answers(task)]
        exchanges = _exchanges(pool, site, directory, device, tell)
        calibration = _calibration(pool, site, device, tell) if calibrates else {}
    return sorted(reports, key=lambda report: report["host"]), exchanges, calibration


def _calibration(
    pool: Pool, site: Site, device: str, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Train networks on the first GCD of a node, the others idle."""
    node, hosts = site.node, pool.hosts()
    if not hosts:
        return {"fault": "no node is there any more"}
    request = {"device": device, "threads": node.cores_per_gcd, "seconds": SECONDS}
    task = pool.submit(run_calibration, node, request, manager=hosts[0].name)
    give_up = time.monotonic() + SECONDS + SECONDS_TO_ANSWER
    while not task.done() and time.monotonic() < give_up:
        wait([task], SECONDS_BETWEEN_CHECKS)
        pool.update()
        tell(f"a GCD trains networks, for about {SECONDS:.0f} s")
    return _answer(task)


def _exchanges(
    pool: Pool, site: Site, directory: Path, device: str, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Sum an array over two GCDs of a node, and over two nodes."""
    node, hosts = site.node, [host.name for host in pool.hosts()]
    pairs: list[tuple[str, list[tuple[str, int]], str | None]] = []
    if hosts and len(node.gcds) > 1:
        pairs.append(("two GCDs of a node", [(hosts[0], 0), (hosts[0], 1)], None))
    if len(hosts) > 1:
        pairs.append(("two nodes", [(hosts[0], 0), (hosts[1], 0)], node.interface))
    found = []
    for between, places, interface in pairs:
        folder = directory.absolute() / uuid4().hex
        folder.mkdir()
        request = {"device": device, "folder": str(folder), "key": "", "interface": interface}
        asked = {
            pool.submit(*(run_exchange, node, position, request | {"rank": rank}), manager=host)
            for rank, (host, position) in enumerate(places)
        }
        waiting, give_up = asked, time.monotonic() + SECONDS_TO_ANSWER
        while waiting and time.monotonic() < give_up:
            waiting = wait(waiting, SECONDS_BETWEEN_CHECKS).not_done
            pool.update()
            tell(f"{between} exchange data")
        answers = [_answer(task) for task in asked]
        faults = [answer for answer in answers if "fault" in answer]
        found.append({"between": between} | (faults or answers)[0])
    return found


def _answer(task: Future[Any]) -> dict[str, Any]:
    if not task.done():
        return {"fault": f"did not end within {SECONDS_TO_ANSWER:.0f} s"}
    error = task.exception()
    return {"fault": f"{type(error).__name__}: {error}"} if error else dict(task.result())


def _answers(task: Future[Any]) -> list[dict[str, Any]]:
    if not task.done():
        told = f"did not answer within {SECONDS_TO_ANSWER:.0f} s"
        return [{"host": "a node", "gcd": "", "fault": told}]
    error = task.exception()
    if error is None:
        return list(task.result())
    return [{"host": "a node", "gcd": "", "fault": f"{type(error).__name__}: {error}"}]


def faults(
    site: Site,
    reports: list[dict[str, Any]],
    exchanges: list[dict[str, Any]],
    calibration: Mapping[str, Any] = MappingProxyType({}),
) -> list[str]:
    """Differences between a site and its GCDs' reports, a sentence each.

    Parameters
    ----------
    site
        The machine.
    reports, exchanges, calibration
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
    for one in exchanges:
        if "fault" in one:
            found.append(f"{one['between']}: exchange no data ({one['fault']})")
        elif one["missing"]:
            found.append(
                f"{one['between']}: exchange data without {one['missing']}, which is not on "
                "LD_LIBRARY_PATH, and so by slow sockets; load the module that has it, on Frontier "
                "rccl-net-plugin"
            )
    if "fault" in calibration:
        found.append(f"calibration: {calibration['fault']}")
    for one in calibration.get("networks", []):
        if "reason" in one:
            found.append(f"calibration, {one['kind']}, {one['hidden']} features: {one['reason']}")
    return found
