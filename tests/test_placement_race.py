"""Trials of known cost through the real loop of a campaign, beside what no schedule can beat."""

import pytest
from placement_race import synthetic

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import prepare_store

GIB = 200.0


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    data = DataConfig.model_validate(synthetic.CONFIG["data"])
    return prepare_store(data, 4.0, None, 0, tmp_path_factory.mktemp("data") / "store.gs")


def test_few_trials_use_many_gcds(tmp_path, store):
    """A GCD each, they would wait for the longest; and what comes first is always the same."""
    trials, gcds = 40, 256
    fixed = synthetic.campaign(
        tmp_path / "fixed", store, trials, gcds, 56.0, sections={"resources": {"gcds": 1}}
    )
    free, again = (
        synthetic.campaign(tmp_path / name, store, trials, gcds, 56.0) for name in ("a", "b")
    )
    assert fixed.segments == trials
    assert fixed.seconds >= max(model.seconds for model in fixed.models)
    bounds = synthetic.Bounds.of(free.models, gcds)
    assert bounds.longest_of_any_width <= free.seconds < 0.35 * fixed.seconds
    assert (free.seconds, free.segments) == (again.seconds, again.segments)


@pytest.mark.parametrize("trials", [60, 300])
def test_no_campaign_is_shorter_than_the_bounds(tmp_path, store, trials):
    gcds = 32
    ran = synthetic.campaign(tmp_path / "run", store, trials, gcds, GIB)
    assert len(ran.models) == trials
    computing = sum(m.busy * m.seconds for m in ran.models) / gcds
    assert ran.seconds >= synthetic.Bounds.of(ran.models, gcds).longest_of_any_width
    assert ran.seconds >= computing and 0 < ran.busy <= 1
    assert ran.segments >= trials
    assert synthetic.fifo(ran.models, gcds) > 1.2 * ran.seconds
