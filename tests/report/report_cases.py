"""A run directory made up for the report: 16 trials or more on two GCDs, three members."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.trial import TrialState, create_trial
from search_cases import RUNGS, made_study, segment

from hydragnn_flow.search import JOURNAL
from hydragnn_flow.segment import SegmentResult

START = 1_750_000_000.0
_CONFIGS = Path(__file__).parents[2] / "configs"
NETWORK = json.loads((_CONFIGS / "potential.json").read_text())["NeuralNetwork"]
NETWORK["Training"]["num_epoch"] = RUNGS[-1]
CONFIGURATION = yaml.safe_load((_CONFIGS / "quickstart.yaml").read_text())
CONFIGURATION["search"] |= {"trials": 16, "min_epochs": RUNGS[0]}
CONFIGURATION |= {
    "network": NETWORK,
    "versions": {"torch": "2.13.0", "optuna": "5.0.0"},
    "commands": ["hydragnn-flow run 'a b.yaml' --site local"],
}
FAILED, REASON = 4, "training loss is nan in epoch 2"


def new_study(directory: Path) -> optuna.Study:
    """The study of a run, without a trial."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    backend = optuna.storages.journal.JournalFileBackend(str(directory / JOURNAL))
    storage = optuna.storages.JournalStorage(backend)
    return optuna.create_study(study_name="search", storage=storage)


class Made:
    """Writes the files of a run directory; what it knows of them is for the tests to compare."""

    def __init__(self, directory: Path, *, trials: int = 16) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "run.yaml").write_text(yaml.safe_dump(CONFIGURATION, sort_keys=False))
        study, segments = made_study(trials, seed=3)
        made = study.trials
        failed = {"params": made[FAILED].params, "distributions": made[FAILED].distributions}
        failed |= {"state": TrialState.FAIL, "user_attrs": {"reason": REASON}}
        made[FAILED] = create_trial(**failed)
        self.study = new_study(directory)
        self.study.add_trials(made)
        self.states = {n: trial.state.name.lower() for n, trial in enumerate(made)}
        self.states[FAILED] = "failed"
        self.losses = {n: trial.value for n, trial in enumerate(made)}
        self.segments: list[dict[str, Any]] = []
        for number, one in enumerate(segments):
            self._ran(one, **{"status": "diverged", "reason": REASON} if number == FAILED else {})

    def add_members(self) -> None:
        """Train three members, the last of them on both GCDs."""
        curve = [[float(epoch), 0.05, 0.05 + 0.5 / epoch] for epoch in range(1, 31)]
        for k, gcds in enumerate((["0"], ["1"], ["0", "1"])):
            self._ran(segment(k, curve, kind="member", from_epoch=20), gcds=gcds)

    def _ran(self, one: SegmentResult, **changes: Any) -> None:
        """Two at a time run on each of two GCDs, and take longer or less than predicted."""
        turn, errors = len(self.segments), [error for *_, error in one.history]
        started, predicted = START + 60.0 * (turn // 4), one.seconds * (0.7 + 0.1 * (turn % 7))
        known = {"best_val_error": min(errors), "planned_epochs": len(errors), "node": "host"}
        known |= {"history": [[row[0], 0.9 * row[2], row[2], row[2]] for row in one.history]}
        known |= {"metrics": {"energy_mae": 0.1, "forces_mae": 0.05}, "peak_memory_gib": 0.4}
        known |= {"predicted_low": 0.8 * predicted, "predicted_high": 1.25 * predicted}
        known |= {"predicted_seconds": predicted, "busy": 0.3 + 0.05 * (turn % 5)}
        known |= {"cpu_seconds": one.seconds, "waited_seconds": 0.2, "gcds": [str(turn % 2)]}
        known |= {"away_seconds": one.seconds + 0.1, "started": started}
        known |= {"ended": started + one.seconds}
        self.segments.append(one.to_dict() | known | changes)
        with (self.directory / "segments.jsonl").open("a") as file:
            print(json.dumps(self.segments[-1]), file=file)
