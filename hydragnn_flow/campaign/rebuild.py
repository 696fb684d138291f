"""The study from the ledger of segments, and the ledger from the study, where one is lost."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import optuna
import yaml
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from hydragnn_flow.campaign.failures import is_final
from hydragnn_flow.campaign.objectives import outcome_of
from hydragnn_flow.config import RunConfig, SearchConfig
from hydragnn_flow.config.base import validate
from hydragnn_flow.config.network import read_json
from hydragnn_flow.config.search import COSTS
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import sole_driver
from hydragnn_flow.files import write_text
from hydragnn_flow.run_directory import CONFIG, RunDirectory
from hydragnn_flow.search.earlier import add_earlier
from hydragnn_flow.search.journal import read_journal
from hydragnn_flow.search.reading import STUDY, read_trials
from hydragnn_flow.search.records import FIXED, ORIGIN, PASSED, REASON
from hydragnn_flow.search.space import active, distributions
from hydragnn_flow.search.storage import StudyStorage
from hydragnn_flow.search.study import Search
from hydragnn_flow.training.segment import SegmentResult, Status

REBUILT = "rebuilt from the study"


def rebuild_records(run_directory: Path) -> str:
    """Make anew whichever of the study and the ledger is lost or damaged.

    Returns
    -------
    str
        A sentence that says what was made.

    Raises
    ------
    InputError
        If both are whole or both are lost, or a driver works on the run.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    directory = RunDirectory(run_directory)
    with sole_driver(directory.path):
        if _has_forgotten(directory):
            made = study_from_ledger(run_directory)
            return f"{directory.journal}: made anew, {made:,} trials"
        made = ledger_from_study(run_directory)
        return f"{directory.segments}: made anew, {made:,} lines"


def study_from_ledger(run_directory: Path) -> int:
    """Make the study anew from `segments.jsonl`, the trials' folders and `run.yaml`.

    The reports are judged again in the order they came, so every trial is as it was after its last
    recorded segment. A driver that goes on takes up the running ones. The caller holds the run
    directory's lock.

    Returns
    -------
    int
        Number of trials, without those of earlier studies.

    Raises
    ------
    InputError
        If the study is whole, or what it is to be made from is not.
    """
    directory = RunDirectory(run_directory)
    if not _has_forgotten(directory):
        raise _is_whole(directory.journal)
    config = _configuration(directory)
    results = [result for result in directory.results() if result.kind == "trial"]
    temporary = directory.journal.with_name(f".{directory.journal.name}.rebuilding")
    temporary.unlink(missing_ok=True)
    try:
        number = _begin_trials(temporary, directory, config.search, results)
        _judge(temporary, config, results)
        _keep_aside(directory.journal)
        temporary.replace(directory.journal)
    finally:
        temporary.unlink(missing_ok=True)
    return number


def ledger_from_study(run_directory: Path) -> int:
    """Make the lines of `segments.jsonl` that are lost anew from the study.

    Lines of a damaged ledger that can be read are kept. The others say how far a trial came and
    what it reported; what it cost is lost and counts as nothing, and so do members' lines. The
    caller holds the run directory's lock.

    Returns
    -------
    int
        Number of lines made.

    Raises
    ------
    InputError
        If the ledger is whole, the study is not, or an objective is in none of the two.
    """
    directory = RunDirectory(run_directory)
    kept, whole = _readable_lines(directory.segments)
    if whole and kept:
        raise _is_whole(directory.segments)
    for name in _configuration(directory).search.objectives:
        if name not in ("val_loss", *COSTS):
            raise InputError(
                f"{directory.segments}: the study does not hold what {name!r} in search.objectives "
                f"is judged by; restore the file from a copy"
            )
    if not directory.journal.exists():
        raise InputError(f"{directory.journal}: is missing; restore it or the ledger from a copy")
    storage = read_journal(directory.journal)
    study = optuna.load_study(study_name=STUDY, storage=storage)
    known = {(line.number, line.rung, line.status) for line in kept if line.kind == "trial"}
    made = [
        line
        for trial in study.get_trials(deepcopy=False)
        if ORIGIN not in trial.user_attrs
        for line in _lines(trial)
        if (line.number, line.rung, line.status) not in known
    ]
    # A trial's rungs must ascend, and which of two trials was first is not known any more.
    lines = sorted([*made, *kept], key=lambda line: (line.kind == "member", line.rung))
    _keep_aside(directory.segments)
    write_text(directory.segments, "".join(json.dumps(line.to_dict()) + "\n" for line in lines))
    return len(made)


