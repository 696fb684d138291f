"""Errors of our networks and HydraGNN's after the same CPU time, trained in this run.

    python benchmarks/accuracy.py --data DIRECTORY-OF-THE-DATA-SETS --hydragnn PATH-OF-A-CHECKOUT
    python benchmarks/accuracy.py --data DIRECTORY --hydragnn PATH --only acac:PAINN --seconds 20

Both sides get the same files, splits, graphs, JSON and CPU time, on one thread, and train at the
same time; ours is trained by the package's segments, HydraGNN by its own ``train_validate_test``.
The weights best on the validation split are tested. HydraGNN learns energies above a sum over atoms
of one number for each element, as its ``energy_linear_regression.py`` computes them, and other
targets standardised. The same JSON does not mean the same network: ours embeds elements, averages
weights, clips gradients and scales losses by the spread of the targets.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from model_accuracy import hydragnns, ours
from model_accuracy.outcome import Row, ratios, remarks, train
from model_accuracy.sets import CONTESTS, SETS, prepare
from peers.hydragnn_package import CannotRun
from results import Checkout, Run, peer_commit, say
from turns import in_fresh_process

from hydragnn_flow import InputError


def main(
    data: Annotated[Path, typer.Option(help="Directory of acac, mlearn and perov_5.", exists=True)],
    hydragnn: Checkout = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"SET or SET:TYPE, of {', '.join(c.name for c in CONTESTS)}."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Trainings of each network.", min=1)] = 3,
    seconds: Annotated[
        float | None, typer.Option(help="CPU time of each training, to see that it runs.", min=0.1)
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Train, test and print a table; the exit status is 0 whatever it says."""
    known = {contest.name for contest in CONTESTS} | set(SETS)
    if unknown := set(only or []) - known:
        raise typer.BadParameter(f"no {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    chosen = [c for c in CONTESTS if not only or c.name in only or c.set in only]
    packages = ["e3nn", "numpy", "torch", "torch-geometric"]
    run = Run("accuracy", packages, quick=seconds is not None or seeds < 2)
    rows: list[Row] = []
    left_out = [] if hydragnn else ["HydraGNN, whose checkout --hydragnn would name"]
    with tempfile.TemporaryDirectory() as folder:
        for contest in chosen:
            say(contest.name)
            store, row = Path(folder) / f"{contest.set}.gs", Row(contest.name, contest.set)
            training = contest, store, seconds or contest.seconds

            of_ours = partial(in_fresh_process, ours.train_and_test, *training)
            of_theirs = partial(in_fresh_process, hydragnns.train_and_test, *training, hydragnn)
            try:
                prepare(contest.set, data, store)
                train(row, of_ours, of_theirs if hydragnn else None, seeds)
                rows.append(row)
            except (CannotRun, InputError) as error:
                left_out.append(f"{contest.name}: {error}")
    run.end(
        [ratios(rows)],
        json,
        remarks=[*remarks(rows), *(f"not measured: {what}" for what in left_out)],
        peers=peer_commit(hydragnn),
        settings={"seeds": seeds, "seconds": seconds},
        details=[asdict(row) for row in rows],
    )


if __name__ == "__main__":
    typer.run(main)
