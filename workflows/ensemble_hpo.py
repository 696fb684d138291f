"""Search, train the best as an ensemble, predict with error bars: the whole campaign.

    python workflows/ensemble_hpo.py --config configs/quickstart.yaml --site local

Start it on a login node; start it again after anything went wrong, and it goes on.
"""

import argparse

from hydragnn_flow import Ensemble, InputError, load_config, load_site, run_campaign


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--config", required=True, help="run configuration (YAML)")
    parser.add_argument("--site", default="local", help="site name or site file")
    parser.add_argument("--data", help="directory of the data files")
    parser.add_argument("--run-dir", help="where to keep the run (default: runs/NAME)")
    options = parser.parse_args()
    try:
        campaign(options.config, options.site, options.data, options.run_dir)
    except InputError as error:
        parser.exit(2, f"error: {error}\n")


def campaign(config: str, site: str, data: str | None, run_dir: str | None) -> None:
    done = run_campaign(load_config(config, data=data), load_site(site), run_dir)
    ensemble = Ensemble.load(done.run_directory)
    print(f"{len(ensemble.models)} members in {done.run_directory}")
    print(f"report: {done.report}")


if __name__ == "__main__":
    main()
