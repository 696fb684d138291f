"""Label structures by apps, train an ensemble on them, predict by an app: one set of batch jobs.

    python workflows/label_and_train.py
    python workflows/label_and_train.py --site frontier -A ABC123 -N 4

Start it on a login node; start it again after anything went wrong, and it goes on.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import parsl
from parsl import python_app
from parsl.dataflow.memoization import BasicMemoizer

from hydragnn_flow import (
    CampaignStopped,
    InputError,
    SiteExecutor,
    campaign_app,
    load_campaign,
    load_site,
)

CONFIG = str(Path(__file__).parents[1] / "configs" / "labelled.yaml")


@python_app(cache=True)
def label(number: int) -> list[Any]:
    """Return strained, rattled crystals with energies and forces: put your DFT code here.

    Parsl keeps what it returned for a number; after a change, name another --run-dir.
    """
    import numpy as np
    from ase.build import bulk
    from ase.calculators.emt import EMT
    from ase.calculators.singlepoint import SinglePointCalculator

    rng, labelled = np.random.default_rng(number), []
    for symbol in ("Cu", "Ni", "Pd"):
        atoms = bulk(symbol, cubic=True).repeat((2, 1, 1))
        atoms.set_cell(atoms.cell * rng.uniform(0.97, 1.03), scale_atoms=True)
        atoms.rattle(0.1, rng=rng)
        atoms.calc = EMT()
        known = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
        atoms.calc = SinglePointCalculator(atoms, **known)
        labelled.append(atoms)
    return labelled


@python_app
def gather(file: str, inputs: Sequence[list[Any]] = ()) -> str:
    """Write the labelled structures to a file for the campaign."""
    from ase.io import write

    write(file, [atoms for part in inputs for atoms in part])
    return file


@python_app
def predict(done: Any, structures: list[Any]) -> Any:
    """Return a table of energies with error bars [eV], by the ensemble of a campaign."""
    from hydragnn_flow import Ensemble

    graphs = Ensemble.load(done.run_directory).predict(structures).graphs
    return graphs[["energy_mean", "energy_std"]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--config", default=CONFIG, help="run configuration (YAML)")
    parser.add_argument("--labels", type=int, default=32, help="calls of the app that labels")
    parser.add_argument("--run-dir", default="runs/labelled", help="where to keep everything")
    parser.add_argument("--site", default="local", help="site name, site file, or site.yaml")
    parser.add_argument("-A", "--account", help="project that pays for batch jobs")
    parser.add_argument("-p", "--partition", help="partition or queue of batch jobs")
    parser.add_argument("-t", "--walltime", help="of each batch job, HH:MM:SS")
    parser.add_argument("-N", "--nodes", type=int, help="nodes to use at a time")
    options = vars(parser.parse_args())
    config, labels, run_dir, site = map(options.pop, ("config", "labels", "run_dir", "site"))
    folder = Path(run_dir).absolute()
    try:
        campaign = load_campaign(config, data=folder)
        script(campaign, labels, folder, SiteExecutor(load_site(site, **options), folder))
    except InputError as error:
        parser.exit(2, f"error: {error}\n")
    except CampaignStopped as error:
        parser.exit(1, f"error: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "stopped; the same command goes on from here\n")


def script(campaign: Any, labels: int, folder: Path, executor: SiteExecutor) -> None:
    memoizer = BasicMemoizer(checkpoint_mode="task_exit")  # labels of an earlier start are kept
    with parsl.load(
        parsl.Config(executors=[executor], memoizer=memoizer, run_dir=str(folder / "runinfo"))
    ):
        parts = [label(number) for number in range(labels)]
        file = gather(str(folder / "labelled.xyz"), inputs=parts)
        done = campaign_app(campaign, executor.site, folder / "run", inputs=[file])
        energies = predict(done, label(labels))
        print(f"report: {done.result().report}")
        print(energies.result())


if __name__ == "__main__":
    main()
