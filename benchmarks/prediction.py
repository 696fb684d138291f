"""Predictions by five members in one pass, beside five passes of one; memory of many structures.

    python benchmarks/prediction.py
    python benchmarks/prediction.py --only SchNet --structures 2000

Members are small potentials with fresh weights: three layers of width 16. Both sides read the same
extended XYZ file, make graphs and predict energies and forces; they take turns in one process with
one thread. Memory is the peak of a process of its own that predicts a file into CSV, Parquet and
extended XYZ, beside that of one with a twentieth of the structures.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Annotated

import ase.io
import numpy as np
import torch
import typer
from ase.build import bulk
from results import Line, Run, missed, table_of

from hydragnn_flow.config import DataConfig
from hydragnn_flow.config.network import read_json
from hydragnn_flow.data import GraphStore, prepare_store
from hydragnn_flow.ensemble import Ensemble, write_predictions
from hydragnn_flow.ensemble.conformal import Scores
from hydragnn_flow.ensemble.deviation import Deviation
from hydragnn_flow.ensemble.member_predictions import predictions_where_possible
from hydragnn_flow.ensemble.structure_files import Files
from hydragnn_flow.ensemble.uncertainty import Calibration
from hydragnn_flow.models import build_model
from hydragnn_flow.training.memory import keep_freed_memory

TYPES = ("SchNet", "EGNN", "PNA", "PAINN")
MEMBERS = 5
MEASURES = [
    "benchmarks/prediction.py",
    "hydragnn_flow/data/graphs.py",
    "hydragnn_flow/data/neighbours.py",
    "hydragnn_flow/ensemble/inputs.py",
    "hydragnn_flow/ensemble/member_predictions.py",
    "hydragnn_flow/ensemble/predicting.py",
    "hydragnn_flow/ensemble/predictions_files.py",
    "hydragnn_flow/ensemble/spool.py",
    "hydragnn_flow/ensemble/structure_files.py",
    "hydragnn_flow/models",
    "hydragnn_flow/training/predict.py",
]
_NETWORK = Path(__file__).parents[1] / "configs" / "potential.json"
_STORE = "store.gs"
_ELEMENTS = ("Cu", "Ni", "Pd", "Ag", "Pt", "Au")


def main(
    only: Annotated[
        list[str] | None, typer.Option(help=f"Types to measure, of {', '.join(TYPES)}.")
    ] = None,
    structures: Annotated[
        int, typer.Option(help="Structures of the measurement of memory.", min=20)
    ] = 100_000,
    rounds: Annotated[int, typer.Option(help="Turns of each side.", min=1)] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Little, to see that it runs.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
    peak_of: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure, and print a table; the exit status is 0 whatever it says."""
    torch.set_num_threads(1)
    keep_freed_memory()
    if peak_of is not None:
        print(_peak(peak_of))
        return
    if unknown := set(only or []) - set(TYPES):
        raise typer.BadParameter(f"no type {', '.join(unknown)}; there are {', '.join(TYPES)}")
    if quick:
        rounds, structures = 1, 60
    packages = ["ase", "numpy", "pandas", "pyarrow", "torch", "torch-geometric"]
    run = Run("prediction", MEASURES, packages, quick=quick)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _prepare(folder)
        file = folder / "race.extxyz"
        _write(file, 6 if quick else 96, distinct=96, repeats=[(2, 1, 1), (2, 2, 1), (2, 2, 2)])
        lines = [_race(kind, folder, file, rounds) for kind in only or TYPES]
        lines.append(_memory(folder, structures))
    result = run.end([table_of(lines)], remarks=[missed(lines)])
    print(result.markdown())
    if json is not None:
        result.write(json)


