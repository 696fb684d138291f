"""Predict structures with the ensemble of a finished run, with error bars.

    python workflows/predict.py runs/quickstart new-cifs --out gaps.csv gaps.extxyz
    python workflows/predict.py runs/quickstart structures.extxyz --device cuda

Structures are a file that ASE reads, a directory of such files, or a GraphStore.
"""

import argparse
from pathlib import Path

from hydragnn_flow import Ensemble, InputError
from hydragnn_flow.ensemble import write_predictions


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", help="directory of a finished run, or an exported ensemble")
    parser.add_argument("structures", help="file, directory or GraphStore")
    parser.add_argument(
        "--out", nargs="+", default=["predictions.csv"], help=".csv, .parquet or .extxyz"
    )
    parser.add_argument("--device", default="cpu", help="by torch's name, such as cuda")
    options = parser.parse_args()
    try:
        predict(
            options.run, options.structures, [Path(name) for name in options.out], options.device
        )
    except InputError as error:
        parser.exit(2, f"error: {error}\n")


def predict(run: str, structures: str, out: list[Path], device: str) -> None:
    done = write_predictions(Ensemble.load(run), structures, out, device=device)
    for file in done.files:
        print(file)
    print(f"{done.structures} structures, {done.without} without a prediction (see `note`)")


if __name__ == "__main__":
    main()
