"""Noise that heads predict, from the members' training to the table of predictions."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from calibration_cases import calibrated
from campaign_cases import CONFIG
from segment_cases import make_spec, network_with

from hydragnn_flow import Ensemble, InputError
from hydragnn_flow.config import RunConfig
from hydragnn_flow.config.network import write_network
from hydragnn_flow.ensemble import FOLDER, Member, finish_ensemble, member_folder
from hydragnn_flow.ensemble.uncertainty.distribution import (
    combine,
    combine_noise,
    distribution,
    measured_coverage,
)
from hydragnn_flow.models import build_model
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.predict import predictions_in
from hydragnn_flow.training.runner import run_segment

EQUAL = np.full(3, 1 / 3)
HEAD = {"num_headlayers": 1, "dim_headlayers": [12]}
WITH_NOISE = network_with(
    Architecture__enable_interatomic_potential=False,
    Architecture__energy_peratom_weight=0.0,
    Architecture__force_weight=0.0,
    Architecture__output_heads={
        "graph": {"num_sharedlayers": 1, "dim_sharedlayers": 12, **HEAD},
        "node": HEAD,
    },
    Variables_of_interest={"output_names": ["energy", "forces"], "type": ["graph", "node"]},
    Training__loss_function_type="GaussianNLLLoss",
)


def synthetic(seed, n, factor):
    """Truth [n, 1], members, and noise that is too small by a factor, [3, n, 1]."""
    rng = np.random.default_rng(seed)
    noise = rng.lognormal(0.0, 1.0, size=(n, 1))
    truth = rng.normal(size=(n, 1)) * noise
    spread = 0.2 * rng.lognormal(0.0, 0.3, size=(n, 1))
    members = spread * rng.normal(size=(3, n, 1))
    return truth, members, np.stack([noise * share / factor for share in (0.9, 1.0, 1.1)])


def test_the_mean_of_variances_is_what_counts():
    noise = np.array([[[1.0]], [[2.0]], [[5.0]]])
    assert combine_noise(noise, EQUAL).item() == pytest.approx(np.sqrt(10))
    assert combine_noise(noise, np.array([0.0, 1.0, 0.0])).item() == pytest.approx(2.0)


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_noise_that_is_too_small_or_large_is_scaled(factor):
    truth, members, noise = synthetic(1, 20_000, factor)
    mean, spread = combine(members, EQUAL)
    found = calibrated(truth - mean, spread, noise=combine_noise(noise, EQUAL))
    assert found.deviations[0].floor == pytest.approx(factor, rel=0.05)
    assert found.scores[0][0].quantile(0.9) == pytest.approx(1.645, rel=0.03)


def test_intervals_follow_the_noise():
    """They hold their level among the certain and among the uncertain, as one width cannot."""
    truth, members, noise = synthetic(2, 8000, 1.0)
    half = slice(0, 4000), slice(4000, 8000)
    mean, spread = combine(members, EQUAL)
    inside = {}
    for told in (True, False):
        known = combine_noise(noise, EQUAL)[half[0]] if told else None
        found = calibrated((truth - mean)[half[0]], spread[half[0]], noise=known)
        given = noise[:, half[1]] if told else None
        d = distribution(members[:, half[1]], EQUAL, found, noise=given, coverage=0.9)
        assert measured_coverage(truth[half[1]], d) == pytest.approx(0.9, abs=0.02)
        held = (truth[half[1]] >= d.lo) & (truth[half[1]] <= d.hi)
        certain = noise[1, half[1]] < np.median(noise[1])
        inside[told] = [held[certain].mean(), held[~certain].mean()]
        assert (d.aleatoric_std is None) == (not told)
        if d.aleatoric_std is not None:
            np.testing.assert_allclose(d.std, np.hypot(d.epistemic_std, d.aleatoric_std))
    assert inside[True] == pytest.approx([0.9, 0.9], abs=0.03)
    assert inside[False][0] > 0.97 and inside[False][1] < 0.85


@pytest.fixture(scope="module")
def run(alloy_store, tmp_path_factory):
    """A finished ensemble of two members trained for three epochs on energies and forces."""
    directory = tmp_path_factory.mktemp("noise")
    trained = []
    for k in range(2):
        folder = member_folder(directory / FOLDER, k)
        write_network(folder, WITH_NOISE)
        result = run_segment(make_spec(folder, alloy_store, 3, network=WITH_NOISE, seed=k))
        assert result.status == "ok"
        trained.append(Member(k, k, result.best_val_error, result.best_val_loss, ["0"], 1.0, 1.0))
    config = RunConfig.model_validate({**CONFIG, "network": WITH_NOISE})
    finish_ensemble(directory, config.members, config.network_with({}), alloy_store, trained, {})
    return directory


def test_the_table_has_both_parts_of_the_deviation(run, alloy_store):
    """Members keep their noise beside their predictions; a loaded ensemble predicts it again."""
    folder = member_folder(run / FOLDER, 0)
    kept = predictions_in(load_checkpoint(folder / FILE), "valset")
    assert set(kept) == {"energy", "forces", "energy_aleatoric_std", "forces_aleatoric_std"}
    for name in ("energy", "forces"):
        assert kept[f"{name}_aleatoric_std"].shape == kept[name].shape
        assert (kept[f"{name}_aleatoric_std"] > 0).all()
    graphs = pd.read_parquet(run / "predictions" / "test.parquet")
    nodes = pd.read_parquet(run / "predictions" / "test_nodes.parquet")
    for table, columns in ((graphs, ["energy"]), (nodes, [f"forces_{c}" for c in "xyz"])):
        for t in columns:
            assert (table[f"{t}_aleatoric_std"] > 0).all()
            assert (table[f"{t}_epistemic_std"] > 0).any()
            total = np.hypot(table[f"{t}_epistemic_std"], table[f"{t}_aleatoric_std"])
            assert (table[f"{t}_std"] >= total * (1 - 1e-12)).all(), "the rest is extrapolation"
            assert np.isclose(table[f"{t}_std"], total).mean() > 0.5
            assert table[f"{t}_aleatoric_std"].std() > 0  # otherwise for each structure
            half = (table[f"{t}_hi"] - table[f"{t}_lo"]) / 2
            np.testing.assert_allclose(half / table[f"{t}_std"], (half / table[f"{t}_std"])[0])
    assert graphs.attrs["units"]["energy_aleatoric_std"] == "eV"
    summary = json.loads((run / FOLDER / "ensemble.json").read_text())
    told = summary["errors"]["energy per atom"]["aleatoric_std"]
    each = 1000 * graphs["energy_aleatoric_std"] / alloy_store["testset"].n_atoms
    assert told == pytest.approx(each.mean())
    again = Ensemble.load(run).predict(alloy_store, split="testset", members=True).graphs
    pd.testing.assert_frame_equal(again, graphs)


def test_members_of_which_one_predicts_no_noise(run, alloy_store):
    """Their predictions are combined as without, by a calibration as without."""
    ensemble = Ensemble.load(run)
    plain = {**WITH_NOISE, "Training": {**WITH_NOISE["Training"], "loss_function_type": "mse"}}
    mixed = replace(ensemble, models=(ensemble.models[0], build_model(plain, alloy_store)))
    with pytest.raises(InputError, match="calibration was made with the noise"):
        mixed.predict(alloy_store, split="testset")
    known = ensemble.calibrations
    calibrations = {name: replace(one, by_noise=False) for name, one in known.items()}
    table = replace(mixed, calibrations=calibrations).predict(alloy_store, split="testset").graphs
    assert "energy_aleatoric_std" not in table


def test_a_member_less_does_not_turn_an_error_into_a_factor_of_noise():
    """The calibration of members of which one predicts no noise has a floor in the data's units.

    Without that member the others have a noise, which is no size to multiply that floor by.
    """
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(200, 1))
    members = truth + 0.3 * rng.normal(size=(200, 1)) + 0.01 * rng.normal(size=(3, 200, 1))
    mean, spread = combine(members, EQUAL)
    found = calibrated(truth - mean, spread)
    left, equal = members[:2], np.full(2, 0.5)
    noises = None, np.full((2, 200, 1), 0.05)
    both = [distribution(left, equal, found, noise=noise, coverage=0.9) for noise in noises]
    without, given = both
    assert measured_coverage(truth, given) == pytest.approx(0.9, abs=0.05)
    assert given.aleatoric_std is None
    np.testing.assert_array_equal(given.std, without.std)