class _SecondJudgement(Search):
    """A search that is told what the first one decided, where that is known."""

    def went_on(self, number: int, rung: int, value: float) -> None:
        """A trial reported a value and was sent on."""
        identity = self._trial(number)._trial_id
        epoch = self.rungs.epochs(number)[rung]
        self._storage.set_trial_intermediate_value(identity, epoch, value)
        self._storage.set_trial_user_attr(identity, PASSED, rung)
        self.rungs.restore(number, rung, value, True)


def _begin_trials(
    journal: Path, directory: RunDirectory, config: SearchConfig, results: Sequence[SegmentResult]
) -> int:
    """Put every trial that has left a trace into a new study, running; returns their number."""
    folders = (directory.path / "trials").glob("[0-9]*/config.json")
    recorded = {result.number: result.parameters for result in results if result.parameters}
    numbers = {result.number for result in results} | {int(file.parent.name) for file in folders}
    enqueued = [dict(wanted) for wanted in config.enqueue]
    with StudyStorage(journal) as storage:
        study = optuna.create_study(
            study_name=STUDY,
            storage=storage,
            directions=[StudyDirection.MINIMIZE] * len(config.objectives),
        )
        add_earlier(study, config)
        first = len(study.get_trials(deepcopy=False))
        if numbers and min(numbers) < first:
            raise InputError(
                f"{directory.path / CONFIG}: the studies of search.warm_start hold more trials "
                f"than when the search began; restore them"
            )
        for number in range(first, max(numbers, default=-1) + 1):
            found = recorded.get(number) or _from_folder(directory.trial(number), config)
            study.add_trial(_begun(config, found, enqueued))
        return len(study.get_trials(deepcopy=False)) - first


def _begun(
    config: SearchConfig, found: Mapping[str, Any], enqueued: list[dict[str, Any]]
) -> FrozenTrial:
    """A running trial; a failed one where nothing is known of it but its number."""
    names = active(config.space, found)
    if not all(config.space[name].contains(found.get(name)) for name in names):
        reason = {REASON: "lost: neither the ledger nor its folder says what it varied"}
        return create_trial(state=TrialState.FAIL, user_attrs=reason)
    parameters = {name: found[name] for name in names}
    attributes = {}
    for wanted in enqueued:
        if wanted.items() <= parameters.items():
            enqueued.remove(wanted)
            attributes[FIXED] = wanted  # so that it is not enqueued again
            break
    domains = distributions(config.space)
    return create_trial(
        state=TrialState.RUNNING,
        params=parameters,
        distributions={name: domains[name] for name in parameters},
        system_attrs=attributes,
    )


def _from_folder(folder: Path, config: SearchConfig) -> dict[str, Any]:
    """Values at the paths of the space, from the network in a trial's folder."""
    file = folder / "config.json"
    if not file.exists():
        return {}
    network = read_json(file)["NeuralNetwork"]
    return {name: _at(network, name) for name in config.space}


def _at(network: Any, path: str) -> Any:
    for key in path.split("."):
        network = network.get(key) if isinstance(network, dict) else None
    # One width may stand for that of every layer.
    return network[0] if isinstance(network, list) and network else network


