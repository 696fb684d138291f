"""Command that writes a first configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hydragnn_flow.commands import sites
from hydragnn_flow.commands.console import existing_data, say, short, using

app = typer.Typer()


@app.command(rich_help_panel="Start")
def init(
    path: Annotated[
        Path,
        typer.Argument(
            help="Directory or file of the data: structures with labels (extended XYZ, ase.db, "
            "VASP's output, …), a CSV table with CIF text or names of structure files, JSON "
            "records, a published data set (docs/data.md), a GraphStore, or a .bp of HydraGNN's.",
            metavar="DATA",
            callback=existing_data,
        ),
    ],
) -> None:
    """Look at data and write a first configuration: NAME.yaml, and its network NAME.json.

    NAME is that of the directory or file. Both files go to the working directory, and nothing is
    overwritten. `hydragnn-flow run` accepts them unchanged; what is unknown, such as units, is
    marked.
    """
    from hydragnn_flow.campaign.setup.first_config import atoms_told, first_config, write_config
    from hydragnn_flow.data.found_labels import quantity_of
    from hydragnn_flow.data.looking import look

    here = Path.cwd()
    with using(path, here):
        finding = look(path)
        gcds = len(sites.Machine().load().node.gcds)
        config = first_config(
            finding, (path if path.is_dir() else path.with_suffix("")).resolve().name, here, gcds
        )
        files = write_config(config, here)
    sizes = ", ".join(f"{size:,} for {role}" for role, size in finding.sizes.items())
    targets = (
        f"{label.name} [{told or label.unit or 'unit unknown'}]"
        + (f" from {label.key}" if label.key != label.name else "")
        for label in config.targets
        for told in (f"classes {', '.join(label.classes)}" if label.classes else "",)
    )
    say(f"data        {finding.used}; structures: {sizes}")
    say(f"atoms       {atoms_told(finding)}")
    say(f"elements    {' '.join(finding.elements)} (of {finding.looked_at:,} structures looked at)")
    say(f"targets     {', '.join(targets)}{'; a potential' if config.is_potential else ''}")
    if finding.edges_are_cut and config.is_potential:
        say("edges       leave out near neighbours: forces are no gradient (truncated_neighbours)")
    if config.others:
        say(f"not learnt  {', '.join(label.key for label in config.others)}")
    slopes = [label.key for label in config.others if label.quantity in ("forces", "stress")]
    if slopes and config.targets[0].name == "energy":
        say(f"apart       {', '.join(slopes)}: prefix, suffix, unit or cell do not fit the energy")
    for label in config.targets:
        if label.remark:
            say(f"unit        {label.name}: {label.remark}")
        if label.lacking:
            say(f"partly      {label.key}: {label.lacking}; those without are left out")
    for key, why in finding.unusable.items():
        say(f"unusable    {key}: {why}")
    keys = [label.key for label in (*config.targets, *config.others)]
    there = {quantity_of(key)[0] for key in (*keys, *finding.unusable)} - {""}
    wanted = ("energy", "forces", "stress") if finding.have_cells else ("energy", "forces")
    if there and (missing := [word for word in wanted if word not in there]):
        say(f"not there   {', '.join(missing)}")
    if finding.skipped:
        say(f"not used    {', '.join(finding.skipped)}")
    say(f"search      {config.trials} trials, then {config.members} members, on {gcds} devices")
    say(f"wrote       {', '.join(short(file) for file in files)}")
    say("")
    configuration = short(files[0])
    if not all(label.unit or label.classes for label in config.targets):
        say(f"Write the missing units into {configuration}, and look at the rest of it. Then:")
    else:
        say(f"Look at {configuration} and correct what is wrong. Then:")
    say(f"  hydragnn-flow prepare {configuration}")
    say(f"  hydragnn-flow run {configuration}")
