"""HydraGNN's own accuracy test, at a quarter of its thresholds; with half its data in less time."""

import numpy as np
import pytest
from hydragnn_task import FEWER_GRAPHS, THRESHOLDS, THRESHOLDS_WITH_LENGTHS, network, write_task
from segment_cases import make_spec

from hydragnn_flow.training.checkpoints.checkpoint import load_checkpoint
from hydragnn_flow.training.predict import predict_batches, restore_model, split_batches
from hydragnn_flow.training.runner import run_segment


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return write_task(tmp_path_factory.mktemp("task") / "task.gs")


@pytest.fixture(scope="module")
def smaller_task(tmp_path_factory):
    return write_task(tmp_path_factory.mktemp("task") / "smaller.gs", FEWER_GRAPHS)


def _errors(task, folder, section):
    """Mean square and mean absolute error of each target on the test split after training."""
    spec = make_spec(folder, task, section["Training"]["num_epoch"], network=section)
    result = run_segment(spec)
    assert result.status == "ok", result.reason
    best = load_checkpoint(folder / "checkpoint.pt")["best"]
    test = task["testset"]
    model = restore_model(section, task.manifest, best)
    errors = {}
    for name, values in predict_batches(model, split_batches(test)).items():
        error = values - test.target(name)
        errors[name] = float(np.square(error).mean()), float(np.abs(error).mean())
    return errors


def _assert_within_a_quarter(thresholds, found):
    square, absolute = thresholds
    for name, (mean_square, mean_absolute) in found.items():
        assert mean_square < square / 4, name
        assert mean_absolute < absolute / 4, name


QUICK = ("EGNN", "PNA", "SchNet")


@pytest.mark.parametrize(
    "mpnn",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in THRESHOLDS],
)
def test_fewer_graphs_and_epochs_are_enough(mpnn, smaller_task, tmp_path):
    section = network(mpnn, False)
    slow_learner = {"num_epoch": 50, "batch_size": 16}
    section["Training"] |= slow_learner if mpnn == "SAGE" else {"num_epoch": 12}
    found = _errors(smaller_task, tmp_path, section)
    _assert_within_a_quarter(THRESHOLDS[mpnn], found)


@pytest.mark.slow
@pytest.mark.parametrize("mpnn", sorted(THRESHOLDS))
def test_a_quarter_of_hydragnns_thresholds_with_four_heads(mpnn, task, tmp_path):
    found = _errors(task, tmp_path, network(mpnn, multihead=True))
    _assert_within_a_quarter(THRESHOLDS[mpnn], found)


@pytest.mark.slow
@pytest.mark.parametrize("mpnn_type", sorted(THRESHOLDS_WITH_LENGTHS))
def test_with_lengths(mpnn_type, task, tmp_path):
    section = network(mpnn_type, False, edge_features=["lengths"])
    found = _errors(task, tmp_path, section)
    _assert_within_a_quarter(THRESHOLDS_WITH_LENGTHS[mpnn_type], found)
