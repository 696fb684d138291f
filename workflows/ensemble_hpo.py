"""Search, train the best as an ensemble, predict with error bars: the whole campaign.

    python workflows/ensemble_hpo.py --config configs/quickstart.yaml --site local
    python workflows/ensemble_hpo.py --config mine.yaml --site frontier -A ABC123 -N 16

Start it on a login node; start it again after anything went wrong, and it goes on.
"""

import argparse

from hydragnn_flow import (
    CampaignStopped,
    Ensemble,
    InputError,
    RunConfig,
    load_config,
    load_site,
    run_campaign,
)
from hydragnn_flow.execution import Site


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
    parser.add_argument("--blocks", type=int, help="batch jobs at a time, which share the nodes")
    options = vars(parser.parse_args())
    config, data, run_dir, site = map(options.pop, ("config", "data", "run_dir", "site"))
    try:
        campaign(load_config(config, data=data), load_site(site, **options), run_dir)
    except InputError as error:
        parser.exit(2, f"error: {error}\n")
    except CampaignStopped as error:
        parser.exit(1, f"error: {error}\n")


def campaign(config: RunConfig, site: Site, run_dir: str | None) -> None:
    done = run_campaign(config, site, run_dir)
    ensemble = Ensemble.load(done.run_directory)
    print(f"{len(ensemble.models)} members in {done.run_directory}")
    print(f"report: {done.report}")


if __name__ == "__main__":
    main()
