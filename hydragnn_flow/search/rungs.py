"""Verdicts on trials at the rungs: a trial continues, stops or is complete.

Rankings are kept in memory. To judge a trial takes a binary search in that of its rung.
"""

from __future__ import annotations

import bisect
import copy
import math
from typing import Literal

import optuna
from optuna.trial import FrozenTrial

from hydragnn_flow.config import SearchConfig
from hydragnn_flow.config.optuna_classes import build_pruner

Verdict = Literal["goes_on", "stops", "complete"]


class Ranking:
    """Ranking of trials by the values reported at one rung.

    A rung is an epoch at which trials are judged.
    """

    def __init__(self) -> None:
        self._ranked: list[tuple[float, int]] = []
        self._value: dict[int, float] = {}
        self.continued: set[int] = set()
        """Numbers of trials that continued from this rung and have not failed since."""

    def enter(self, number: int, value: float) -> None:
        """Add a trial and its value to the ranking, unless the trial is ranked already.

        Smaller values are better.
        """
        if number not in self._value:
            self._value[number] = value
            bisect.insort(self._ranked, (value, number))

    def among_best(self, number: int, reduction_factor: int) -> bool:
        """Return True if a trial is in the best ``1 / reduction_factor`` of the ranked trials."""
        last = max(1, len(self._ranked) // reduction_factor) - 1
        return self._value[number] <= self._ranked[last][0]


class Rungs:
    """Verdicts on the trials of a search at its rungs, the epochs at which trials are judged.

    Trials are judged as they arrive, so none waits for others to reach its rung. The verdict comes
    from the configured Optuna pruner, if any, or from the rule **stopping**: a trial continues if
    the sampler predicts that its further epochs gain more than those of a new trial would. If the
    sampler cannot tell, the trial continues if it is in the best ``1 / reduction_factor`` of the
    trials judged at the rung so far, itself included.

    An ensemble needs trials to choose from, even if the search is too small for its rungs: 24
    trials, of which a third continues from each of two rungs, leave three. So the first
    ``ensemble_size`` trials at a rung continue. If the sampler predicts, so does the first eighth
    of the trials, eight at most, as examples of how ends differ from rungs.

    The value of a failed trial stays in the ranking: it does not change how good the others are.

    Source: Klein et al., Model-based Asynchronous Hyperparameter and Neural Architecture Search,
    arXiv:2003.10865.

    Parameters
    ----------
    config
        Configuration of the search.
    num_epoch
        Number of epochs of a trial that is never stopped early, `Training.num_epoch`.
    study
        Study of the sampler and of the configured Optuna pruner, if any. Its trials have the value
        at each rung as the intermediate value of that epoch. Attributes that the pruner gives a
        trial (successive halving and Hyperband do) are as durable as the trial.
    ensemble_size
        Number of good trials that the search has to find: at least as many continue from each rung.
    """

    def __init__(
        self,
        config: SearchConfig,
        num_epoch: int,
        study: optuna.Study | None = None,
        ensemble_size: int = 1,
    ) -> None:
        self._pruner = None if config.pruner is None else build_pruner(config.pruner)
        self._config = config
        self._maximises = config.directions[0] == "maximize"
        self._study, self._size = study, ensemble_size
        self.epochs = config.rung_epochs(num_epoch)
        """Epochs at which a trial is judged, in ascending order; the last is its end."""
        self._rankings = [Ranking() for _ in self.epochs]
        self._passed: dict[int, int] = {}
        self._examples = min(8, config.trials // 8)

    def report(self, number: int, rung: int, value: float) -> Verdict:
        """Judge a trial at a rung: rank the value that it reports, and return the verdict.

        Parameters
        ----------
        number, rung
            Number of the trial, and position of the rung in `epochs` of the trial.
        value
            First objective of the trial's best weights so far; never NaN.

        Returns
        -------
        Verdict
            ``goes_on`` or ``stops``; always ``complete`` at the last rung. A trial that has
            continued from the rung before continues again.
        """
        ranking = self._enter(number, rung, value)
        if rung == len(self.epochs) - 1:
            return "complete"
        if self._passed.get(number, -1) >= rung:
            return "goes_on"
        if not self._is_good_enough(ranking, number, self.epochs[rung], value):
            return "stops"
        self._go_on(number, rung)
        return "goes_on"

    def restore(self, number: int, rung: int, value: float, went_on: bool) -> None:
        """Enter a trial's recorded report at a rung after a restart, without judging it again.

        Parameters
        ----------
        number, rung, value
            Arguments with which `report` was called. Reports at one rung may come in any order, but
            the rungs of a trial must ascend.
        went_on
            True if the trial continued from the rung. If it is not recorded that the trial ended
            there either, `report` may be called again for its verdict.
        """
        self._enter(number, rung, value)
        if went_on:
            self._go_on(number, rung)

    def forget(self, number: int) -> None:
        """Make room at the rungs from which a failed trial continued; its values stay ranked."""
        for ranking in self._rankings:
            ranking.continued.discard(number)

    def _go_on(self, number: int, rung: int) -> None:
        self._passed[number] = rung
        self._rankings[rung].continued.add(number)

    def _enter(self, number: int, rung: int, value: float) -> Ranking:
        if math.isnan(value):
            raise ValueError(f"trial {number} reported NaN; a trial that diverged has failed")
        ranking = self._rankings[rung]
        ranking.enter(number, self._cost(value))
        return ranking

    def _cost(self, value: float) -> float:
        """Return the value, negated if the objective is maximised, so that smaller is better."""
        return -value if self._maximises else value

    def _is_good_enough(self, ranking: Ranking, number: int, epoch: int, value: float) -> bool:
        if self._pruner is not None:
            assert self._study is not None
            return not self._pruner.prune(self._study, self._trial(number, epoch, value))
        predict = getattr(self._study and self._study.sampler, "continues", None)
        wanted = self._size if predict is None else max(self._size, self._examples)
        if len(ranking.continued) < wanted:
            return True
        continues = predict and predict(self._study, self._trial(number, epoch, value), self._size)
        if continues is not None:
            return bool(continues)
        return ranking.among_best(number, self._config.reduction_factor)

    def _trial(self, number: int, epoch: int, value: float) -> FrozenTrial:
        """Return a trial of the study with its newest report."""
        assert self._study is not None
        trial = copy.copy(self._study.get_trials(deepcopy=False)[number])
        trial.intermediate_values = {**trial.intermediate_values, epoch: value}
        return trial
