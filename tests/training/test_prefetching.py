"""Batches made ahead of the steps by a thread, as they are for an accelerator; here on a CPU."""

import threading
from contextlib import closing

import pytest
from segment_cases import make_spec
from test_resuming import EPOCHS, trained
from training_cases import CPU, same, stops_at

from hydragnn_flow.data import GraphStore
from hydragnn_flow.errors import StoreError
from hydragnn_flow.training import loading
from hydragnn_flow.training.loading import AHEAD, THREAD, on_device
from hydragnn_flow.training.runner import run_segment


@pytest.fixture
def ahead(monkeypatch):
    """Have batches made by the thread."""
    monkeypatch.setattr(loading, "reads_ahead", lambda device: True)


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(THREAD)]


@pytest.mark.parametrize("mode", ["memory", "stream"])
def test_a_training_is_the_same_bit_for_bit(tmp_path, blocks, mode, monkeypatch):
    """Stopped within an epoch, at its end and within its evaluation, it goes on in its place."""
    with GraphStore.open(blocks, mode) as store:
        expected = trained(tmp_path / "asked", store, "as it comes")
        monkeypatch.setattr(loading, "reads_ahead", lambda device: True)
        found = trained(tmp_path / "ahead", store, "as it comes", (2, 4, 7, 8, 15))
    assert same(found, expected)
    assert not threads()


def endless(alloy_store, made):
    try:
        while True:
            made.append(len(made))
            yield alloy_store["trainset"].batch([made[-1] % 10])
    finally:
        made.append(-1)


@pytest.mark.usefixtures("ahead")
def test_few_are_made_ahead_and_none_once_it_is_left(alloy_store):
    made: list[int] = []
    with closing(on_device(endless(alloy_store, made), CPU)) as batches:
        for number in range(5):
            batch = next(batches)
            assert batch.num_nodes == alloy_store["trainset"].n_atoms[number] == batch.largest_graph
            assert len(made) <= number + 1 + AHEAD
        assert threads()
    assert made[-1] == -1
    assert not threads()


@pytest.mark.usefixtures("ahead")
def test_what_goes_wrong_there_comes_through_by_its_name(alloy_store):
    def damaged():
        yield alloy_store["trainset"].batch([0])
        raise StoreError("shard 3 is damaged")

    with closing(on_device(damaged(), CPU)) as batches:
        next(batches)
        with pytest.raises(StoreError, match="shard 3 is damaged"):
            next(batches)
    assert not threads()


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize("at", [3, 7])
def test_a_segment_that_stops_leaves_no_thread(tmp_path, alloy_store, at):
    """Within an epoch, and while it predicts."""
    spec = make_spec(tmp_path / "t", alloy_store, 1)
    assert run_segment(spec, should_stop=stops_at(at)).status == "interrupted"
    assert not threads()
    assert run_segment(make_spec(tmp_path / "t", alloy_store, EPOCHS)).status == "ok"
    assert not threads()
