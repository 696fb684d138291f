"""Search, train the best as an ensemble, predict with error bars: the whole campaign.

    python workflows/ensemble_hpo.py --config configs/quickstart.yaml --site local
    python workflows/ensemble_hpo.py --config mine.yaml --site frontier -A ABC123 -N 16

Start it on a login node; start it again after anything went wrong, and it goes on.
"""

import argparse
from typing import Any

from hydragnn_flow import (
    CampaignStopped,
    InputError,
    check_paths,
    load_campaign,
    load_site,
    run_campaign,
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--config", required=True, help="run configuration (YAML)")
    parser.add_argument("--data", help="directory of the data files")
    parser.add_argument("--run-dir", help="where to keep the run (default: runs/NAME)")
    parser.add_argument("--site", default="local", help="site name, site file, or site.yaml")
    parser.add_argument("-A", "--account", help="project that pays for batch jobs")
    parser.add_argument("-p", "--partition", help="partition or queue of batch jobs")
    parser.add_argument("-t", "--walltime", help="of each batch job, HH:MM:SS")
    parser.add_argument("-N", "--nodes", type=int, help="nodes to use at a time")
    parser.add_argument("--blocks", type=int, help="batch jobs at a time; they divide the nodes")
    options = vars(parser.parse_args())
    config, data, run_dir, site = map(options.pop, ("config", "data", "run_dir", "site"))
    try:
        campaign(config, data, run_dir, site, options)
    except InputError as error:
        parser.exit(2, f"error: {error}\n")
    except CampaignStopped as error:
        parser.exit(1, f"error: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "stopped; the same command goes on from here\n")


def campaign(
    file: str, data: str | None, run_dir: str | None, site: str, options: dict[str, Any]
) -> None:
    config = load_campaign(file, data=data)
    check_paths(config, run_dir)  # a wrong path is told before torch and Parsl are imported
    done = run_campaign(config, load_site(site, **options), run_dir)
    members = done.ensemble["members"] if done.ensemble else []  # none without an ensemble
    print(f"{len(members)} members in {done.run_directory}")
    print(f"report: {done.report}")


if __name__ == "__main__":
    main()
