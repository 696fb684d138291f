"""The command line: `hydragnn-flow`."""

from __future__ import annotations

import io
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from hydragnn_flow.commands import ensembles, init, planning, profiling, search, sites
from hydragnn_flow.commands.console import (
    Config,
    Data,
    RunDir,
    Terminal,
    console,
    flattened,
    interruptible,
    say,
    short,
    show,
    using,
)
from hydragnn_flow.errors import CampaignStopped, InputError
from hydragnn_flow.plain_files import sound
from hydragnn_flow.versions import versions

if TYPE_CHECKING:
    from hydragnn_flow.config.objective import ObjectiveConfig
    from hydragnn_flow.execution import Site
    from hydragnn_flow.run_directory import RunDirectory

_ORDER = (
    *("init", "quickstart", "prepare", "run", "status", "trials", "report", "dashboard", "store"),
    *("predict", "evaluate", "recalibrate", "select", "export"),
    *("site", "plan", "simulate", "profile", "scaling"),
)


class _ByTask(TyperGroup):
    """Group of commands in the order in which a user needs them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=_ORDER.index)


app = typer.Typer(
    cls=_ByTask,
    help="Ensemble hyper-parameter optimisation of graph neural networks on materials.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
store_app = typer.Typer(help="Inspect a GraphStore.", no_args_is_help=True)
app.add_typer(store_app, name="store", rich_help_panel="Look")
for part in (ensembles, init, planning, profiling, search):
    app.add_typer(part.app)
app.add_typer(sites.app, name="site", rich_help_panel="Machine")


def _store_of(path: Path) -> Path:
    with using(path):
        if not path.exists():
            raise InputError(f"{path}: does not exist; prepare the store or correct the path")
        if not (path / "run.yaml").is_file():
            return path
        store = path / "store.gs"
        if not store.exists():
            raise InputError(
                f"{path}: is a run whose store is not prepared yet; run it again first"
            )
    return store


Store = Annotated[
    Path,
    typer.Argument(
        help="GraphStore: its directory, that of a run that has one, or a .bp of HydraGNN's.",
        metavar="PATH",
        callback=_store_of,
    ),
]
RunDirOption = Annotated[
    # The bracket is escaped: help texts are rich markup.
    Path | None,
    typer.Option("--run-dir", help=r"Where to keep the run. \[default: runs/NAME]"),
]
_DEBUG = "--debug"


def _show_versions(asked: bool) -> None:
    if asked:
        for name, version in versions().items():
            say(f"{name:<16}{version}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option(_DEBUG, help="Show tracebacks; may be anywhere in the command.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the versions of this package and of those it computes with.",
            is_eager=True,
            callback=_show_versions,
        ),
    ] = False,
) -> None:
    # Both are declared for --help; main() removes --debug from the arguments, wherever it is.
    del debug, version


@app.command(rich_help_panel="Start")
@flattened
def prepare(
    config: Config,
    machine: sites.Machine,
    data: Data = None,
    run_dir: RunDirOption = None,
) -> None:
    """Build the GraphStore, the graph data on disk, that a configuration describes.

    Structures are read, checked, given neighbour lists, divided into splits and written. The same
    command continues a preparation that was stopped.
    """
    from hydragnn_flow.campaign import check_paths, load_config
    from hydragnn_flow.campaign import prepare as build

    loaded = load_config(config, data=data)
    _say_where(check_paths(loaded, run_dir))
    site = machine.load()
    with interruptible(), using(run_dir or _RUNS, data):
        store = build(loaded, site, run_dir)
    say(f"store ready: {short(store)}")


@app.command(rich_help_panel="Start")
@flattened
def quickstart(machine: sites.Machine, run_dir: RunDirOption = None) -> None:
    """Run a whole campaign, in minutes on a laptop, on crystals that it generates.

    It is `run` with a configuration that comes with the package; the run directory gets a copy.
    """
    from hydragnn_flow.config.run import shipped_configs

    _run(shipped_configs()["quickstart"], machine, None, run_dir)


@app.command(rich_help_panel="Start")
@flattened
def run(
    config: Config,
    machine: sites.Machine,
    data: Data = None,
    run_dir: RunDirOption = None,
) -> None:
    """Run a campaign: search hyper-parameters, train an ensemble, predict with error bars.

    The same command continues a run that was stopped. With `search.objective` the search is over a
    user's function instead of networks. A search for `throughput`, `seconds` or `joules` alone
    trains no ensemble.
    """
    _run(config, machine, data, run_dir)


def _say_where(run: RunDirectory) -> None:
    """Print the path of the run directory, before torch and the driver are imported for seconds."""
    say(f"run directory: {short(run.path)}")


def _run(config: Path, machine: sites.Machine, data: Path | None, run_dir: Path | None) -> None:
    from hydragnn_flow.campaign import check_paths, load_campaign, run_campaign
    from hydragnn_flow.config.objective import ObjectiveConfig

    loaded = load_campaign(config, data=data)
    _say_where(check_paths(loaded, run_dir))
    if isinstance(loaded, ObjectiveConfig):
        _run_function(loaded, machine.load(), run_dir or _RUNS / loaded.name)
        return
    site = machine.load()
    with interruptible(), using(run_dir or _RUNS, data):
        summary = run_campaign(loaded, site, run_dir)
    where = short(summary.run_directory)
    if summary.was_complete:
        say(f"{where} is complete; delete it to start over")
    if summary.ensemble is None:
        from hydragnn_flow.report.trials_frame import best_table, trials_frame

        console.print(best_table(trials_frame(summary.run_directory), rows=5))
        say(f"what mattered  {short(summary.report)}")
        return
    from hydragnn_flow.report.errors import closing_table

    console.print(closing_table(summary.ensemble))
    say(f"predictions  {where}/predictions/")
    say(f"report       {short(summary.report)}")


def _run_function(config: ObjectiveConfig, site: Site, run_dir: Path) -> None:
    """Run the search over a user's function to its end, and print the best trials."""
    from hydragnn_flow.campaign.functions import TABLE, run_objective

    with interruptible(), using(run_dir):
        records = run_objective(config, site, run_dir)
    rows = []
    for record in [one for one in records if one.value is not None][:5]:
        values = record.values or (record.value,)
        told = ["" if value is None else f"{value:.4g}" for value in values]
        chosen = ", ".join(f"{name} = {value}" for name, value in record.parameters.items())
        rows.append(
            {"trial": record.number, "state": record.state}
            | dict(zip(config.search.objectives, told, strict=False))
            | {"parameters": chosen}
        )
    show(rows)
    say(f"trials  {short(run_dir)}/{TABLE}")


