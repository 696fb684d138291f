"""Predict structures with the ensemble of a finished run, with error bars.

    python workflows/predict.py runs/quickstart new-cifs --out gaps.csv gaps.extxyz
    python workflows/predict.py runs/quickstart structures.extxyz --device cuda
    python workflows/predict.py runs/quickstart millions.extxyz --site frontier -A ABC123 -N 8

Structures are a file that ASE reads, a directory of such files, or a GraphStore. With a site, all
its GCDs predict; start it again after anything went wrong, and it goes on.
"""

import argparse
from pathlib import Path
from typing import Any

from hydragnn_flow import CampaignStopped, Ensemble, InputError, load_site
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
    parser.add_argument("--site", help="site name, site file, or site.yaml; it decides the device")
    parser.add_argument("-A", "--account", help="project that pays for batch jobs")
    parser.add_argument("-p", "--partition", help="partition or queue of batch jobs")
    parser.add_argument("-t", "--walltime", help="of each batch job, HH:MM:SS")
    parser.add_argument("-N", "--nodes", type=int, help="nodes to use at a time")
    options = vars(parser.parse_args())
    run, structures, out, device, site = map(
        options.pop, ("run", "structures", "out", "device", "site")
    )
    try:
        predict(run, structures, [Path(name) for name in out], device, site, options)
    except InputError as error:
        parser.exit(2, f"error: {error}\n")
    except CampaignStopped as error:
        parser.exit(1, f"error: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "stopped\n")


def predict(
    run: str,
    structures: str,
    out: list[Path],
    device: str,
    site: str | None,
    options: dict[str, Any],
) -> None:
    ensemble = Ensemble.load(run)
    if site is None:
        done = write_predictions(ensemble, structures, out, device=device)
    else:
        from hydragnn_flow.campaign import predict_on_site  # which imports Parsl

        done = predict_on_site(ensemble, structures, out, load_site(site, **options))
    for file in done.files:
        print(file)
    print(f"{done.structures} structures, {done.without} without a prediction (see `note`)")


if __name__ == "__main__":
    main()
