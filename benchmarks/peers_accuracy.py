"""Errors of our networks beside those of schnetpack, mace-torch and matgl after equal CPU time.

    python -m venv PEERS && PEERS/bin/pip install schnetpack==2.1.1 mace-torch==0.3.16 matgl==4.1.2
    python benchmarks/peers_accuracy.py --data DIRECTORY-OF-THE-DATA-SETS --peers PEERS/bin/python

Both sides get the same files, splits, edges and CPU time, on one thread, and train at the same
time; potentials are of the same architecture. Ours are trained by Muon, at rates chosen on these
sets; theirs have the settings that their authors recommend, or what did better there
(benchmarks/peer_potentials/). The weights best on the validation split are tested.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from model_accuracy.outcome import Row, ratios, remarks, train
from model_accuracy.sets import prepare
from peer_potentials.sides import PAIRS, train_ours, train_peer, version_of, write_graphs
from peers.hydragnn_package import CannotRun
from results import Run, say
from turns import in_fresh_process


def main(
    data: Annotated[Path, typer.Option(help="Directory of acac and perov_5.", exists=True)],
    peers: Annotated[Path, typer.Option(help="Python that has the peers.", exists=True)],
    only: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(p.mpnn_type for p in PAIRS)}.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Trainings of each network.", min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="CPU time of each training.", min=0.1)] = 150.0,
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Train, test and print the table; the exit status is 0 whatever it says."""
    quick = seconds < 150.0 or seeds < 2
    run = Run("peers_accuracy", ["numpy", "torch", "torch-geometric"], quick=quick)
    rows, left_out, versions = [], [], {}
    with tempfile.TemporaryDirectory() as folder:
        for pair in PAIRS:
            if only and pair.mpnn_type not in only:
                continue
            say(pair.name)
            row = Row(pair.name, pair.set)
            store, graphs = Path(folder) / f"{pair.set}.gs", Path(folder) / f"{pair.set}.npz"
            prepare(pair.set, data, store)
            write_graphs(pair, store, graphs)
            ours = partial(in_fresh_process, train_ours, pair, store, seconds)
            try:
                versions[pair.peer] = version_of(pair, peers)
                train(row, ours, partial(train_peer, pair, peers, graphs, seconds), seeds)
                rows.append(row)
            except CannotRun as error:
                left_out.append(f"{row.name}: {error}")
    run.end(
        [ratios(rows)],
        json,
        remarks=[*remarks(rows), *(f"not measured: {what}" for what in left_out)],
        peers=versions,
        settings={"seeds": seeds, "seconds": seconds},
        details=[asdict(row) for row in rows],
    )


if __name__ == "__main__":
    typer.run(main)
