"""A run directory made up for the report: 16 trials on two GCDs, three members."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import yaml

from hydragnn_flow.search import JOURNAL
from hydragnn_flow.segment import SegmentResult

RUNGS = (3, 9, 20)
START = 1_750_000_000.0
Span = tuple[int, int, int]
"""Epochs before and after, and the rung."""

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


class Made:
    """Writes the files of a run directory; what it knows of them is for the tests to compare."""

    def __init__(self, directory: Path, *, trials: int = 16) -> None:
        self.directory = directory
        self.random = np.random.default_rng(3)
        self.segments: list[dict[str, Any]] = []
        self.states: dict[int, str] = {}
        self.losses: dict[int, float] = {}
        directory.mkdir(parents=True, exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        backend = optuna.storages.journal.JournalFileBackend(str(directory / JOURNAL))
        storage = optuna.storages.JournalStorage(backend)
        sampler = optuna.samplers.RandomSampler(seed=0)
        self.study = optuna.create_study(study_name="search", storage=storage, sampler=sampler)
        # Two segments at a time on each of two GCDs: when the next can begin there.
        self._free = {("0", 0): START, ("0", 1): START, ("1", 0): START, ("1", 1): START}
        (directory / "run.yaml").write_text(yaml.safe_dump(CONFIGURATION, sort_keys=False))
        for number in range(trials):
            self._trial(number)
        self._write_segments()

    def add_members(self) -> None:
        """Train three members."""
        start = max(self._free.values()) + 4.0
        for k, gcds in enumerate((["0"], ["1"], ["0", "1"])):
            seconds = float(self.random.uniform(24, 34)) / len(gcds)
            start += 0.5 + 34.0 * (k == 2)
            self._segment("member", k, (20, 30, 0), start, seconds, gcds, 0.05)
        self._write_segments()

    def _trial(self, number: int) -> None:
        random, trial = self.random, self.study.ask()
        kind = trial.suggest_categorical("Architecture.mpnn_type", ["SchNet", "EGNN", "PNA"])
        trial.suggest_int("Architecture.hidden_dim", 16, 64, log=True)
        if kind == "SchNet":
            trial.suggest_int("Architecture.num_gaussians", 8, 40)
        trial.suggest_float("Training.Optimizer.learning_rate", 5e-4, 1e-2, log=True)
        floor = float(np.exp(random.normal(-3.2, 0.7)))
        floor *= {"SchNet": 1.0, "EGNN": 0.8, "PNA": 1.6}[kind]
        speed = float(random.uniform(0.5, 2.0))
        if number == 5:
            reason = "training loss is nan in epoch 2"
            self._place(number, (0, 1, 0), speed, floor, status="diverged", reason=reason)
            trial.set_user_attr("reason", reason)
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
            self.states[number] = "failed"
            return
        done = 0
        for rung, until in enumerate(RUNGS):
            self._place(number, (done, until, rung), (until - done) * speed, floor)
            self.losses[number] = self.segments[-1]["best_val_error"]
            trial.report(self.losses[number], until)
            done = until
            better = sum(loss < self.losses[number] for loss in self.losses.values())
            if rung < 2 and better > max(1, len(self.losses) // (3 + rung)):
                self.study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                self.states[number] = "pruned"
                return
        self.study.tell(trial, self.losses[number])
        self.states[number] = "complete"

    def _place(self, number: int, span: Span, seconds: float, floor: float, **end: Any) -> None:
        slot = min(self._free, key=self._free.__getitem__)
        start = self._free[slot] + float(self.random.uniform(0.1, 0.8))
        self._free[slot] = start + seconds
        self._segment("trial", number, span, start, seconds, [slot[0]], floor, **end)

    def _segment(self, kind: Any, number: int, span: Span, *how: Any, **end: Any) -> None:
        (begin, until, rung), (start, seconds, gcds, floor) = span, how
        epochs = np.arange(begin + 1, until + 1)
        noise = np.exp(self.random.normal(0, 0.06, len(epochs)))
        errors = (floor * (1 + 9 * np.exp(-epochs / 4)) * noise).tolist()
        # Wrong by a factor of its own, without a number of the generator that all share.
        predicted = seconds * (0.7 + 0.1 * (number % 7))
        result = SegmentResult(
            kind=kind,
            number=number,
            rung=rung,
            from_epoch=begin,
            to_epoch=until,
            planned_epochs=until - begin,
            best_val_error=min(errors),
            history=[[float(k), of * 0.9, of, of] for k, of in zip(epochs, errors, strict=True)],
            metrics={"energy_mae": 0.1, "forces_mae": 0.05},
            seconds=seconds,
            cpu_seconds=seconds,
            peak_memory_gib=0.4,
            predicted_seconds=predicted,
            predicted_low=predicted * 0.8,
            predicted_high=predicted * 1.25,
            busy=0.3 + 0.05 * (number % 5),
            waited_seconds=0.2,
            away_seconds=seconds + 0.1,
            node="host",
            gcds=gcds,
            started=start,
            ended=start + seconds,
            **{"status": "ok", **end},
        )
        self.segments.append(result.to_dict())

    def _write_segments(self) -> None:
        lines = "".join(json.dumps(segment) + "\n" for segment in self.segments)
        (self.directory / "segments.jsonl").write_text(lines)
