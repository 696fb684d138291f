"""How accurate our PaiNN and MACE are beside schnetpack's and mace-torch's after the same CPU time.

    python -m venv PEER && PEER/bin/pip install schnetpack==2.1.1 mace-torch==0.3.16
    python benchmarks/peers_accuracy.py --data DIRECTORY-OF-THE-DATA-SETS --peers PEER/bin/python

Both sides get the same files, splits, edges, architecture and CPU time, on one thread, and train at
the same time: a CPU-second of a busy machine is worth less, to both. Theirs has the settings that
its authors recommend, or better ones (benchmarks/peer_potentials/). The weights best on the
validation split are tested.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from accuracy import prepare
from graph_store.workspace import in_fresh_process
from model_accuracy.trainings import Trainings
from peer_potentials.report import Row, remarks, table
from peer_potentials.sides import (
    PAIRS,
    SET,
    Pair,
    train_ours,
    train_peer,
    version_of,
    write_graphs,
)
from peers.hydragnn_package import CannotRun
from results import Run
from results.code import fingerprints

MEASURES = [
    "benchmarks/model_accuracy/ours.py",
    "benchmarks/model_accuracy/outcome.py",
    "benchmarks/model_accuracy/sets.py",
    "benchmarks/peer_potentials/*.py",
    "hydragnn_flow/models/*.py",
    "hydragnn_flow/models/kernels",
    *(f"hydragnn_flow/models/mpnn/{name}.py" for name in ("base", "mace*", "painn")),
    *(f"hydragnn_flow/training/{name}.py" for name in ("averaging", "losses", "optimizers")),
    *(f"hydragnn_flow/training/{name}.py" for name in ("terms", "trainer")),
]
_SECONDS = 150.0


def main(
    data: Annotated[Path, typer.Option(help="Directory of acac.", exists=True)],
    peers: Annotated[Path, typer.Option(help="Python that has the peers.", exists=True)],
    only: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(p.mpnn_type for p in PAIRS)}.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Trainings of each network.", min=1)] = 3,
    seconds: Annotated[
        float | None, typer.Option(help="CPU time of each training, to see that it runs.", min=0.1)
    ] = None,
    trainings: Annotated[
        Path, typer.Option(help="Trainings that have been done, one a line; new ones are added.")
    ] = Path("runs/benchmark-peers.jsonl"),
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Train, test and print the table; the exit status is 0 whatever it says."""
    chosen = [pair for pair in PAIRS if not only or pair.mpnn_type in only]
    quick = seconds is not None or seeds < 2
    run = Run("peers_accuracy", MEASURES, ["numpy", "torch", "torch-geometric"], quick=quick)
    rows, left_out, versions = measure(chosen, data, peers, seeds, seconds or _SECONDS, trainings)
    result = run.end(
        [table(rows)],
        remarks=remarks(rows, left_out),
        peers=versions,
        settings={"seeds": seeds, "seconds": seconds or _SECONDS},
        details=[asdict(row) for row in rows],
    )
    print(result.markdown())
    if json is not None:
        result.write(json)


def measure(
    chosen: list[Pair], data: Path, python: Path, seeds: int, seconds: float, kept: Path
) -> tuple[list[Row], list[str], dict[str, str]]:
    """Train and test both sides; also what could not be measured, and the peers' versions."""
    rows, left_out, versions = [], [], {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as processes:
        store, graphs = Path(folder) / f"{SET}.gs", Path(folder) / "graphs.npz"
        prepare(SET, data, store)
        write_graphs(store, graphs)
        for pair in chosen:
            try:
                versions[pair.peer] = version_of(pair, python)
                rows.append(Row(pair, [], []))
            except CannotRun as error:
                left_out.append(f"{pair.mpnn_type} beside {pair.peer}: {error}")
        done = Trainings(kept, [fingerprints(MEASURES), versions])
        # Seed by seed: an interrupted run has whole ones.
        for seed, row in product(range(seeds), rows):
            pair = row.pair
            key = {"network": pair.mpnn_type, "seed": seed, "seconds": seconds}
            ours = partial(in_fresh_process, train_ours, pair, store, seconds, seed)
            theirs = partial(train_peer, pair, python, graphs, seconds, seed)
            both = [
                processes.submit(done.get, {**key, "side": side}, train)
                for side, train in (("ours", ours), (pair.peer, theirs))
            ]
            row.ours.append(both[0].result())
            row.theirs.append(both[1].result())
    return rows, left_out, versions


if __name__ == "__main__":
    typer.run(main)
