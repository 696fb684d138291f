"""A run directory made up for the report: 16 trials on two GCDs, three members."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pandas as pd
import yaml
from calibration_cases import plain

from hydragnn_flow.data import Target
from hydragnn_flow.ensemble.evaluation.bootstrap import compare_models
from hydragnn_flow.ensemble.summary import VERSION
from hydragnn_flow.report.gcd_time import cost_of
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

MANIFEST = {
    "targets": {
        "energy": {"level": "graph", "dim": 1, "unit": "eV"},
        "forces": {"level": "node", "dim": 3, "unit": "eV/Å"},
    },
    "units": {"pos": "Å"},
    "cutoff": 5.0,
    "max_neighbours": None,
    "elements": [28, 29],
    "splits": {"trainset": {"graphs": 224, "atoms": 6940, "edges": 9}},
    "statistics": {
        "avg_num_neighbors": 39.4,
        "targets": {"energy": {"mean": [4.6], "std": [4.61]}},
    },
    "provenance": {
        "source": {"format": "emt_alloys", "elements": ["Cu", "Ni"]},
        "division": {"duplicates": {"trainset": 2, "valset": 0}, "left_out": {}},
    },
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
        """Train and test the three best trials as an ensemble."""
        best = sorted(self.losses, key=self.losses.__getitem__)
        best = [number for number in best if self.states[number] == "complete"][:3]
        begin = max(self._free.values()) + 4.0
        ended = {"0": begin, "1": begin}
        members = []
        for k, (trial, gcds) in enumerate(zip(best, [["0"], ["1"], ["0", "1"]], strict=True)):
            start = max(ended[gcd] for gcd in gcds) + 0.5
            seconds = float(self.random.uniform(24, 34)) / len(gcds)
            self._segment("member", k, (20, 30, 0), start, seconds, gcds, self.losses[trial])
            ended.update(dict.fromkeys(gcds, start + seconds))
            about = {"best_val_error": self.losses[trial] * 0.8, "gcds": gcds, "seconds": seconds}
            about["reason"] = "diverged: training loss is nan in epoch 24" if k == 1 else ""
            members.append({"member": k, "trial": trial, "weight": 1 / 3, **about})
        self._write_segments()
        self._write_predictions(members)

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

    def _write_predictions(self, members: list[dict[str, Any]]) -> None:
        graphs, nodes = predictions(self.random)
        for name in ("predictions", "ensemble"):
            (self.directory / name).mkdir(exist_ok=True)
        graphs.to_parquet(self.directory / "predictions" / "test.parquet")
        nodes.to_parquet(self.directory / "predictions" / "test_nodes.parquet")
        atoms = nodes.groupby("graph_id").size().reindex(graphs["graph_id"]).to_numpy()
        forces = [f"forces_{axis}" for axis in "xyz"]
        tables = {"energy": (graphs, ["energy"]), "forces": (nodes, forces)}

        def values(end: str) -> dict[str, np.ndarray]:
            return {
                k: table[[c + end for c in own]].to_numpy() for k, (table, own) in tables.items()
            }

        models = {"ensemble": values("_mean")} | {str(k): values(f"_member_{k}") for k in range(3)}
        targets = {
            "energy": Target(level="graph", dim=1, unit="eV"),
            "forces": Target(level="node", dim=3, unit="eV/Å"),
        }
        sums = SimpleNamespace(targets=targets, is_extensive="energy".__eq__)
        errors = compare_models(models, values(""), atoms, sums)
        error = np.abs(models["ensemble"]["energy"] - values("")["energy"])[:, 0]
        inside = graphs["energy"].between(graphs["energy_lo"], graphs["energy_hi"])
        each = {"": error, "per_atom_": error / atoms}
        mae = {f"mae_{of}ensemble": float(values.mean()) for of, values in each.items()}
        summary = {
            "version": VERSION,
            "coverage": 0.9,
            "members": members,
            "best_member": 1,
            "calibration": {
                "energy": plain(1.3, 0.01, 1.7, per_atom=True).to_dict(),
                "forces": plain(1.2, 0.01, 1.6).to_dict(),
            },
            "test": {
                "energy": {"unit": "eV", "coverage": float(inside.mean()), **mae},
                "forces": {"unit": "eV/Å", "coverage": 0.904},
            },
            "errors": errors,
            "wall_seconds": 182.4,
            **cost_of([SegmentResult(**segment) for segment in self.segments]),
            "cpu_seconds": 331.0,
        }
        (self.directory / "ensemble" / "ensemble.json").write_text(json.dumps(summary))
        (self.directory / "ensemble" / "manifest.json").write_text(json.dumps(MANIFEST))


def predictions(
    random: np.random.Generator, graphs: int = 48, low: int = 8, high: int = 65
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Predictions tables of energies and forces whose error bars are about right."""
    atoms = random.integers(low, high, graphs)
    ids = np.sort(random.choice(320, graphs, replace=False))
    reference = atoms * random.normal(0.35, 0.2, graphs)
    std = atoms * 0.006 * random.lognormal(0, 0.4, graphs)
    table = pd.DataFrame({"graph_id": ids, **_columns("energy", random, reference, std)})
    table.attrs = {"units": dict.fromkeys(table.columns[1:], "eV"), "coverage": 0.9}
    table.attrs["components"] = {"energy": ["energy"]}
    count = int(atoms.sum())
    nodes = pd.DataFrame(
        {
            "graph_id": np.repeat(ids, atoms),
            "node_index": np.concatenate([np.arange(n) for n in atoms]),
        }
    )
    for axis in "xyz":
        force = random.standard_t(4, count) * 0.8
        std = 0.05 * random.lognormal(0, 0.5, count)
        for name, values in _columns(f"forces_{axis}", random, force, std).items():
            nodes[name] = values
    nodes.attrs = {"units": dict.fromkeys(nodes.columns[2:], "eV/Å"), "coverage": 0.9}
    nodes.attrs["components"] = {"forces": [f"forces_{axis}" for axis in "xyz"]}
    return table, nodes


def _columns(
    name: str, random: np.random.Generator, reference: np.ndarray, std: np.ndarray
) -> dict[str, np.ndarray]:
    mean = reference + random.normal(0, 1, len(std)) * std * 1.1
    apart = random.normal(0, 1, (3, len(std))) * std
    members = mean + apart - apart.mean(axis=0)
    return {
        name: reference,
        f"{name}_mean": mean,
        f"{name}_std": std,
        f"{name}_epistemic_std": std * 0.8,
        f"{name}_lo": mean - 1.8 * std,
        f"{name}_hi": mean + 1.8 * std,
        **{f"{name}_member_{k}": of for k, of in enumerate(members)},
    }
