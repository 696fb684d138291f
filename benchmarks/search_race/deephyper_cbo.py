"""DeepHyper's CBO in a process of its own that is spoken to in lines of JSON.

    PYTHON-WITH-DEEPHYPER deephyper_cbo.py

The first line is ``{"space": {name: domain}, "seed": 0}``. To each further one, ``{"tell": [[key,
value]], "ask": n}``, the answer is what was suggested, ``[[key, params]]``. The smaller a value the
better. Nothing of ours is imported, since DeepHyper's requirements are not ours.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from typing import Any

import ConfigSpace
import numpy as np
from deephyper.hpo import CBO, HpProblem


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
        for line in sys.stdin:
            order = json.loads(line)
            if order["tell"]:  # DeepHyper maximises
                search.tell([(asked[key], -value) for key, value in order["tell"]])
            new = search.ask(order["ask"]) if order["ask"] else []
            shown = [
                [len(asked) + i, active(params, first["space"])] for i, params in enumerate(new)
            ]
            asked += new
            print(json.dumps(shown), file=answers, flush=True)


if __name__ == "__main__":
    serve()
