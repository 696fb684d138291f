"""Run of a configuration that calls a function, for `hydragnn-flow run`."""

from __future__ import annotations

from pathlib import Path

from hydragnn_flow.commands.console import interruptible, say, short, show, using
from hydragnn_flow.config.objective import ObjectiveConfig
from hydragnn_flow.execution import Site


def run_function(config: ObjectiveConfig, site: Site, run_dir: Path) -> None:
    """Run the search over a user's function to its end, and print the best trials.

    Parameters
    ----------
    config, site
        Configuration of the campaign, and site that runs it.
    run_dir
        Run directory of the campaign.
    """
    from hydragnn_flow.campaign.functions import TABLE, run_objective

    with interruptible(), using(run_dir):
        records = run_objective(config, site, run_dir)
    objectives = config.search.objectives
    rows = []
    for record in [one for one in records if one.value is not None][:5]:
        values = record.values or (record.value,)
        told = ["" if value is None else f"{value:.4g}" for value in values]
        chosen = ", ".join(f"{name} = {value}" for name, value in record.parameters.items())
        rows.append(
            {"trial": record.number, "state": record.state}
            | dict(zip(objectives, told, strict=False))
            | {"parameters": chosen}
        )
    show(rows)
    say(f"trials  {short(run_dir)}/{TABLE}")
