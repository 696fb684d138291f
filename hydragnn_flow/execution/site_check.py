"""Check of a site: starts one block, describes its GCDs, and lets pairs of them exchange data."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydragnn_flow.execution.jobs import SECONDS_BETWEEN_CHECKS, Jobs, Task
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.execution.site import Site, cores_in
from hydragnn_flow.placement import Spot
from hydragnn_flow.segment import Call, SegmentResult

# Time for all nodes to answer [s]: a GPU that hangs must not hang the check.
SECONDS_TO_ANSWER = 600.0


def check_site(
    site: Site,
    directory: Path,
    store: Path | None,
    tell: Callable[[str], None],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Start one batch job of a site (machine), let every GCD (device) describe itself, and end it.

    Parameters
    ----------
    site
        Site to check.
    directory
        Directory for Parsl's files, visible to the nodes.
    store
        Path of a store that every GCD reads; None for no store.
    tell
        Function called with a sentence about the progress.

    Returns
    -------
    reports : list of dict
        Answer of :func:`~hydragnn_flow.execution.site_probe.probe` for each GCD, with its
        ``host`` and ``gcd``; a GCD that could not answer has a ``fault`` instead.
    exchanges : list of dict
        One dict for two GCDs of the first node, and one for two GCDs on different nodes, where
        there are any: ``between`` (words for the pair), and the answer of
        :func:`~hydragnn_flow.execution.site_probe.exchange` or a ``fault``.

    Raises
    ------
    InputError, CampaignStopped
        If no block (batch job) starts.
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
            # The other nodes of a block have two minutes after its first.
            if first is not None and time.monotonic() - first > 120.0:
                break
            pool.update(site.gcds_of_a_block)
            tell(pool.waiting() or f"{here} of {nodes} nodes have started")
            time.sleep(SECONDS_BETWEEN_CHECKS)
        hosts = [host.name for host in pool.hosts()]
        jobs = Jobs[Task](pool, site)

        def answers(
            function: str,
            request: Mapping[str, Any],
            places: Sequence[Sequence[Spot]],
            words: str,
        ) -> list[SegmentResult | None]:
            there = {one.host.name for one in jobs.fleet.nodes}
            asked = {
                number: jobs.send_to(_call(number, directory, function, request, len(spots)), spots)
                for number, spots in enumerate(places)
                if {spot.node for spot in spots} <= there
            }
            left, give_up = {*asked.values()}, time.monotonic() + SECONDS_TO_ANSWER
            while left and time.monotonic() < give_up:
                left -= {*jobs.finished(SECONDS_BETWEEN_CHECKS)}
                jobs.request_workers(0)
                tell(words.format(len(left)))
            ended = {number: one for number, one in asked.items() if one not in left}
            return [ended[n].result if n in ended else None for n in range(len(places))]

        spots = [Spot(host, gcd) for host in hosts for gcd in range(len(node.gcds))]
        words = f"{{}} of {len(spots)} GCDs are being tried"
        found = answers("probe", request, [[spot] for spot in spots], words)
        reports = [
            _known(end, node.gcds[spot.gcd]) | _answer(end)
            for end, spot in zip(found, spots, strict=True)
        ]
        exchanges = []
        for between, pair in _pairs(hosts, len(node.gcds)):
            interface = node.interface if pair[0].node != pair[1].node else None
            exchanged, words = (
                {"device": device, "interface": interface},
                f"{between} exchange data",
            )
            (end,) = answers("exchange", exchanged, [pair], words)
            exchanges.append({"between": between} | _answer(end))
    return sorted(reports, key=lambda report: report["host"]), exchanges


def _call(
    number: int, directory: Path, function: str, request: Mapping[str, Any], width: int
) -> Task:
    spec = Call(
        kind="check",
        number=number,
        directory=str(directory.absolute()),
        function=f"hydragnn_flow.execution.site_probe:{function}",
        argument=request,
    )
    return Task(spec=spec, width=width)


def _pairs(hosts: Sequence[str], gcds: int) -> Iterator[tuple[str, list[Spot]]]:
    """Yield words for a pair of GCDs, and the pair: on one node, then on two nodes, if there are.

    Parameters
    ----------
    hosts
        Names of the nodes in the block.
    gcds
        Number of GCDs on each node.
    """
    if hosts and gcds > 1:
        yield "two GCDs of a node", [Spot(hosts[0], 0), Spot(hosts[0], 1)]
    if len(hosts) > 1:
        yield "two nodes", [Spot(hosts[0], 0), Spot(hosts[1], 0)]


def _known(end: SegmentResult | None, gcd: str) -> dict[str, Any]:
    if end is None or not end.node:
        return {"host": "a node", "gcd": ""}
    return {"host": end.node, "gcd": gcd}


def _answer(end: SegmentResult | None) -> dict[str, Any]:
    if end is None:
        return {"fault": f"did not answer within {SECONDS_TO_ANSWER:.0f} s, or its node is gone"}
    return end.answer if end.status == "ok" else {"fault": end.reason}


def faults(
    site: Site,
    reports: list[dict[str, Any]],
    exchanges: list[dict[str, Any]],
) -> list[str]:
    """List contradictions between a site's description and its devices' reports, a sentence each.

    The list is empty if there are none.

    Parameters
    ----------
    site
        Site that was checked.
    reports, exchanges
        Results of :func:`check_site` for the site.
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
        if why := report.get("not_replayed"):
            found.append(
                f"{which}: cannot replay recorded training steps ({why}); write `export "
                "HYDRAGNN_FLOW_REPLAY=0` in worker_init, and steps are computed one by one"
            )
        cores = node.cores[node.gcds.index(report["gcd"])] if node.cores else ""
        if cores and not cores_in(cores) <= set(report["cores"]):
            found.append(f"{which}: may not use all of the cores {cores} the site gives it")
    for one in exchanges:
        if "fault" in one:
            found.append(f"{one['between']}: exchange no data ({one['fault']})")
        elif one["missing"]:
            found.append(
                f"{one['between']}: exchange data by slow sockets, without a plugin for Slingshot "
                f"({one['missing']}); load the module that has it, put its folder on "
                "LD_LIBRARY_PATH, or its path into NCCL_NET_PLUGIN"
            )
    return found