@app.command(rich_help_panel="Look")
def status(
    run_dir: RunDir,
    log: Annotated[
        bool, typer.Option("--log", help="Add the last decisions of the driver, from driver.log.")
    ] = False,
) -> None:
    """Show the phase, trials, members, errors and failures of a live or finished run."""
    from hydragnn_flow.log import last_lines
    from hydragnn_flow.report.stage import status_table

    with using(run_dir), sound(run_dir):
        console.print(status_table(run_dir))
        for line in last_lines(run_dir, 20) if log else ():
            say(line)


@app.command(rich_help_panel="Look")
def report(run_dir: RunDir) -> None:
    """Write report.html, one self-contained page, for a live or finished run."""
    from hydragnn_flow.report.html import write_report

    with using(run_dir), sound(run_dir):
        say(short(write_report(run_dir)))


@store_app.command("info")
def store_info(path: Store) -> None:
    """Show what a GraphStore holds: splits, keys, units, targets, elements and cutoff."""
    from hydragnn_flow.data import store_summary
    from hydragnn_flow.data.reading.graph_store import open_foreign

    with using(path), open_foreign(path) as store:
        summary = store_summary(store)
    sizes = [
        {"": name} | {key: f"{size[key]:,}" for key in ("graphs", "atoms", "edges")}
        for name, size in summary["splits"].items()
    ]
    show(sizes, summary["path"])
    show(
        [
            {
                "key": name,
                "type": key["dtype"],
                "shape in a graph": f"[{', '.join(map(str, key['shape']))}]",
                "unit": summary["units"].get(name, ""),
            }
            for name, key in summary["keys"].items()
        ]
    )
    of_atoms = bool(summary["elements"])
    per = {"graph": "structure", "node": "atom"} if of_atoms else {"graph": "graph", "node": "node"}
    targets = ", ".join(
        f"{name} [{classes or target['unit'] or 'unit unknown'}] per {per[target['level']]}"
        for name, target in summary["targets"].items()
        for classes in [f"classes {', '.join(target['classes'])}" if target["classes"] else ""]
    )
    cutoff, cap = summary["cutoff"], summary["max_neighbours"]
    reach = "unknown"
    if cutoff is not None:
        reach = f"{cutoff} {summary['units'].get('pos', '')}".rstrip()
        reach += f", nearest {cap}" if cap else ""
    counted = summary["truncation"]
    none_missing = ", none left out" if cap and counted and not counted["atoms"] else ""
    duplicates = (f"{n} in {name}" for name, n in summary["duplicates"].items() if n)
    for title, value in (
        ("targets", targets or "none"),
        ("features", ", ".join(summary["node_features"])),
        ("elements", " ".join(summary["elements"])),
        ("branches", " ".join(map(str, summary["branches"]))),
        ("cutoff", reach),
        ("neighbours", f"{summary['avg_num_neighbors']:.1f} on average{none_missing}"),
        ("truncated", "; ".join(summary["truncated"])),
        ("duplicates", ", ".join(duplicates)),
        ("left out", "; ".join(summary["left_out"])),
        ("masked", "; ".join(summary["masked"])),
        ("dtypes", summary["dtypes"]),
        ("size", f"{summary['bytes'] / 1e6:.1f} MB in {_counted(summary['shards'], 'shard')}"),
        ("in place", _in_place(summary["in_place"], summary["bytes_in_place"])),
    ):
        if value:
            say(f"{title:<11}{value}")


