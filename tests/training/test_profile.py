"""Parts of a training step: what waits, what is on the way, and that nothing is left out."""

import time
from dataclasses import asdict
from types import SimpleNamespace

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from segment_cases import make_spec
from training_cases import CPU, trainer_of

from hydragnn_flow.training import profile as profiling
from hydragnn_flow.training.monitor import Stopped
from hydragnn_flow.training.profile import MarkedTrainer, divided, profile_training
from hydragnn_flow.training.profile_result import TrainingProfile
from hydragnn_flow.training.trainer import Trainer

SHORT, LONG = 0.01, 0.2


@given(st.integers(1, 5), st.integers(1, 7), st.randoms(use_true_random=False))
def test_the_parts_are_the_time_of_the_ranks(ranks, steps, random):
    values = [random.random() for _ in range(ranks * steps * 3)]
    seconds = torch.tensor(values, dtype=torch.float64).reshape(ranks, steps, 3)
    parts = divided(seconds)
    assert parts.seconds == pytest.approx(float(seconds.sum(-1).mean()))
    assert min(vars(parts).values()) >= 0
    assert parts.reading == pytest.approx(float(seconds[..., 0].mean()))


def test_who_comes_last_waits_for_nobody():
    # Steps of three ranks, which take 2 s to exchange; another rank is late in each. The last step
    # lacks a mark on one rank, and counts on none.
    seconds = torch.tensor(
        [
            [[0.0, 1.0, 7.0], [1.0, 1.0, 2.0], [9.0, 9.0, 9.0]],
            [[0.0, 6.0, 2.0], [0.0, 1.0, 3.0], [torch.nan] * 3],
            [[0.0, 1.0, 7.0], [0.0, 1.0, 3.0], [9.0, 9.0, 9.0]],
        ]
    )
    parts = divided(seconds.double())
    assert parts.exchanging == 2.0
    assert parts.waiting == pytest.approx((5 + 0 + 5 + 0 + 1 + 1) / 6)


def test_marks_change_nothing_that_is_trained(tmp_path, alloy_store):
    trained = []
    for kind in (MarkedTrainer, Trainer):
        trainer = trainer_of(tmp_path / kind.__name__, alloy_store, 1, kind)
        steps = trainer.plan(0)[:3]
        source = trainer.micro_batches(steps)
        for step in steps:
            if isinstance(trainer, MarkedTrainer):
                trainer.marked_step(step, source)
            else:
                trainer.train_step(step, next(source))
        trained.append([weight.detach() for weight in trainer.parallel.weights])
    assert all(map(torch.equal, *trained))


@pytest.mark.parametrize("slow", ["reading", "computing"])
def test_a_profile_says_where_the_time_of_a_step_goes(tmp_path, alloy_store, monkeypatch, slow):
    """A step that is slow in one place is slow in that part, by so much, and in no other."""
    now, read = [0.0], MarkedTrainer.micro_batches
    clock = SimpleNamespace(perf_counter=lambda: now[0], process_time=time.process_time)
    monkeypatch.setattr(profiling, "time", clock)
    delays = {"reading": SHORT, "computing": SHORT} | {slow: LONG}

    def passes(part):
        now[0] += delays[part]

    def slowly_read(trainer, steps):
        for pieces in read(trainer, steps):
            passes("reading")
            yield pieces

    class Slow(MarkedTrainer):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.model.register_forward_pre_hook(lambda *_: passes("computing"))

    monkeypatch.setattr(MarkedTrainer, "micro_batches", slowly_read)
    monkeypatch.setattr(profiling, "MarkedTrainer", Slow)
    changes = {"traced": True, "attempt": "a", "seconds": 1.0}
    spec = make_spec(tmp_path / "t", alloy_store, 1, **changes)
    profile = profile_training(spec, alloy_store, CPU)
    assert vars(profile.parts) == pytest.approx(delays | {"exchanging": 0.0, "waiting": 0.0})
    assert profile.seconds == pytest.approx(sum(delays.values()))
    assert 1.0 <= profile.steps * profile.seconds < 3.0
    train = alloy_store["trainset"]
    steps = -(-len(train) // 4)
    assert (profile.graphs, profile.atoms, profile.edges) == pytest.approx(
        (len(train) / steps, train.n_atoms.sum() / steps, train.n_edges.sum() / steps)
    )
    assert msgspec.convert(asdict(profile), TrainingProfile) == profile
    content = spec.trace.read_text()
    assert '"traceEvents"' in content and "autograd::engine" in content
    with pytest.raises(Stopped, match="while it measured"):
        profile_training(spec, alloy_store, CPU, should_stop=lambda: True)
