"""Segments that are asked to stop at a checkpoint, so that they can be placed anew."""

import pytest
from segment_cases import changed, make_spec
from trainer_cases import LONG, NODE, Running, checkpoint, run_alone, trainer_of, two_ranks

from hydragnn_flow.execution import Rank
from hydragnn_flow.execution.workers.worker import release

pytestmark = pytest.mark.xdist_group("trainers")  # which are warm from file to file


def test_a_released_segment_ends_with_a_checkpoint_and_its_process_goes_on(tmp_path, alloy_store):
    spec = make_spec(tmp_path / "t", alloy_store, LONG, attempt="first")
    running = Running([Rank(spec, gcd=0)])
    checkpoint(spec.folder)
    release("another")
    release("first")
    (result,) = running.results()
    assert result.status == "interrupted" and result.reason.startswith("asked to stop")
    assert (spec.folder / result.checkpoint).exists()
    assert result.to_epoch > 0
    process = trainer_of(0)._process.pid
    following = changed(spec, attempt="second", until_epoch=result.to_epoch + 2)
    again = run_alone(Rank(following, gcd=0))
    assert (again.status, again.to_epoch) == ("ok", result.to_epoch + 2)
    assert again.from_epoch == result.to_epoch
    assert trainer_of(0)._process.pid == process


def test_the_ranks_of_a_released_gang_end_as_one(tmp_path, alloy_store):
    spec = make_spec(tmp_path / "t", alloy_store, LONG)
    ranks = two_ranks(spec)
    running = Running(ranks)
    checkpoint(spec.folder)
    release(ranks[0].spec.attempt)
    results = running.results()
    assert [result.status for result in results] == ["interrupted"] * 2
    assert results[0].to_epoch == results[1].to_epoch > 0
    assert NODE.gcds == ("0", "1")


def test_a_segment_that_is_released_before_it_comes_stops_at_once(tmp_path, alloy_store):
    spec = make_spec(tmp_path / "t", alloy_store, LONG, attempt="to come")
    release("to come")
    result = run_alone(Rank(spec, gcd=0))
    assert result.status == "interrupted" and result.reason.startswith("asked to stop")
    assert run_alone(Rank(changed(spec, attempt="after", until_epoch=1), gcd=0)).status == "ok"
