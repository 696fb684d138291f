"""Training on data where they are: the same steps as on a copy of them."""

import pytest
from data_set_cases import branches
from in_place_cases import NAMES, prepared, three_sets
from segment_cases import make_spec, network_with

from hydragnn_flow.training.runner import run_segment


def test_a_segment_learns_the_same_in_place(tmp_path):
    """Two files of HydraGNN's and a store, a branch each: errors differ by rounding alone."""
    sources = three_sets(tmp_path)
    network = network_with(Architecture__output_heads={"node": branches(3)})
    found = {}
    for name, in_place, mode in (
        ("copies", False, "memory"),
        ("there", True, "memory"),
        ("there", True, "random"),
    ):
        store = prepared(tmp_path, sources, f"{name}.gs", in_place=in_place)
        spec = make_spec(tmp_path / f"{name}-{mode}", store, 2, network=network, mode=mode)
        result = run_segment(spec)
        assert result.status == "ok", result.reason
        found[name, mode] = result.metrics
    copies = found.pop(("copies", "memory"))
    for error in (f"{e}@{name}" for e in ("energy_mae", "forces_mae") for name in NAMES):
        for metrics in found.values():
            assert metrics[error] == pytest.approx(copies[error], rel=1e-3), error
