"""Prediction on the GCDs of a site: divided into parts, predicted by workers, joined."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydragnn_flow.data import GraphStore
from hydragnn_flow.ensemble import Ensemble
from hydragnn_flow.ensemble.member_predictions import splits_of
from hydragnn_flow.ensemble.part_files import join_parts
from hydragnn_flow.ensemble.part_plan import (
    Asked,
    OtherParts,
    Part,
    digest_of_ensemble,
    finished,
    plan,
    request_of,
)
from hydragnn_flow.ensemble.predictions_files import (
    PredictionFiles,
    Written,
    check_keeps_input,
    no_structures,
    written_to,
)
from hydragnn_flow.ensemble.structure_files import Files, open_path
from hydragnn_flow.errors import CampaignStopped, InputError, NoWorkers, StoreError
from hydragnn_flow.execution import Site, sole_driver
from hydragnn_flow.execution.jobs import Jobs, Task, run_calls
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.log import driver_log

Shown = Callable[[int, int, str], None]
"""Function called with the number of finished structures, their total, and the reason to wait."""

_TASK = "hydragnn_flow.ensemble.part_files:predict_part"
_SECONDS_TO_SEE = 90.0
_SECONDS_BETWEEN_LOOKS = 1.0


def predict_on_site(
    run: str | Path,
    structures: str | Path,
    outs: Sequence[str | Path],
    site: Site,
    *,
    without: Collection[int] = (),
    coverage: float | None = None,
    data_set: str | None = None,
    split: str | None = None,
    members: bool = False,
    say: Callable[[str], None] = print,
    progress: Shown = lambda done, total, note: None,
) -> Written:
    """Predict structures on all GCDs of a site, into the same files as one process would write.

    The structures are divided into parts, which workers predict into the hidden directory
    ``.NAME.parts`` next to the first file. If the process ends early, finished parts stay, and the
    same call continues. At the end the parts are joined, and the directory is deleted.

    Parameters
    ----------
    run
        Directory of a finished run, or an exported ensemble; visible to the site's nodes.
    structures
        Path of a file, a directory of files or a GraphStore; visible to the nodes too.
    outs
        Output files, as for :class:`~hydragnn_flow.ensemble.predictions_files.PredictionFiles`; the
        directory of the first is visible to the nodes.
    site
        Site that predicts, which decides the device.
    without, coverage, data_set, split, members, say
        Options of :meth:`Ensemble.load` and :meth:`Ensemble.predict`.
    progress
        Function called with the progress of the prediction.

    Raises
    ------
    InputError
        If :meth:`Ensemble.predict` would refuse, or there are parts of another prediction; nearly
        always before a worker starts.
    CampaignStopped
        If a part repeatedly fails.
    """
    tables, structures = [Path(out) for out in outs], Path(structures)
    files, may_write = PredictionFiles(tables), written_to(tables)
    check_keeps_input(structures, may_write)
    if not site.node.gcds:
        raise InputError(f"site {site.name}: has no GCDs to predict on; correct its node")
    ensemble = Ensemble.load(run, without=without, data_set=data_set)
    if coverage is not None:
        ensemble = ensemble.at(coverage)
    data = open_path(structures, ensemble.manifest, split, may_write)
    _check(ensemble, data, split, files)
    asked = Asked(
        run=str(Path(run).absolute()),
        without=tuple(sorted(without)),
        coverage=coverage,
        data_set=data_set,
        data=str(structures.absolute()),
        split=split,
        members=members,
        frames=files.hold_structures,
        outs=tuple(str(path.absolute()) for path in may_write),
        ensemble=digest_of_ensemble(run),
    )
    folder = tables[0].absolute().with_name(f".{tables[0].name}.parts")
    folder.mkdir(mode=0o700, exist_ok=True)
    # Another writer of the files is detected here, before the parts are predicted, and loses none.
    with sole_driver(folder), driver_log(folder, say), files, _forgotten_if_input_is_wrong(folder):
        parts = plan(folder, asked, data, ensemble, site.nodes * len(site.node.gcds))
        _predict(parts, asked, site, folder, progress)
        counts, passed_over = join_parts(parts, files, isinstance(data, Files))
        if isinstance(data, Files) and data.is_directory:
            passed_over.say(
                structures,
                counts["structures"],
                lambda line: say(line.replace(asked.data, str(structures))),
            )
    shutil.rmtree(folder, ignore_errors=True)
    return Written(files.written, **counts)


def _check(
    ensemble: Ensemble, data: GraphStore | Files, split: str | None, files: PredictionFiles
) -> None:
    """Refuse, before workers start, input the ensemble cannot predict or the files cannot hold."""
    if isinstance(data, Files):
        ensemble.check_reads_structures()
        return
    splits_of(ensemble, data, split)
    if files.hold_structures:
        raise no_structures()


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
        with Pool(site, folder / "parsl") as pool:
            jobs = Jobs[Task](pool, site)
            for number in run_calls(jobs, "prediction", _TASK, requests, "predicting", waits):
                done += parts[left[number]].structures
                progress(done, total, note)
    _wait_for(parts, together)


def _wait_for(parts: Collection[Path], folder: Path) -> None:
    """Wait until this node sees files that others wrote: NFS shows an earlier state for a while."""
    give_up = time.monotonic() + _SECONDS_TO_SEE
    while missing := {path.name for path in parts} - finished(folder):
        if time.monotonic() > give_up:
            raise CampaignStopped(
                f"{folder}: workers have written {min(missing)}, and it is not there; name an "
                f"--out in a directory that the nodes of the site share with this one"
            )
        time.sleep(_SECONDS_BETWEEN_LOOKS)


@contextmanager
def _forgotten_if_input_is_wrong(folder: Path) -> Iterator[None]:
    """Delete the parts if the input is wrong: it will differ the next time."""
    try:
        yield
    except (StoreError, NoWorkers, OtherParts):
        raise
    except InputError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
