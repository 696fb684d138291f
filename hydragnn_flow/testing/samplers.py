"""Conformance suite for samplers, shipped or a user's own: conditional spaces and early stopping.

Subclass :class:`SamplerSuite`::

    import pytest
    from hydragnn_flow.testing.samplers import SamplerSuite

    class TestMine(SamplerSuite):
        @pytest.fixture
        def sampler(self) -> dict[str, object]:
            return {"type": "my_package.my_module:Mine", "radius": 3}

`optuna.testing.pytest_samplers` tests what any Optuna study asks of a sampler.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from hydragnn_flow.config import Parameter, SearchConfig
from hydragnn_flow.config.base import import_class
from hydragnn_flow.errors import InputError
from hydragnn_flow.search import JOURNAL, Outcome, Search, TrialRecord
from hydragnn_flow.search.records import active
from hydragnn_flow.search.study import rehearse

SPACE = {
    "kind": Parameter(choices=("wide", "deep")),
    "rate": Parameter(float=(1e-5, 1e-1), log=True),
    "width": Parameter(int=(8, 512), log=True, when={"kind": ("wide",)}),
    "depth": Parameter(int=(1, 9), step=2, when={"kind": ("deep",)}),
    "only": Parameter(choices=("one value",)),
}
_RUNGS = (1, 3, 9)


class SamplerSuite:
    """Conformance tests of a sampler as :class:`~hydragnn_flow.search.Search` uses it.

    A sampler that does not support a search must raise an error before the search begins: when the
    sampler is created, or when it proposes its first trials. Tests of that search are then skipped.
    """

    @pytest.fixture
    def sampler(self) -> str | dict[str, Any]:
        """Return the value of ``search.sampler``; a subclass overrides this fixture."""
        raise NotImplementedError

    @contextmanager
    def search(
        self, folder: Path, sampler: str | dict[str, Any], seed: int = 1, **keys: Any
    ) -> Iterator[Search]:
        """Context manager: open a search with a sampler over :data:`SPACE`, a small test space.

        Skips the test if the sampler or the configuration does not support the search.

        Parameters
        ----------
        folder
            Folder of the journal; an existing journal is continued.
        sampler
            Value of ``search.sampler`` to test.
        seed
            Seed that decides the suggestions.
        **keys
            Additional keys of the section `search`.
        """
        values = {"trials": 99, "min_epochs": 1, "space": SPACE, "sampler": sampler, **keys}
        if isinstance(sampler, dict) and ":" in sampler["type"]:
            import_class(sampler["type"])  # fails here, as all tests would be skipped
        try:
            config = SearchConfig.model_validate(values)
            rehearse(config)
        except (ValidationError, InputError) as refusal:
            pytest.skip(" ".join(str(refusal).split())[:100])
        folder.mkdir(exist_ok=True)
        with Search(folder / JOURNAL, config, _RUNGS[-1], seed) as search:
            yield search

    @pytest.mark.parametrize("rungs", ["stopping", "none"])
    def test_every_trial_has_its_parameters_within_the_space(
        self, tmp_path: Path, sampler: str | dict[str, Any], rungs: str
    ) -> None:
        with self.search(tmp_path, sampler, rungs=rungs) as search:
            for trial in _run(search, 20):
                assert list(trial.parameters) == active(SPACE, trial.parameters)
                assert all(SPACE[name].contains(value) for name, value in trial.parameters.items())

    def test_a_seed_and_a_history_decide_the_suggestions(
        self, tmp_path: Path, sampler: str | dict[str, Any]
    ) -> None:
        found = []
        for name, seed in (("first", 1), ("again", 1), ("other", 2)):
            with self.search(tmp_path / name, sampler, seed, rungs="none") as search:
                found.append([trial.parameters for trial in _run(search, 16)])
        assert found[0] == found[1]
        assert found[0] != found[2]

    def test_a_search_that_is_continued_does_not_begin_again(
        self, tmp_path: Path, sampler: str | dict[str, Any]
    ) -> None:
        with self.search(tmp_path, sampler) as search:
            first = [trial.parameters for trial in _run(search, 12)]
        with self.search(tmp_path, sampler) as search:
            second = [trial.parameters for trial in _run(search, 12)]
        assert sum(parameters in first for parameters in second) < 6

    def test_values_that_are_given_are_kept(
        self, tmp_path: Path, sampler: str | dict[str, Any]
    ) -> None:
        given: dict[str, Any] = {"kind": "deep", "depth": 3}
        with self.search(tmp_path, sampler, enqueue=[given]) as search:
            first, *others = _run(search, 8)
            assert given.items() <= first.parameters.items()
            assert len(others) == 7

    @pytest.mark.parametrize("objectives", [2, 3])
    def test_several_objectives(
        self, tmp_path: Path, sampler: str | dict[str, Any], objectives: int
    ) -> None:
        names = ["val_error", "seconds", "joules"][:objectives]
        with self.search(tmp_path, sampler, objectives=names, rungs="none") as search:
            assert {trial.state for trial in _run(search, 14)} == {"complete", "failed"}

    def test_limits(self, tmp_path: Path, sampler: str | dict[str, Any]) -> None:
        with self.search(tmp_path, sampler, constraints={"seconds": 5.0}, rungs="none") as search:
            assert {trial.feasible for trial in _run(search, 14)} == {True, False}


def _run(search: Search, count: int) -> list[TrialRecord]:
    """Run ``count`` further trials, four at a time, and return their records.

    The oldest running trial ends first, and every seventh trial fails.
    """
    flying = [search.ask().number for _ in range(min(4, count))]
    first = flying[0]
    while flying:
        _end(search, flying.pop(0))
        search.commit()
        if flying and flying[-1] < first + count - 1:
            flying.append(search.ask().number)
    return [record for record in search.records if record.number >= first]


def _end(search: Search, number: int) -> None:
    if number % 7 == 5:
        search.fail(number, "diverged: loss is NaN")
        return
    loss = _loss(search.record(number).parameters)
    values = (loss, float(number), 2.0 * number)[: len(search.config.objectives)]
    excess = {name: number - limit for name, limit in search.config.constraints.items()}
    for rung, epoch in enumerate(search.rungs.epochs):
        worse = (values[0] + 1 / epoch, *values[1:])
        if search.report(number, rung, Outcome(worse, excess)) != "goes_on":
            return


def _loss(parameters: dict[str, Any]) -> float:
    own = 0.05 * abs(parameters["depth"] - 5) if parameters["kind"] == "deep" else 0.3
    return float(own + (parameters["rate"] - 0.01) ** 2 * 1e3)
