"""Parts of a training step: what waits, what is on the way, and that nothing is left out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from segment_cases import make_spec

from hydragnn_flow.data import GraphStore
from hydragnn_flow.report.profile import answer
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.peaks import measured_peaks
from hydragnn_flow.training.profile import profile_training
from hydragnn_flow.training.profile_result import (
    CACHED,
    LOADER,
    MARKED,
    REAL,
    Peaks,
    TrainingProfile,
)
from hydragnn_flow.training.step_parts import Clock, MarkedTrainer, Marks, divided, parts_of

CPU = torch.device("cpu")
# Far more than a step of the small store takes.
LONG = 0.2


@given(st.integers(1, 5), st.integers(1, 7), st.randoms(use_true_random=False))
def test_the_parts_are_the_time_of_the_ranks(ranks: int, steps: int, random: Any) -> None:
    values = [random.random() for _ in range(ranks * steps * 3)]
    seconds = torch.tensor(values, dtype=torch.float64).reshape(ranks, steps, 3)
    parts = divided(seconds)
    assert parts.seconds == pytest.approx(float(seconds.sum(-1).mean()))
    assert min(vars(parts).values()) >= 0
    assert parts.reading == pytest.approx(float(seconds[..., 0].mean()))


def test_who_comes_last_waits_for_nobody() -> None:
    # Two steps of three ranks, which take 2 s to exchange; another rank is late in each.
    seconds = torch.tensor(
        [
            [[0.0, 1.0, 7.0], [1.0, 1.0, 2.0]],
            [[0.0, 6.0, 2.0], [0.0, 1.0, 3.0]],
            [[0.0, 1.0, 7.0], [0.0, 1.0, 3.0]],
        ]
    )
    parts = divided(seconds.double())
    assert parts.exchanging == 2.0
    assert parts.waiting == pytest.approx((5 + 0 + 5 + 0 + 1 + 1) / 6)


def test_a_step_without_a_mark_is_left_out_on_all_ranks() -> None:
    seconds = torch.tensor([[[1.0, 1.0, 1.0], [9.0, 9.0, 9.0]], [[1.0, 1.0, 2.0], [torch.nan] * 3]])
    parts = divided(seconds.double())
    assert (parts.reading, parts.computing) == (1.0, 1.0)
    assert (parts.exchanging, parts.waiting) == (1.0, 0.5)


def test_marks_time_what_happens_where_it_happens(tmp_path: Path, alloy_store: GraphStore) -> None:
    """A step that is slow in one place is slow in that part, by so much, and in no other."""
    trainer = MarkedTrainer(make_spec(tmp_path / "t", alloy_store, 1), alloy_store, CPU, World())
    trainer.model.train()

    def shortest(slow: str) -> list[float]:
        """Reading, computing and what follows, each of the step in which it took least."""
        steps = trainer.plan(0)[:4]

        def batches() -> Iterator[Any]:
            for step, pieces in zip(steps, trainer.micro_batches(steps), strict=True):
                time.sleep(LONG if slow == "reading" else 0.0)
                yield step, pieces

        marks, source = Marks(Clock(CPU)), batches()
        delay = LONG if slow == "computing" else 0.0
        hook = trainer.model.register_forward_pre_hook(lambda *_: time.sleep(delay))
        with trainer.marking(marks):
            for _ in steps:
                trainer.marked_step(source)
        hook.remove()
        seconds = marks.seconds()
        assert seconds[0].isnan().all() and not seconds[1:].isnan().any()
        found = parts_of(seconds, World(), CPU)
        assert found.exchanging == found.waiting == 0.0
        assert found.seconds == pytest.approx(float(seconds[1:].sum(-1).mean()))
        return seconds[1:].amin(0).tolist()

    reading, computing, after = shortest("reading")
    assert reading > LONG > computing > after
    reading, computing, after = shortest("computing")
    assert computing > LONG > reading > 0 < after < LONG


def test_marks_change_nothing_that_is_trained(tmp_path: Path, alloy_store: GraphStore) -> None:
    def trained(is_marked: bool) -> list[torch.Tensor]:
        spec = make_spec(tmp_path / str(is_marked), alloy_store, 1)
        trainer = MarkedTrainer(spec, alloy_store, CPU, World())
        steps = trainer.plan(0)[:3]
        source = zip(steps, trainer.micro_batches(steps), strict=True)
        if is_marked:
            with trainer.marking(Marks(Clock(CPU))):
                for _ in steps:
                    trainer.marked_step(source)
        else:
            for step, pieces in source:
                trainer.train_step(step, pieces)
        return [weight.detach() for weight in trainer.parallel.weights]

    for marked, plain in zip(trained(True), trained(False), strict=True):
        assert torch.equal(marked, plain)


@pytest.mark.parametrize("slow", ["reading", "computing"])
def test_a_profile_says_what_a_step_waits_for(
    tmp_path: Path, alloy_store: GraphStore, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    delays = {"reading": 0.0, "computing": 0.0} | {slow: LONG}
    read, step = MarkedTrainer.micro_batches, MarkedTrainer.train_step

    def slowly_read(trainer: MarkedTrainer, steps: Any) -> Iterator[Any]:
        for pieces in read(trainer, steps):
            time.sleep(delays["reading"])
            yield pieces

    def slowly_taken(trainer: MarkedTrainer, *of: Any) -> torch.Tensor:
        time.sleep(delays["computing"])
        return step(trainer, *of)

    monkeypatch.setattr(MarkedTrainer, "micro_batches", slowly_read)
    monkeypatch.setattr(MarkedTrainer, "train_step", slowly_taken)
    spec = make_spec(tmp_path / "t", alloy_store, 1, traced=True, attempt="a")
    profile = profile_training(spec, alloy_store, CPU, seconds=0.1)
    assert [*profile.timings] == [REAL, MARKED, CACHED, LOADER]
    assert vars(profile.parts)[slow] > LONG
    assert (
        answer(profile)
        .split(":")[0]
        .endswith(
            {"reading": "of the step waits for data", "computing": "of the step computes"}[slow]
        )
    )
    assert profile.timings[LOADER].seconds > delays["reading"]
    assert profile.timings[CACHED].seconds > delays["computing"]
    assert abs(profile.closure) < 0.05
    train = alloy_store["trainset"]
    steps = -(-len(train) // 4)
    assert profile.graphs == pytest.approx(len(train) / steps)
    assert profile.atoms == pytest.approx(train.n_atoms.sum() / steps)
    assert profile.edges == pytest.approx(train.n_edges.sum() / steps)
    assert TrainingProfile.from_dict(profile.to_dict()) == profile
    content = spec.trace.read_text()
    assert '"traceEvents"' in content and "autograd::engine" in content


def test_parts_alone_are_measured_in_two_modes(tmp_path: Path, alloy_store: GraphStore) -> None:
    spec = make_spec(tmp_path / "t", alloy_store, 1, parts_only=True)
    assert [*profile_training(spec, alloy_store, CPU, seconds=0.01).timings] == [REAL, MARKED]


def test_peaks_are_those_of_a_machine() -> None:
    """Of any machine since the nineties, and of none yet; doubles take longer than floats."""
    peaks = measured_peaks(CPU, "fp32")
    assert 1e8 < measured_peaks(CPU, "fp64").flops < 2 * peaks.flops < 1e14
    assert 1e8 < peaks.bytes < 1e13


def test_the_roofline_is_a_roof() -> None:
    peaks = Peaks(flops=100.0, bytes=10.0)
    assert [peaks.attainable(intensity) for intensity in (1.0, 10.0, 1000.0)] == [
        10.0,
        100.0,
        100.0,
    ]
