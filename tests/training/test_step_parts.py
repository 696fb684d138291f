"""Parts of a training step: what waits, what is on the way, and that nothing is left out."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from segment_cases import make_spec

from hydragnn_flow.report.profile import answer
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.profiles import profile as profiling
from hydragnn_flow.training.profiles import step_parts
from hydragnn_flow.training.profiles.peaks import measured_peaks
from hydragnn_flow.training.profiles.profile import profile_training
from hydragnn_flow.training.profiles.profile_result import (
    CACHED,
    LOADER,
    MARKED,
    REAL,
    Peaks,
    TrainingProfile,
)
from hydragnn_flow.training.profiles.step_parts import (
    Clock,
    MarkedTrainer,
    Marks,
    divided,
    parts_of,
)

CPU = torch.device("cpu")
SHORT, LONG = 0.01, 0.2


@pytest.fixture
def passes(monkeypatch):
    """Time passes in marks and profiles when this says so, and stands still otherwise."""
    now = [0.0]

    def read():
        return now[0]

    told = SimpleNamespace(perf_counter=read, process_time=read)
    for module in (step_parts, profiling):
        monkeypatch.setattr(module, "time", told)

    def passes(seconds):
        now[0] += seconds

    return passes


@given(st.integers(1, 5), st.integers(1, 7), st.randoms(use_true_random=False))
def test_the_parts_are_the_time_of_the_ranks(ranks, steps, random):
    values = [random.random() for _ in range(ranks * steps * 3)]
    seconds = torch.tensor(values, dtype=torch.float64).reshape(ranks, steps, 3)
    parts = divided(seconds)
    assert parts.seconds == pytest.approx(float(seconds.sum(-1).mean()))
    assert min(vars(parts).values()) >= 0
    assert parts.reading == pytest.approx(float(seconds[..., 0].mean()))


def test_who_comes_last_waits_for_nobody():
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


def test_a_step_without_a_mark_is_left_out_on_all_ranks():
    seconds = torch.tensor([[[1.0, 1.0, 1.0], [9.0, 9.0, 9.0]], [[1.0, 1.0, 2.0], [torch.nan] * 3]])
    parts = divided(seconds.double())
    assert (parts.reading, parts.computing) == (1.0, 1.0)
    assert (parts.exchanging, parts.waiting) == (1.0, 0.5)


def test_marks_time_what_happens_where_it_happens(tmp_path, alloy_store, passes):
    """A step that is slow in one place is slow in that part, by so much, and in no other."""
    trainer = MarkedTrainer(make_spec(tmp_path / "t", alloy_store, 1), alloy_store, CPU, World())
    trainer.model.train()

    def taken(slow):
        """Reading, computing and what follows, of each step but the first."""
        steps = trainer.plan(0)[:4]

        def batches():
            for step, pieces in zip(steps, trainer.micro_batches(steps), strict=True):
                passes(LONG if slow == "reading" else 0.0)
                yield step, pieces

        marks, source = Marks(Clock(CPU)), batches()
        delay = LONG if slow == "computing" else 0.0
        hook = trainer.model.register_forward_pre_hook(lambda *_: passes(delay))
        with trainer.marking(marks):
            for _ in steps:
                trainer.marked_step(source)
        hook.remove()
        seconds = marks.seconds()
        assert seconds[0].isnan().all() and not seconds[1:].isnan().any()
        found = parts_of(seconds, World(), CPU)
        assert found.exchanging == found.waiting == 0.0
        assert found.seconds == pytest.approx(float(seconds[1:].sum(-1).mean()))
        return seconds[1:].tolist()

    assert taken("reading") == [pytest.approx([LONG, 0.0, 0.0])] * 3
    assert taken("computing") == [pytest.approx([0.0, LONG, 0.0])] * 3


def test_marks_change_nothing_that_is_trained(tmp_path, alloy_store):
    def trained(is_marked):
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
def test_a_profile_says_what_a_step_waits_for(tmp_path, alloy_store, monkeypatch, passes, slow):
    delays = {"reading": SHORT, "computing": SHORT} | {slow: LONG}
    read, step = MarkedTrainer.micro_batches, MarkedTrainer.train_step

    def slowly_read(trainer, steps):
        for pieces in read(trainer, steps):
            passes(delays["reading"])
            yield pieces

    def slowly_taken(trainer, *of):
        passes(delays["computing"])
        return step(trainer, *of)

    monkeypatch.setattr(MarkedTrainer, "micro_batches", slowly_read)
    monkeypatch.setattr(MarkedTrainer, "train_step", slowly_taken)
    spec = make_spec(tmp_path / "t", alloy_store, 1, traced=True, attempt="a")
    profile = profile_training(spec, alloy_store, CPU, seconds=0.1)
    assert [*profile.timings] == [REAL, MARKED, CACHED, LOADER]
    assert vars(profile.parts) == pytest.approx(delays | {"exchanging": 0.0, "waiting": 0.0})
    assert (
        answer(profile)
        .split(":")[0]
        .endswith(
            {"reading": "of the step waits for data", "computing": "of the step computes"}[slow]
        )
    )
    assert profile.timings[LOADER].seconds == pytest.approx(delays["reading"])
    assert profile.timings[CACHED].seconds == pytest.approx(delays["computing"])
    assert profile.timings[REAL].seconds == pytest.approx(sum(delays.values()))
    assert profile.closure == pytest.approx(0.0, abs=1e-9)
    train = alloy_store["trainset"]
    steps = -(-len(train) // 4)
    assert profile.graphs == pytest.approx(len(train) / steps)
    assert profile.atoms == pytest.approx(train.n_atoms.sum() / steps)
    assert profile.edges == pytest.approx(train.n_edges.sum() / steps)
    assert TrainingProfile.from_dict(profile.to_dict()) == profile
    content = spec.trace.read_text()
    assert '"traceEvents"' in content and "autograd::engine" in content


def test_parts_alone_are_measured_in_two_modes(tmp_path, alloy_store):
    spec = make_spec(tmp_path / "t", alloy_store, 1, parts_only=True)
    assert [*profile_training(spec, alloy_store, CPU, seconds=0.01).timings] == [REAL, MARKED]


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_peaks_are_rates(precision):
    """How high they are, a quiet machine says and a busy one does not."""
    peaks = measured_peaks(CPU, precision)
    assert 0 < peaks.flops < math.inf and 0 < peaks.bytes < math.inf


def test_the_roofline_is_a_roof():
    peaks = Peaks(flops=100.0, bytes=10.0)
    assert [peaks.attainable(intensity) for intensity in (1.0, 10.0, 1000.0)] == [
        10.0,
        100.0,
        100.0,
    ]
