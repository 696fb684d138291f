"""Command that makes an ensemble portable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hydragnn_flow.commands.console import FinishedRun, say, short, using
from hydragnn_flow.plain_files import sound

app = typer.Typer()


@app.command()
def export(
    run_dir: FinishedRun,
    out: Annotated[
        Path, typer.Argument(help="Directory to make.", metavar="OUT", show_default=False)
    ],
) -> None:
    """Export the ensemble of a finished run: a directory that predicts wherever it is copied.

    The directory holds networks and weights of the members, the calibration, the statistics of the
    training data that they need, a model card (README.md) and checksums, which are verified on
    loading. `predict`, `evaluate` and `select` accept it in place of RUN_DIR. It holds no data, no
    state of the search or of an optimizer, and nothing that runs code.
    """
    with using(out, run_dir), sound(run_dir):
        from hydragnn_flow.ensemble.checksums import verify_checksums
        from hydragnn_flow.ensemble.export import check_export, export_ensemble
        from hydragnn_flow.ensemble.summary import ensemble_folder
        from hydragnn_flow.report.model_card import model_card

        check_export(run_dir, out)
        verify_checksums(ensemble_folder(run_dir))  # before the model card reads the files
        export_ensemble(run_dir, out, model_card(run_dir, out.name))
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    say(f"{short(out)}: {size / 1e6:.1f} MB")
