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
