"""Verdicts on trials at the rungs: a trial continues, waits, stops or is complete.

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

Verdict = Literal["goes_on", "waits", "stops", "complete"]
_GOLDEN = (math.sqrt(5) - 1) / 2


class Ranking:
    """Ranking of trials by the values reported at one rung, and the trials that wait there.

    A rung is an epoch at which trials are judged.
    """

    def __init__(self) -> None:
        self._ranked: list[tuple[float, int]] = []
        self._value: dict[int, float] = {}
        self.waiting: list[tuple[float, int]] = []
        """(value, number) of the waiting trials, best first."""
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

    def wait(self, number: int) -> None:
        """Add a ranked trial to the list of trials that wait at this rung for promotion."""
        place = self._value[number], number
        at = bisect.bisect_left(self.waiting, place)
        if self.waiting[at : at + 1] != [place]:
            self.waiting.insert(at, place)

    def forget(self, number: int) -> None:
        """Remove a trial from the list of waiting trials; its value stays in the ranking."""
        if number in self._value:
            place = self._value[number], number
            at = bisect.bisect_left(self.waiting, place)
            if self.waiting[at : at + 1] == [place]:
                del self.waiting[at]

    def __len__(self) -> int:
        return len(self._ranked)

    def promotable(self, reduction_factor: int) -> int | None:
        """Return the number of the best waiting trial if it is good enough to continue, else None.

        It is good enough if it is in the best ``1 / reduction_factor`` of all ranked trials. Equal
        values rank by trial number, so at most this fraction is promoted.
        """
        if not self.waiting:
            return None
        rank = bisect.bisect_left(self._ranked, self.waiting[0])
        return self.waiting[0][1] if rank < len(self._ranked) // reduction_factor else None


class Rungs:
    """Verdicts on the trials of a search at its rungs, the epochs at which trials are judged.

    Trials are judged as they arrive, so none waits for others to reach its rung. The verdict comes
    from the configured Optuna pruner, if any, or from the configured rule:

    * **stopping**: a trial continues if the sampler predicts that its further epochs gain more than
      those of a new trial would. If the sampler cannot tell, the trial continues if it is in the
      best ``1 / reduction_factor`` of the trials judged at the rung so far, itself included.
    * **promotion**: every trial waits, and `promote` continues waiting trials that have come to be
      in the best ``1 / reduction_factor``. So a poor early arrival stops here, while a good one
      that arrived among better ones continues later; in between it has to wait.
    * **hyperband**: the stopping rule in several brackets with separate rankings; bracket s skips
      the first s rungs, for configurations that start slowly.

    An ensemble needs trials to choose from, even if the search is too small for its rungs: 24
    trials, of which a third continues from each of two rungs, leave three. So the first
    ``ensemble_size`` trials at a rung continue. If the sampler predicts, so does the first eighth
    of the trials, eight at most, as examples of how ends differ from rungs. With promotion, the
    best waiting trials continue when no trial is left to ask for, until there are as many.
    Hyperband's last bracket stops no trial.

    The value of a failed trial stays in the ranking: it does not change how good the others are.

    Sources: Li et al., A System for Massively Parallel Hyperparameter Tuning, MLSys 2020,
    arXiv:1810.05934, algorithm 2 (promotion); Klein et al., Model-based Asynchronous
    Hyperparameter and Neural Architecture Search, arXiv:2003.10865 (stopping); Li et al.,
    Hyperband, JMLR 18 (2018) 185, arXiv:1603.06560.

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
        rungs = config.rung_epochs(num_epoch)
        self._pruner = None if config.pruner is None else build_pruner(config.pruner)
        self._shares = [1]
        if config.rungs == "hyperband":
            self._shares = bracket_shares(len(rungs), config.reduction_factor)
        self._config, self._num_epoch = config, num_epoch
        self._maximises = config.directions[0] == "maximize"
        self._study, self._size = study, ensemble_size
        self._epochs = [rungs[bracket:] for bracket in range(len(self._shares))]
        self._rankings = [[Ranking() for _ in epochs] for epochs in self._epochs]
        self._passed: dict[int, int] = {}
        self._examples = min(8, config.trials // 8)

    def epochs(self, number: int) -> tuple[int, ...]:
        """Return the epochs at which a trial is judged, in ascending order; the last is its end."""
        return self._epochs[self.bracket(number)]

    def bracket(self, number: int) -> int:
        """Return the Hyperband bracket of a trial, computed from its number alone.

        A bracket is a group of trials that skip the same number of first rungs. Multiples of the
        golden ratio fill the unit interval evenly, so any series of consecutive trials is divided
        among the brackets in proportion to their shares.
        """
        point = number * _GOLDEN % 1 * sum(self._shares)
        for bracket, share in enumerate(self._shares[:-1]):
            point -= share
            if point < 0:
                return bracket
        return len(self._shares) - 1

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
            ``goes_on``, ``waits`` for promotion, or ``stops``; always ``complete`` at the last
            rung. A trial that has continued from the rung before continues again.
        """
        ranking = self._enter(number, rung, value)
        epochs = self.epochs(number)
        if rung == len(epochs) - 1:
            return "complete"
        if self._passed.get(number, -1) >= rung:
            return "goes_on"
        if self._config.rungs == "promotion":
            ranking.wait(number)
            return "waits"
        if not self._is_good_enough(ranking, number, epochs[rung], value):
            return "stops"
        self._go_on(number, rung)
        return "goes_on"

    def promote(self, closing: bool = False) -> tuple[int, int] | None:
        """Choose a waiting trial to continue: the best one at the highest rung with a good trial.

        Parameters
        ----------
        closing
            True if no report will come any more, since nothing runs and no trial is left to ask
            for. At a rung from which fewer trials have continued than the ensemble needs, the best
            waiting one then continues however good it is. So a search too small for its rungs, or
            whose best trials failed, still ends with as many complete trials as the ensemble needs.

        Returns
        -------
        tuple or None
            ``(number, rung)`` of the trial and the rung where it waited; None while no waiting
            trial is good enough. At least ``reduction_factor`` trials must have reached a rung
            before a trial continues from there.
        """
        rankings = self._rankings[0]
        for rung in range(len(rankings) - 2, -1, -1):
            any_will_do = closing and len(rankings[rung].continued) < self._size
            number = rankings[rung].promotable(1 if any_will_do else self._config.reduction_factor)
            if number is not None:
                self._wait_no_longer(number)
                self._go_on(number, rung)
                return number, rung
        return None

    def waiting(self) -> list[int]:
        """Return the numbers of the trials that wait for promotion, in ascending order."""
        return sorted(number for ranking in self._rankings[0] for _, number in ranking.waiting)

    def restore(self, number: int, rung: int, value: float, went_on: bool | None) -> None:
        """Enter a trial's recorded report at a rung after a restart, without judging it again.

        Parameters
        ----------
        number, rung, value
            Arguments with which `report` was called. Reports at one rung may come in any order, but
            the rungs of a trial must ascend.
        went_on
            True if the trial continued from the rung, False if it ended there. None if neither is
            recorded: with the rule ``promotion`` the trial then waits, and with any rule `report`
            may be called again for its verdict.
        """
        ranking = self._enter(number, rung, value)
        if went_on:
            self._go_on(number, rung)
        waits = self._config.rungs == "promotion" and rung < len(self.epochs(number)) - 1
        if went_on is None and waits:
            ranking.wait(number)

    def forget(self, number: int) -> None:
        """Remove a failed trial from the lists of waiting trials; its values stay ranked."""
        self._wait_no_longer(number)
        for ranking in self._rankings[self.bracket(number)]:
            ranking.continued.discard(number)

    def _wait_no_longer(self, number: int) -> None:
        for ranking in self._rankings[0]:
            ranking.forget(number)

    def _go_on(self, number: int, rung: int) -> None:
        self._passed[number] = rung
        self._rankings[self.bracket(number)][rung].continued.add(number)

    def _enter(self, number: int, rung: int, value: float) -> Ranking:
        if math.isnan(value):
            raise ValueError(f"trial {number} reported NaN; a trial that diverged has failed")
        ranking = self._rankings[self.bracket(number)][rung]
        ranking.enter(number, self._cost(value))
        return ranking

    def _cost(self, value: float) -> float:
        """Return the value, negated if the objective is maximised, so that smaller is better."""
        return -value if self._maximises else value

    def _is_good_enough(self, ranking: Ranking, number: int, epoch: int, value: float) -> bool:
        if self._pruner is not None:
            assert self._study is not None
            return not self._pruner.prune(self._study, self._trial(number, epoch, value))
        if self._config.rungs == "hyperband":
            return not ranking.continued or ranking.among_best(
                number, self._config.reduction_factor
            )
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


def bracket_shares(rungs: int, reduction_factor: int) -> list[int]:
    """Return the relative number of trials in each of Hyperband's brackets [n_rungs].

    Every bracket gets about the same number of epochs, so the first bracket, which stops most of
    its trials early, has most trials: ``ceil(rungs / (s + 1) * reduction_factor**s)``. Here s is
    the number of rungs where trials of the bracket may stop, ``rungs - 1 - bracket`` (Li et al.,
    JMLR 18 (2018) 185, algorithm 1, the number n of configurations; Falkner et al.,
    arXiv:1807.01774, algorithm 1).
    """
    return [math.ceil(rungs * reduction_factor**s / (s + 1)) for s in reversed(range(rungs))]
