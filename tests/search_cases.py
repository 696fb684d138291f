"""A made-up search with conditions and rungs whose outcome is known."""

from __future__ import annotations

import math

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from hydragnn_flow.segment import SegmentResult

RUNGS = (3, 9, 27)
TYPE, RATE, WIDTH = "Architecture.mpnn_type", "Training.learning_rate", "Architecture.hidden_dim"
RADIAL, DROPOUT = "Architecture.num_gaussians", "Architecture.dropout"
DOMAINS = {
    TYPE: CategoricalDistribution(["SchNet", "EGNN", "PNA"]),
    RATE: FloatDistribution(1e-5, 1e-2, log=True),
    WIDTH: IntDistribution(16, 512, log=True),
    RADIAL: IntDistribution(8, 64),
    DROPOUT: FloatDistribution(0.0, 0.5),
}


def made_study(
    count: int, objectives: int = 1, *, seed: int = 0
) -> tuple[optuna.Study, list[SegmentResult]]:
    """Trials whose loss depends on the learning rate most, then the type; on the dropout never.

    Where a SchNet has ``RADIAL``, it matters; the second objective is the width.
    """
    random = np.random.default_rng(seed)
    study = optuna.create_study(directions=["minimize"] * objectives)
    segments = []
    trials = []
    for number in range(count):
        params = {
            TYPE: str(random.choice(DOMAINS[TYPE].choices)),
            RATE: float(10 ** random.uniform(-5, -2)),
            WIDTH: int(2 ** random.uniform(4, 9)),
            DROPOUT: float(random.uniform(0, 0.5)),
        }
        log_loss = (math.log10(params[RATE]) + 3) ** 2 + 0.1 * random.normal()
        log_loss += {"SchNet": 0.0, "EGNN": 0.5, "PNA": 1.0}[params[TYPE]]
        if params[TYPE] == "SchNet":
            params[RADIAL] = int(random.integers(8, 65))
            log_loss += (params[RADIAL] - 40) ** 2 / 300
        rung = 2 if log_loss < 0.6 else 1 if log_loss < 1.2 else 0
        curve = [
            [float(epoch), 0.0, 0.01 * math.exp(log_loss) * (1 + 10 / epoch)]
            for epoch in range(1, RUNGS[rung] + 1)
        ]
        reports = {epoch: curve[epoch - 1][2] for epoch in RUNGS[: rung + 1]}
        value, complete = curve[-1][2], rung == 2
        values = [value, float(params[WIDTH])][:objectives] if complete or objectives == 1 else None
        trials.append(
            create_trial(
                state=TrialState.COMPLETE if complete else TrialState.PRUNED,
                params=params,
                distributions={name: DOMAINS[name] for name in params},
                values=values,
                intermediate_values=reports,
            )
        )
        segments.append(segment(number, curve, rung))
    study.add_trials(trials)
    return study, segments


def segment(
    number: int, curve: list[list[float]], rung: int = 0, **changes: object
) -> SegmentResult:
    """A segment that trained a trial from its start to the end of a curve."""
    values = {
        "kind": "trial",
        "number": number,
        "rung": rung,
        "from_epoch": 0,
        "to_epoch": len(curve),
        "status": "ok",
        "history": curve,
        "seconds": 2.0 * len(curve),
        "gcds": ["0"],
        "started": 1.75e9 + 60 * number,
        "ended": 1.75e9 + 60 * number + 2 * len(curve),
    }
    return SegmentResult(**{**values, **changes})
