"""Train a run's network over more and more GCDs: where does a second node stop paying?

    python workflows/scaling_study.py runs/quickstart --gcds 1,2
    python workflows/scaling_study.py runs/mine --trial 17 --site frontier -A ABC123 -N 8 --blocks 1

Each width trains for some seconds, with a batch of each GCD (weak scaling) and with one batch over
all (strong scaling). Start it on a login node; start it again after anything went wrong, and it
goes on.
"""

import argparse
from pathlib import Path
from typing import Any

from hydragnn_flow import CampaignStopped, InputError, load_site


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", help="directory of a run with a prepared store")
    parser.add_argument("--trial", type=int, help="trial whose network it is")
    parser.add_argument("--gcds", help="numbers of GCDs, as 1,2,4,8 (default: powers of two)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--site", default="local", help="site name, site file, or site.yaml")
    parser.add_argument("-A", "--account", help="project that pays for batch jobs")
    parser.add_argument("-p", "--partition", help="partition or queue of batch jobs")
    parser.add_argument("-t", "--walltime", help="of each batch job, HH:MM:SS")
    parser.add_argument("-N", "--nodes", type=int, help="nodes to use at a time")
    parser.add_argument("--blocks", type=int, help="batch jobs at a time; they divide the nodes")
    options = vars(parser.parse_args())
    run, trial, seconds, site = map(options.pop, ("run", "trial", "seconds", "site"))
    try:
        gcds = [int(width) for width in (options.pop("gcds") or "").split(",") if width]
    except ValueError:
        parser.error("--gcds: write whole numbers with commas between them, as 1,2,4")
    try:
        study(Path(run), trial, gcds, seconds, site, options)
    except InputError as error:
        parser.exit(2, f"error: {error}\n")
    except CampaignStopped as error:
        parser.exit(1, f"error: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "stopped; the same command goes on from here\n")


def study(
    run: Path,
    trial: int | None,
    gcds: list[int],
    seconds: float,
    site: str,
    options: dict[str, Any],
) -> None:
    machine = load_site(site, **options)
    from hydragnn_flow.campaign import scaling_study  # which imports torch and Parsl
    from hydragnn_flow.report.scaling import scaling_table, verdicts

    found, picture = scaling_study(run, machine, trial=trial, gcds=gcds, seconds=seconds)
    print(scaling_table(found).round(1).to_string(index=False))
    for sentence in verdicts(found):
        print(sentence)
    print(picture)


if __name__ == "__main__":
    main()
