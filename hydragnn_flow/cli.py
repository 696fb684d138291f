"""The command line: `hydragnn-flow`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from hydragnn_flow.errors import InputError

app = typer.Typer(
    help="Ensemble hyper-parameter optimisation of graph neural networks on materials.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
store_app = typer.Typer(help="Look at a GraphStore.", no_args_is_help=True)
app.add_typer(store_app, name="store")

console = Console()

Config = Annotated[Path, typer.Argument(help="Run configuration (YAML).", show_default=False)]
RunDir = Annotated[Path, typer.Argument(help="Directory of a run.", show_default=False)]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="Directory of the data files; overrides data.path in CONFIG."),
]
RunDirOption = Annotated[
    Path | None, typer.Option("--run-dir", help="Where to keep the run.  [default: runs/NAME]")
]
SiteOption = Annotated[
    str, typer.Option("--site", help="Machine: the name of a shipped site, or a site file.")
]


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    if debug:
        os.environ["HYDRAGNN_FLOW_DEBUG"] = "1"


@app.command()
def prepare(config: Config, data: Data = None, run_dir: RunDirOption = None) -> None:
    """Build the GraphStore of a configuration: read, check, find neighbours, split, write."""
    from hydragnn_flow.campaign import prepare as build
    from hydragnn_flow.config import load_config

    store = build(load_config(config, data=data), run_dir)
    console.print(f"store ready: {_short(store.path)}", highlight=False)


@app.command()
def run(
    config: Config, site: SiteOption = "local", data: Data = None, run_dir: RunDirOption = None
) -> None:
    """Run a campaign: search, train the best as an ensemble, predict with error bars.

    The same command goes on with a run that was stopped.
    """
    from hydragnn_flow.campaign import run_campaign
    from hydragnn_flow.config import load_config
    from hydragnn_flow.execution import load_site
    from hydragnn_flow.report.tables import closing_table

    loaded = load_config(config, data=data)
    try:
        summary = run_campaign(loaded, load_site(site), run_dir)
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on from here", highlight=False)
        raise typer.Exit(130) from None
    where = _short(summary.run_directory)
    if summary.was_complete:
        console.print(f"{where} is complete; delete it to start over", highlight=False)
    console.print(closing_table(summary.ensemble))
    console.print(f"predictions  {where}/predictions/test.csv", highlight=False)
    console.print(f"report       {_short(summary.report)}", highlight=False)


@app.command()
def status(run_dir: RunDir) -> None:
    """Show a live or finished run at a glance."""
    from hydragnn_flow.report.status import status_table

    console.print(status_table(_existing(run_dir)))


@app.command()
def predict(
    run_dir: RunDir,
    structures: Annotated[
        Path,
        typer.Argument(
            help="Structures: a file ASE reads, a directory of such, or a GraphStore.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Table to write (.csv or .parquet).")
    ] = Path("predictions.csv"),
    members: Annotated[
        bool, typer.Option("--members", help="Add every member's prediction.")
    ] = False,
) -> None:
    """Predict structures with the ensemble of a finished run."""
    from hydragnn_flow.ensemble import Ensemble
    from hydragnn_flow.ensemble.structures import predict_path

    if out.suffix not in (".csv", ".parquet"):
        raise InputError(f"--out {out}: must end in .csv or .parquet")
    tables = predict_path(Ensemble.load(run_dir), structures, members=members)
    for path in tables.save(out.with_suffix(""), (out.suffix,)):
        console.print(str(path), highlight=False)


@app.command()
def report(run_dir: RunDir) -> None:
    """Write report.html, one self-contained page, for a live or finished run."""
    from hydragnn_flow.report import write_report

    console.print(_short(write_report(_existing(run_dir))), highlight=False)


@store_app.command("info")
def store_info(path: Annotated[Path, typer.Argument(show_default=False)]) -> None:
    """Say what a store holds."""
    from hydragnn_flow.data import GraphStore, store_summary

    summary = store_summary(GraphStore.open(path))
    table = Table("", "graphs", "atoms", "edges", title=summary["path"])
    for name, size in summary["splits"].items():
        table.add_row(name, *(f"{size[key]:,}" for key in ("graphs", "atoms", "edges")))
    console.print(table)
    targets = ", ".join(
        f"{name} [{target['unit'] or 'unit unknown'}] per {_PER[target['level']]}"
        for name, target in summary["targets"].items()
    )
    cap = summary["max_neighbours"]
    for key, value in (
        ("targets", targets),
        ("elements", " ".join(summary["elements"])),
        ("cutoff", f"{summary['cutoff']} Å" + (f", nearest {cap}" if cap else "")),
        ("neighbours", f"{summary['avg_num_neighbors']:.1f} on average"),
        ("size", f"{summary['bytes'] / 1e6:.1f} MB"),
    ):
        console.print(f"{key:<11}{value}", highlight=False)


@store_app.command("check")
def store_check(path: Annotated[Path, typer.Argument(show_default=False)]) -> None:
    """Verify every checksum and read every graph of a store."""
    from hydragnn_flow.data import check_store

    checked = check_store(path)
    console.print(
        f"{path}: sound; {len(checked['files'])} files, {checked['bytes'] / 1e6:.1f} MB, "
        f"{checked['graphs']} graphs",
        highlight=False,
    )


_PER = {"graph": "structure", "node": "atom"}


def _existing(run_dir: Path) -> Path:
    if not (run_dir / "run.yaml").is_file():
        raise InputError(f"{run_dir}: is not the directory of a run (no run.yaml); check the path")
    return run_dir


def _short(path: Path) -> str:
    """A path relative to where the user stands, where it is below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def main() -> None:
    """Run the command line; one sentence and exit code 2 where the input is wrong."""
    errors = Console(stderr=True)
    try:
        app()
    except InputError as error:
        if os.environ.get("HYDRAGNN_FLOW_DEBUG"):
            raise
        errors.print(f"[bold red]error:[/] {_plain(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(2)


def _plain(text: str) -> str:
    return text.replace("[", r"\[")


if __name__ == "__main__":
    main()