@store_app.command("check")
def store_check(path: Store) -> None:
    """Verify every checksum and read every graph of a GraphStore."""
    from hydragnn_flow.data import check_store
    from hydragnn_flow.report.progress import CampaignView

    with using(path):
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        with CampaignView(console) as view:
            # Only the check of a GiB takes long enough for a progress bar.
            checked = check_store(path, view.step if size > 1 << 30 else None)
    graphs = _counted(checked["graphs"], "graph")
    if checked["unverified"]:
        files = _counted(len(checked["unverified"]), "file")
        say(f"{path}: {graphs} read and plausible; {files} used in place without a checksum")
    elif checked["files"]:
        files = _counted(len(checked["files"]), "file")
        say(f"{path}: sound; {files}, {checked['bytes'] / 1e6:.1f} MB, {graphs}")
    else:
        say(f"{path}: {graphs} read and plausible; a HydraGNN file has no checksums")


_RUNS = Path("runs")


def _in_place(paths: list[str], size: int) -> str:
    """Format up to three of the directories that a store reads in place, and the size [MB]."""
    if not paths:
        return ""
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return f"{', '.join(paths[:3])}{more} ({size / 1e6:.1f} MB)"


def _counted(n: int, thing: str) -> str:
    return f"{n:,} {thing}{'' if n == 1 else 's'}"


def main() -> None:
    """Run the `hydragnn-flow` command line, and end the process with its exit code.

    Every failure is reported in one sentence. Exit code 2 says that the input is wrong, 1 that
    anything else failed. ``--debug`` shows the traceback too.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may lack characters
    arguments = [argument for argument in sys.argv[1:] if argument != _DEBUG]
    debug = _DEBUG in sys.argv
    try:
        with interruptible("stopped"):
            code = app(arguments, prog_name="hydragnn-flow", standalone_mode=False)
            if code == 130:  # typer's code for Ctrl-C
                raise KeyboardInterrupt
    except Exception as error:
        if debug:
            traceback.print_exc()
        message, code = _explained(error)
        if message:
            said = Text.assemble(("error: ", "bold red"), message)
            Terminal(stderr=True).print(said, soft_wrap=True)
    sys.exit(code or 0)


def _explained(error: Exception) -> tuple[str, int]:
    """Return a sentence that explains an error, and the exit code of the command.

    The sentence is empty if only the help was to be printed.
    """
    if isinstance(error, (InputError, CampaignStopped)):
        return str(error), 2 if isinstance(error, InputError) else 1
    if not hasattr(error, "format_message"):
        return _brief(error), 1
    # click's errors, which typer exports under names that depend on its version.
    usage: Any = error
    message = " ".join(usage.format_message().split()).rstrip(".")
    place = usage.ctx.command_path if getattr(usage, "ctx", None) else "hydragnn-flow"
    return f"{message}; see `{place} --help`" if message else "", usage.exit_code


def _brief(error: Exception) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    return f"{type(error).__name__}: {first}; {_DEBUG} shows where"