def _race(kind: str, folder: Path, file: Path, rounds: int) -> Line:
    together = _ensemble(kind, folder)
    alone = [replace(together, models=(m,), weights=np.ones(1)) for m in together.models]

    def read_and_predict(ensemble: Ensemble) -> None:
        predictions_where_possible(ensemble, [r.found.atoms for r in Files(file).records()])

    def one_pass() -> None:
        read_and_predict(together)

    def separate() -> None:
        for ensemble in alone:
            read_and_predict(ensemble)

    one_pass()
    turns = [(_seconds(separate), _seconds(one_pass)) for _ in range(rounds)]
    ratios = [theirs / ours for theirs, ours in turns]
    return Line(
        kind,
        f"{kind}, speed of one pass",
        1 / statistics.median(ours for _, ours in turns),
        "passes/CPU-s",
        f"{MEMBERS} passes of one member",
        1 / statistics.median(theirs for theirs, _ in turns),
        statistics.median(ratios),
        at_least=1.5,
        spread=(min(ratios), max(ratios)),
    )


def _memory(folder: Path, structures: int) -> Line:
    peaks = []
    for n in (structures // 20, structures):
        file = folder / f"{n}.extxyz"
        _write(file, n, distinct=20, repeats=[(1, 1, 1)])
        command = [sys.executable, __file__, "--peak-of", str(file)]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
        peaks.append(float(done.stdout))
    return Line(
        "memory",
        f"memory, {structures:,} structures",
        peaks[1],
        "MB",
        f"{structures // 20:,} structures",
        peaks[0],
        peaks[1] / peaks[0],
        at_most=1.05,
    )


def _peak(file: Path) -> float:
    """Peak resident memory [MB] of this process, once it has predicted a file."""
    outs = [file.with_name(f"out{suffix}") for suffix in (".csv", ".parquet", ".extxyz")]
    write_predictions(_ensemble("SchNet", file.parent), file, outs)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def _seconds(work: Callable[[], None]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def _prepare(folder: Path) -> None:
    """Make the store whose manifest the networks are built for."""
    architecture = read_json(_NETWORK)["NeuralNetwork"]["Architecture"]
    source = {"format": "emt_alloys", "structures": 24, "elements": list(_ELEMENTS)}
    data = DataConfig.model_validate({"source": source, "split": {"val": 0.2, "test": 0.2}})
    radius, most = architecture["radius"], architecture["max_neighbours"]
    prepare_store(data, radius, most, 0, folder / _STORE).close()


def _ensemble(kind: str, folder: Path) -> Ensemble:
    network = read_json(_NETWORK)["NeuralNetwork"]
    small = {"mpnn_type": kind, "hidden_dim": 16, "num_conv_layers": 3, "num_gaussians": 16}
    network["Architecture"] |= {**small, "num_radial": 8}
    manifest = GraphStore.open(folder / _STORE).manifest
    models = []
    for seed in range(MEMBERS):
        torch.manual_seed(seed)
        models.append(build_model(network, manifest).eval())
    scores = Scores((1.6,), (1.0,), 10**9)
    calibration = Calibration((Deviation(1.0, 0.1),), ((scores,),), (), False, scores.structures)
    calibrations = {"energy": calibration, "forces": calibration}
    return Ensemble(tuple(models), np.full(MEMBERS, 1 / MEMBERS), calibrations, manifest, 0.9)


def _write(file: Path, n: int, distinct: int, repeats: list[tuple[int, int, int]]) -> None:
    """Write alloys on a distorted lattice; after the distinct ones, the same again."""
    rng = np.random.default_rng(0)
    texts = []
    for number in range(min(n, distinct)):
        atoms = bulk("Cu", cubic=True, a=3.8) * repeats[number % len(repeats)]
        atoms.symbols = rng.choice(_ELEMENTS, len(atoms))
        atoms.rattle(0.1, seed=number)
        text = StringIO()
        ase.io.write(text, atoms, format="extxyz")
        texts.append(text.getvalue())
    with file.open("w", encoding="utf-8") as out:
        out.writelines(texts[number % len(texts)] for number in range(n))


if __name__ == "__main__":
    typer.run(main)
