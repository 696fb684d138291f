"""What travels between the driver, a worker and the process that trains."""

import json
import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from segment_cases import make_spec, network_with

from hydragnn_flow.config import load_network
from hydragnn_flow.segment import (
    Call,
    Forecast,
    Place,
    Segment,
    SegmentResult,
    TrainingOutcome,
    read_segment,
)

NETWORKS = {
    "a potential": network_with(),
    "its energy by another name": network_with(Variables_of_interest__output_names=["graph_e"]),
    "keys without effect": network_with(Training__perc_train=0.7, Architecture__dropout=None),
    "another word for a precision": network_with(Training__precision="FP64"),
    "a budget": network_with(Training__Batching={"mode": "node_budget", "max_nodes": 99}),
    "a schedule": network_with(Training__Scheduler={"type": "cosine", "warmup_epochs": 2}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_segment_is_the_same_in_another_process(tmp_path, name):
    spec = make_spec(tmp_path / "t", None, 3, network=NETWORKS[name], attempt="c", deadline=9.5)
    divided = replace(spec, network=spec.network.with_accumulation(3))
    assert divided.network != spec.network
    for sent in (spec, divided):
        assert read_segment(json.loads(json.dumps(sent.to_dict()))) == sent
        assert pickle.loads(pickle.dumps(sent)) == sent


def test_numpys_numbers_are_sent_and_what_json_has_no_type_for_is_named(tmp_path):
    values = {"seed": np.int64(3), "trivial_errors": {"energy": np.float64(0.5)}}
    spec = make_spec(tmp_path / "t", None, 3, **values)
    assert read_segment(json.loads(json.dumps(spec.to_dict()))) == spec
    call = Call(kind="call", number=0, directory="", function="a:b", argument={"of": tmp_path})
    with pytest.raises(TypeError, match="which JSON has no type for"):
        call.to_dict()


def test_a_network_as_json_has_no_key_that_was_not_given():
    network = network_with()
    written = load_network(network).to_json()
    for section in ("Architecture", "Variables_of_interest", "Training"):
        assert written[section].keys() == network[section].keys()


def test_a_result_is_composed_and_stays():
    segment = Segment(kind="trial", number=7, rung=1)
    outcome = TrainingOutcome(status="ok", to_epoch=4, best_val_loss=0.5, seconds=8.0)
    forecast = Forecast(together=1.5, planned_epochs=4, predicted_seconds=9.0)
    result = SegmentResult.of(segment, outcome, Place(node="n1", gcds=["0", "n2/1"]))
    result = result.expected(forecast)
    assert (result.kind, result.number, result.rung, result.to_epoch) == ("trial", 7, 1, 4)
    assert result.places == [("n1", "0"), ("n2", "1")]
    assert (result.together, result.predicted_seconds) == (1.5, 9.0)
    with pytest.raises(FrozenInstanceError):
        result.status = "lost"


def test_a_segment_cut_short_has_taken_the_time_until_now(monkeypatch):
    monkeypatch.setattr("time.time", lambda: 100.0)  # wherever it was set meanwhile
    monkeypatch.setattr("time.perf_counter", lambda: 37.0)
    known = TrainingOutcome.cut_short("killed", "by SIGKILL", 7.0)
    assert (known.status, known.reason) == ("killed", "by SIGKILL")
    assert (known.started, known.ended, known.seconds) == (70.0, 100.0, 30.0)
    unknown = TrainingOutcome.cut_short("lost", "its node was lost")
    assert (unknown.started, unknown.ended, unknown.seconds) == (100.0, 100.0, 0.0)
