"""Commands that show a search: its trials, and optuna-dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hydragnn_flow.commands.console import (
    RunDir,
    console,
    say,
    short,
    using,
    writable,
)
from hydragnn_flow.plain_files import sound

app = typer.Typer()


@app.command(rich_help_panel="Look")
def trials(
    run_dir: RunDir,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="Write all trials as a table (.csv or .parquet) instead.",
            callback=writable(".csv", ".parquet"),
        ),
    ] = None,
) -> None:
    """Show the best trials of a live or finished run.

    The value of a pruned trial is that of its last rung.
    """
    from hydragnn_flow.report.trials_frame import best_table, trials_frame

    with using(out or run_dir, run_dir), sound(run_dir):
        frame = trials_frame(run_dir)
        if out is None:
            console.print(best_table(frame))
            return
        if out.suffix == ".csv":
            frame.to_csv(out, index=False)
        else:
            frame.to_parquet(out, index=False)
    say(f"{short(out)}: {len(frame):,} trials")


@app.command(rich_help_panel="Look")
def dashboard(
    run_dir: RunDir,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            help="On this machine's loopback interface; by default 8080, or a free one.",
            min=1,
            max=65535,
        ),
    ] = None,
) -> None:
    """Serve optuna-dashboard for a live or finished run until Ctrl-C.

    It follows the run and changes nothing in it.
    """
    from hydragnn_flow.report.dashboard import addresses, dashboard_server

    with using(run_dir), dashboard_server(run_dir, port) as server:
        url, tunnel = addresses(server)
        say(url)
        say(f"from another machine first: {tunnel}")
        say("Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("ended")
