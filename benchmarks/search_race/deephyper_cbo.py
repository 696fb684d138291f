"""DeepHyper's CBO in a process of its own that is spoken to in lines of JSON.

    PYTHON-WITH-DEEPHYPER deephyper_cbo.py

The first line is ``{"space": {name: domain}, "seed": 0, "epochs": [2, 6, 18]}``. To ``{"tell":
[[key, value]], "ask": n}`` the answer is what was suggested, ``[[key, params]]``; to ``{"report":
[key, epoch, value]}`` it is whether the trial continues, by DeepHyper's stopper. The smaller a
value the better. Nothing of ours is imported, since DeepHyper's requirements are not ours.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from typing import Any

import ConfigSpace
import numpy as np
from deephyper.evaluator import RunningJob
from deephyper.evaluator.storage import MemoryStorage
from deephyper.hpo import CBO, HpProblem
from deephyper.stopper import SuccessiveHalvingStopper


def problem(space: dict[str, dict[str, Any]], seed: int) -> Any:
    """The space in DeepHyper's terms; a domain is a :class:`hydragnn_flow.config.Parameter`."""
    made = HpProblem(seed=seed)
    parameters = {}
    for name, domain in space.items():
        if domain["choices"] is not None:
            value: Any = domain["choices"]
        else:
            value = tuple(domain["int"] or [float(bound) for bound in domain["float"]])
            value = (*value, "log-uniform") if domain["log"] else value
        parameters[name] = made.add_hyperparameter(value, name)
    for name, domain in space.items():
        for other, values in domain["when"].items():
            made.add_condition(
                ConfigSpace.InCondition(parameters[name], parameters[other], list(values))
            )
    return made


def active(params: dict[str, Any], space: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Without the parameters whose conditions do not hold, and in Python's own types."""
    kept: dict[str, Any] = {}
    for name, domain in space.items():
        if all(kept.get(other) in values for other, values in domain["when"].items()):
            value = params[name]
            kept[name] = value.item() if isinstance(value, np.generic) else value
    return kept


class Judge:
    """DeepHyper's successive halving, a stopper for each trial."""

    def __init__(self, epochs: list[int]) -> None:
        self._epochs, self._storage = epochs, MemoryStorage()
        self._search = self._storage.create_new_search()
        self._stoppers: dict[int, SuccessiveHalvingStopper] = {}

    def continues(self, key: int, epoch: int, value: float) -> bool:
        """Tell whether a trial continues that has reached a loss at an epoch."""
        if key not in self._stoppers:
            stopper = SuccessiveHalvingStopper(self._epochs[-1], self._epochs[0])
            identity = self._storage.create_new_job(self._search)
            stopper.job = RunningJob(identity, {}, self._storage, stopper)
            self._stoppers[key] = stopper
        self._stoppers[key].observe(epoch, -value)  # DeepHyper maximises
        return not self._stoppers[key].stop()


def serve() -> None:
    """Answer until the input ends."""
    warnings.simplefilter("ignore")
    answers = sys.stdout
    # DeepHyper's output must not be among the answers.
    sys.stdout = sys.stderr
    first = json.loads(sys.stdin.readline())
    made = problem(first["space"], first["seed"])
    with tempfile.TemporaryDirectory() as folder:
        search = CBO(
            made,
            random_state=first["seed"],
            log_dir=folder,
            checkpoint_history_to_csv=False,
            # What four of HydraGNN's six scripts set; the others leave DeepHyper's own.
            acq_func="UCB",
            multi_point_strategy="cl_min",
        )
        asked: list[dict[str, Any]] = []
        judge = Judge(first["epochs"])
        for line in sys.stdin:
            order = json.loads(line)
            if "report" in order:
                print(json.dumps(judge.continues(*order["report"])), file=answers, flush=True)
                continue
            if order["tell"]:
                search.tell([(asked[key], -value) for key, value in order["tell"]])
            new = search.ask(order["ask"]) if order["ask"] else []
            shown = [
                [len(asked) + i, active(params, first["space"])] for i, params in enumerate(new)
            ]
            asked += new
            print(json.dumps(shown), file=answers, flush=True)


if __name__ == "__main__":
    serve()