def _judge(journal: Path, config: RunConfig, results: Sequence[SegmentResult]) -> None:
    """Report again what was reported, and what the ledger shows was decided."""
    reached: dict[int, int] = {}
    for result in results:
        reached[result.number] = max(result.rung, reached.get(result.number, 0))
    last = {result.number: result for result in results}
    # The sampler is not asked for anything.
    quick = config.search.model_copy(update={"sampler": "random"})
    search = _SecondJudgement(journal, quick, config.num_epoch, config.seed, config.ensemble.size)
    so_far: defaultdict[int, list[SegmentResult]] = defaultdict(list)
    try:
        for result in results:
            number, rung = result.number, result.rung
            so_far[number].append(result)
            trial = search.record(number)
            if trial.state != "running":
                continue
            if result.status == "ok" and result.best_val_loss is not None:
                try:
                    outcome = outcome_of(config.search, so_far[number])
                except InputError as error:
                    search.fail(number, f"error: {error}")
                    continue
                if rung < reached[number]:
                    search.went_on(number, rung, outcome.objectives[0])
                else:
                    search.report(number, rung, outcome)
            elif result is last[number] and is_final(config, trial.parameters, result):
                search.fail(number, f"{result.status}: {result.reason}")
    finally:
        search.close()


def _lines(trial: FrozenTrial) -> list[SegmentResult]:
    """Lines of the ledger about a trial, as far as the study knows them."""
    lines: list[SegmentResult] = []
    done, best = 0, None
    for rung, epoch in enumerate(sorted(trial.intermediate_values)):
        best = trial.intermediate_values[epoch]
        lines.append(_line(trial, rung, done, epoch, "ok", REBUILT, best))
        done = epoch
    if trial.state == TrialState.FAIL:
        kind, _, reason = str(trial.user_attrs.get(REASON, "")).partition(": ")
        status: Status = kind if kind in get_args(Status) else "error"  # type: ignore[assignment]
        lines.append(_line(trial, len(lines), done, done, status, f"{reason} ({REBUILT})", best))
    return lines


def _line(
    trial: FrozenTrial,
    rung: int,
    from_epoch: int,
    to_epoch: int,
    status: Status,
    reason: str,
    value: float | None,
) -> SegmentResult:
    return SegmentResult(
        kind="trial",
        number=trial.number,
        rung=rung,
        from_epoch=from_epoch,
        to_epoch=to_epoch,
        status=status,
        reason=reason,
        best_val_loss=value,
        joules=0.0,
        parameters=dict(trial.params),
    )


def _has_forgotten(directory: RunDirectory) -> bool:
    """Whether the study is lost, or lacks trials that the ledger has: made anew since, or old."""
    try:
        known = {trial.number for trial in read_trials(directory.path)}
    except InputError:
        return True
    recorded, _ = _readable_lines(directory.segments)
    return not known or any(line.number not in known for line in recorded if line.kind == "trial")


def _readable_lines(ledger: Path) -> tuple[list[SegmentResult], bool]:
    """The lines of a ledger that are whole, and whether all are."""
    if not ledger.exists():
        return [], True
    found, whole = [], True
    for line in ledger.read_bytes().rpartition(b"\n")[0].splitlines():
        try:
            found.append(SegmentResult(**json.loads(line)))
        except (ValueError, TypeError):
            whole = False
    return found, whole


def _configuration(directory: RunDirectory) -> RunConfig:
    file = directory.path / CONFIG
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        values = None
    if not isinstance(values, dict):
        raise InputError(f"{file}: cannot be read; restore it from a copy of the run")
    known = {key: value for key, value in values.items() if key in RunConfig.model_fields}
    config: RunConfig = validate(RunConfig, known, file)
    return config


def _keep_aside(file: Path) -> None:
    if file.exists():
        shutil.copy2(file, file.with_name(f"{file.name}.damaged"))


def _is_whole(file: Path) -> InputError:
    return InputError(
        f"{file}: is whole, and only a missing or damaged file is rebuilt; move it away first"
    )
