"""Commands about sites, and the options by which every command takes one."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_flow.commands.console import console, flattened, say, short, using
from hydragnn_flow.commands.console import show as show_table
from hydragnn_flow.log import driver_log

if TYPE_CHECKING:
    from hydragnn_flow.execution import Site

app = typer.Typer(help="Show a site, or test it.", no_args_is_help=True)


@dataclass(frozen=True)
class Jobs:
    """Command-line options of batch jobs, such as account, time limit and number of nodes."""

    account: Annotated[
        str | None, typer.Option("-A", "--account", help="Project that pays for batch jobs.")
    ] = None
    partition: Annotated[
        str | None, typer.Option("-p", "--partition", help="Partition or queue of batch jobs.")
    ] = None
    qos: Annotated[
        str | None, typer.Option("-q", "--qos", help="Quality of service of batch jobs.")
    ] = None
    walltime: Annotated[
        str | None, typer.Option("-t", "--walltime", help="Time limit of each batch job, HH:MM:SS.")
    ] = None
    nodes: Annotated[
        int | None, typer.Option("-N", "--nodes", help="Nodes to use at a time, in all batch jobs.")
    ] = None
    blocks: Annotated[
        int | None, typer.Option("--blocks", help="Batch jobs at a time; they divide the nodes.")
    ] = None


def completed(incomplete: str) -> list[str]:
    """Return the names of shipped sites that begin as what a user has typed in a shell."""
    from hydragnn_flow.execution import shipped_sites

    return [name for name in shipped_sites() if name.startswith(incomplete)]


@dataclass(frozen=True)
class Machine(Jobs):
    """Command-line options that name a site (machine) and its batch jobs."""

    site: Annotated[
        str,
        typer.Option(
            "--site",
            help="Machine: the name of a shipped site, a site file, or a site.yaml.",
            autocompletion=completed,
        ),
    ] = "local"

    def load(self) -> Site:
        """Load the site (machine) that the options name, changed by the options of batch jobs."""
        from hydragnn_flow.execution import load_site

        options = dict(vars(self))
        return load_site(options.pop("site"), **options)


_Name = Annotated[
    str,
    typer.Argument(
        help="Name of a shipped site, a site file, or a site.yaml.",
        metavar="SITE",
        autocompletion=completed,
    ),
]


@app.command()
@flattened
def show(site: _Name, jobs: Jobs) -> None:
    """Show a site's description of its nodes and its batch script, without submitting anything.

    Works on any machine, a laptop included.
    """
    loaded = Machine(**vars(jobs), site=site).load()
    from hydragnn_flow.execution.sites.preview import preview, replaced

    shown = preview(loaded)
    show_table(_facts(loaded), f"Site {loaded.name}")
    for note in filter(None, (*loaded.notes, shown.note)):
        say(note)
    if (own := getattr(loaded.parsl_config, "own", None)) is not None:
        show_table(replaced(own, shown.config.executors[0]), "Replaced")
    say(f"\nA block: {shown.command}\n\n{shown.script.strip()}")
    say(f"\nParsl's configuration\n\n{shown.config!r}")


@app.command()
@flattened
def check(
    site: _Name,
    jobs: Jobs,
    store: Annotated[
        Path | None,
        typer.Option("--store", help="A GraphStore that every GCD is to read."),
    ] = None,
) -> None:
    """Start one block (batch job) of a site and show, GCD by GCD, what a trial would find there.

    Ends with exit code 1 if anything differs from the site's description.
    """
    loaded = Machine(**vars(jobs), site=site).load()
    from hydragnn_flow.data import GraphStore
    from hydragnn_flow.execution import sole_driver
    from hydragnn_flow.execution.site_check import check_site, faults

    directory = Path("runs") / f"check-{loaded.name}"
    with using(directory, store):
        if store is not None:
            with GraphStore.open(store):
                pass  # reports a bad store before a job waits in a queue
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (
            sole_driver(directory),
            driver_log(directory, say),
            console.status("starting") as status,
        ):
            reports, exchanges = check_site(loaded, directory / "parsl", store, status.update)
        found = faults(loaded, reports, exchanges)
        show_table(_rows(reports))
        for one in exchanges:
            if "fault" not in one:
                say(f"{one['between']} exchange {one['gb_per_s']:.2f} GB/s")
        if answered := [report for report in reports if "fault" not in report]:
            say(_energy_sentence(answered))
        for fault in found:
            say(fault)
        if found:
            say(f"logs of the block are in {short(directory)}")
            raise typer.Exit(1)
        shutil.rmtree(directory)
    hosts = len({report["host"] for report in reports})
    torch = ", ".join(sorted({report["torch"] for report in reports}))
    say(f"{loaded.name} is as it should be: nodes {hosts}, GCDs {len(reports)}, torch {torch}")


def _facts(site: Site) -> list[dict[str, str]]:
    node, gcd = site.node, site.node.gcd
    facts = {
        "nodes": f"{site.nodes}, in {site.blocks} block(s) of {site.nodes // site.blocks}",
        "batch system": site.scheduler or "none",
        "GCDs of a node": f"{len(node.gcds)} ({node.device}): {', '.join(node.gcds)}",
        "memory of a GCD": f"{gcd.memory_gib:.1f} GiB for segments",
        "trials on a GCD": f"at most {gcd.most_segments} side by side",
        "CPU cores of a GCD": str(node.cores_per_gcd),
        "their numbers": "  ".join(node.cores) or "left to the system",
        "network interface": node.interface or "left to the system",
        "scratch of a node": node.scratch or "none",
    }
    return [{"": name, "as the site says": value} for name, value in facts.items()]


def _rows(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a table row for each GCD's report; cells of values not reported are left out."""
    rows = []
    for report in reports:
        row: dict[str, Any] = {"node": report["host"], "GCD": report["gcd"]}
        if "fault" in report:
            rows.append(row | {"device": "fault, see below"})
            continue
        row |= {
            "device": report["device"],
            "GiB": f"{report['memory_gib']:.1f}",
            "cores": _ranges(report["cores"]),
            "threads": report["threads"],
            "start, s": f"{report['start_seconds']:.1f}",
        }
        if report.get("graphs") is not None:
            row["graphs"] = f"{report['graphs']:,}"
        if report.get("address"):
            row["address"] = report["address"]
        rows.append(row)
    return rows


def _energy_sentence(reports: list[dict[str, Any]]) -> str:
    words = []
    for name, key in (("segments", "energy"), ("nodes", "node_energy")):
        found = sorted({report[key] or "nothing" for report in reports})
        words.append(f"of {name} {' or '.join(found)}")
    return f"what counts energy: {', '.join(words)}"


def _ranges(cores: list[int]) -> str:
    """Format core numbers, as in "0-7,64-71"."""
    ranges: list[list[int]] = []
    for core in cores:
        if ranges and ranges[-1][1] == core - 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in ranges)
