"""Prediction on the GCDs of a site: divided into parts, predicted by workers, joined."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydragnn_flow.ensemble import Ensemble
from hydragnn_flow.ensemble.predictions.files import PredictionFiles, Written
from hydragnn_flow.ensemble.predictions.parts import (
    Asked,
    OtherParts,
    Part,
    digest_of_ensemble,
    finished,
    plan,
    request_of,
    results_of,
)
from hydragnn_flow.ensemble.predictions.structure_files import Files
from hydragnn_flow.ensemble.summary import read_summary
from hydragnn_flow.errors import InputError, NoWorkers, StoreError
from hydragnn_flow.execution import Site, sole_driver
from hydragnn_flow.execution.jobs import Jobs, Task, run_calls, wait_until_seen
from hydragnn_flow.execution.pools.shared import workers_of
from hydragnn_flow.log import driver_log

Shown = Callable[[int, int, str], None]
"""Function called with the number of finished structures, their total, and the reason to wait."""

_TASK = "hydragnn_flow.ensemble.predictions.parts:predict_part"


def predict_on_site(
    ensemble: Ensemble,
    data: str | Path,
    paths: Sequence[str | Path],
    site: Site,
    *,
    split: str | None = None,
    members: bool = False,
    say: Callable[[str], None] = print,
    progress: Shown = lambda done, total, note: None,
) -> Written:
    """Predict the properties of structures with an ensemble, on all GCDs of a site.

    The output files are those that one process would write. The structures are divided into parts,
    which workers predict into the hidden directory ``.NAME.parts`` next to the first file. If the
    process ends early, finished parts stay, and the same call continues. At the end the parts are
    joined, and the directory is deleted.

    Parameters
    ----------
    ensemble
        Ensemble as :meth:`Ensemble.load` returns it, at any coverage. Workers load it again, from a
        directory that is visible to the site's nodes.
    data
        Path of a file, a directory of files or a GraphStore; visible to the nodes too.
    paths
        Output files, as for :class:`~hydragnn_flow.ensemble.predictions.files.PredictionFiles`; the
        directory of the first is visible to the nodes.
    site
        Site that predicts, which decides the device.
    split, members, say
        Arguments of :meth:`Ensemble.predict`.
    progress
        Function called with the number of finished structures, their total, and the reason to wait.

    Raises
    ------
    InputError
        If :meth:`Ensemble.predict` would refuse the arguments, or there are parts of another
        prediction; nearly always before a worker starts.
    CampaignStopped
        If a part repeatedly fails.
    """
    run, data, outs = ensemble.directory, Path(data), [Path(path) for path in paths]
    files = PredictionFiles(outs)
    if not site.node.gcds:
        raise InputError(f"site {site.name}: has no GCDs to predict on; correct its node")
    if run is None:
        raise InputError("the ensemble was not loaded from a directory, as workers do; load it")
    opened = files.open(ensemble, data, split)
    assert not isinstance(opened, list)  # they lie at a path
    all_members = {member["member"] for member in read_summary(run)["members"]}
    asked = Asked(
        run=str(run.absolute()),
        ensemble=digest_of_ensemble(run),
        without=tuple(sorted(all_members.difference(ensemble.numbers or ()))),
        coverage=ensemble.coverage,
        data_set=ensemble.data_set,
        data=str(data.absolute()),
        split=split,
        members=members,
        structures=files.hold_structures,
        outs=tuple(str(path.absolute()) for path in files.may_write),
    )
    folder = outs[0].absolute().with_name(f".{outs[0].name}.parts")
    folder.mkdir(mode=0o700, exist_ok=True)
    # Another writer of the files is detected here, before the parts are predicted, and loses none.
    with sole_driver(folder), driver_log(folder, say), files, _forgotten_if_input_is_wrong(folder):
        parts = plan(folder, asked, opened, site.gcds)
        _predict(parts, asked, site, folder, progress)
        used, counts = results_of(parts, opened)
        if isinstance(opened, Files):
            opened.tell_passed_over(
                counts["structures"], lambda line: say(line.replace(asked.data, str(data)))
            )
        written = files.join(used, counts)
    shutil.rmtree(folder, ignore_errors=True)
    return written


def _predict(
    parts: Mapping[Path, Part], asked: Asked, site: Site, folder: Path, progress: Shown
) -> None:
    if not parts:
        return
    together = next(iter(parts)).parent
    there = finished(together)
    left = {n: path for n, path in enumerate(parts) if path.name not in there}
    total = sum(part.structures for part in parts.values())
    done = total - sum(parts[path].structures for path in left.values())
    note = ""

    def waits(why: str) -> None:
        nonlocal note
        if why != note:
            note = why
            progress(done, total, note)

    progress(done, total, note)
    if left:
        device = "cuda" if site.node.device == "hip" else site.node.device
        requests = {n: request_of(parts[path], path, asked, device) for n, path in left.items()}
        with workers_of(site, folder / "parsl") as pool:
            jobs = Jobs[Task](pool, site)
            for number in run_calls(jobs, "prediction", _TASK, requests, "predicting", waits):
                done += parts[left[number]].structures
                progress(done, total, note)
    names = {path.name for path in parts}
    wait_until_seen(
        lambda: [together / name for name in names - finished(together)],
        "name an --out in a directory that the nodes of the site share with this one",
    )


@contextmanager
def _forgotten_if_input_is_wrong(folder: Path) -> Iterator[None]:
    """Context manager: delete ``folder`` with its parts if the input is found wrong inside it.

    The corrected input will need other parts.
    """
    try:
        yield
    except (StoreError, NoWorkers, OtherParts):
        raise
    except InputError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
