"""Search, train the best as an ensemble, predict with error bars: the whole campaign.

    python workflows/ensemble_hpo.py --config configs/quickstart.yaml --site local

Start it on a login node; start it again after anything went wrong, and it goes on.
"""

import argparse

from hydragnn_flow import Ensemble, load_config, load_site, run_campaign


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--config", required=True, help="run configuration (YAML)")
    parser.add_argument("--site", default="local", help="site name or site file")
    parser.add_argument("--data", help="directory of the data files")
    options = parser.parse_args()

    config = load_config(options.config, data=options.data)
    campaign = run_campaign(config, load_site(options.site))

    ensemble = Ensemble.load(campaign.run_directory)
    print(f"{len(ensemble.models)} members in {campaign.run_directory}")
    print(f"report: {campaign.report}")


if __name__ == "__main__":
    main()
