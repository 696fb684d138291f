"""HydraGNN's trainings with parameters that DeepHyper suggests, as HydraGNN's scripts search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from graph_store.workspace import in_fresh_process
from numpy.typing import NDArray
from peers.hydragnn_training import train
from search_race.engines import DeepHyperEngine

from hydragnn_flow.config.domain import Parameter
from model_accuracy.hydragnns import Graphs
from model_accuracy.outcome import errors
from model_accuracy.sets import SETS, Contest

IN_FLIGHT = 2
_NO_END = math.inf


@dataclass(frozen=True)
class Trial:
    """One training of a search."""

    params: dict[str, Any]
    seconds: float
    """CPU time of the training [s], validation included."""
    loss: float
    """Least validation loss; NaN where there was none."""
    validation: tuple[float, ...] | None
    """Errors on the validation split with the weights of that epoch, one for each measure."""
    test: dict[str, NDArray[np.float64]]
    """Predictions of the test split, by target."""


def search(
    contest: Contest,
    store: Path,
    space: Mapping[str, Parameter],
    trials: int,
    epochs: int,
    seed: int,
    checkout: Path,
    python: Path,
) -> list[Trial]:
    """Search with DeepHyper's CBO (UCB, cl_min), a process for each trial.

    Instead of NaN, DeepHyper is told the largest loss so far: HydraGNN's own scripts would find no
    loss in the trial's output.

    Parameters
    ----------
    contest
        The network that the space varies, and the set.
    store
        Of the set.
    space
        Path below `NeuralNetwork` → domain.
    trials, epochs
        How many trainings, each of so many epochs.
    seed
        Of the search and of weights.
    checkout
        Root of a checkout of HydraGNN.
    python
        An interpreter that has DeepHyper.

    Returns
    -------
    list of Trial
        In the order in which they ended.
    """
    engine = DeepHyperEngine(space, python, seed)
    ended: list[Trial] = []
    running: dict[Future[Trial], int] = {}
    try:
        with ThreadPoolExecutor(IN_FLIGHT) as processes:
            while len(ended) < trials:
                free = min(IN_FLIGHT, trials - len(ended)) - len(running)
                for key, params in engine.ask(free) if free else []:
                    trial = contest, store, params, epochs, seed + key, checkout
                    call = partial(in_fresh_process, train_trial, *trial)
                    running[processes.submit(call)] = key
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    ended.append(future.result())
                    known = [one.loss for one in ended if math.isfinite(one.loss)]
                    loss = ended[-1].loss
                    told = loss if math.isfinite(loss) else max(known, default=1.0)
                    engine.tell(running.pop(future), told)
    finally:
        engine.close()
    return ended


def train_trial(
    contest: Contest, store: Path, params: dict[str, Any], epochs: int, seed: int, checkout: Path
) -> Trial:
    """Train a network with other parameters by HydraGNN's own loop."""
    graphs = Graphs(contest, store)
    network = graphs.network()
    network["Training"]["num_epoch"] = epochs
    for path, value in params.items():
        *folders, name = path.split(".")
        section = network
        for folder in folders:
            section = section[folder]
        section[name] = value
    trained = train(checkout, graphs.splits, network, _NO_END, seed)
    if trained.best_epoch is None:
        return Trial(params, trained.seconds, math.nan, None, {})
    of_validation = graphs.predict(trained.model, "valset")
    validation = errors(SETS[contest.set], graphs.opened["valset"], of_validation)
    test = graphs.predict(trained.model, "testset")
    return Trial(params, trained.seconds, trained.least, validation, test)
