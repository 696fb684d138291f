"""Command that starts a search from the results of another program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hydragnn_flow.commands.console import say, using
from hydragnn_flow.errors import InputError

app = typer.Typer()


def _files(files: list[Path]) -> list[Path]:
    for file in files:
        with using(file):
            if not file.is_file():
                raise InputError(f"{file}: does not exist or is no file; name a results.csv")
    return files


@app.command("import-deephyper")
def import_deephyper(
    results: Annotated[
        list[Path],
        typer.Argument(
            help="DeepHyper's results.csv, of one campaign or of several.",
            metavar="RESULTS",
            show_default=False,
            callback=_files,
        ),
    ],
    config: Annotated[
        Path,
        typer.Option(
            "-c",
            "--config",
            help="Configuration whose search.space the values are looked for in.",
            metavar="CONFIG",
            show_default=False,
        ),
    ],
    best: Annotated[
        int, typer.Option("--best", help="Configurations at most.", min=1, max=10_000)
    ] = 20,
    objective: Annotated[
        str, typer.Option("--objective", help="Column by which evaluations are judged.")
    ] = "objective",
) -> None:
    """Begin a search with the best evaluations of a DeepHyper campaign.

    Prints `search.enqueue` for the configuration: the search trains these first, and its sampler
    learns from them. Objectives are not imported, since they have other units. A parameter of
    DeepHyper stands for every path of the space that ends with its name.
    """
    import yaml

    from hydragnn_flow.commands.deephyper import best_evaluations
    from hydragnn_flow.config import load_config

    with using(config, *results):
        found = best_evaluations(results, load_config(config), best, objective)
    counts = f"{found.evaluations:,} evaluations, {found.failed:,} failed"
    say(f"# {', '.join(map(str, results))}: {counts}")
    if found.outside:
        say(f"# left out, as search.space or the network does not allow them: {found.outside:,}")
    if found.unknown:
        say(f"# no path of search.space ends with: {', '.join(found.unknown)}")
    say("search:")
    say("  enqueue:")
    for values, value in zip(found.configurations, found.objectives, strict=True):
        line = yaml.safe_dump(values, default_flow_style=True, sort_keys=False, width=10**6)
        say(f"    - {line.strip()}  # {objective} {value:.6g}")
