"""A campaign as HydraGNN's users run them: several `.bp` files, branches, budgets in steps."""

import json

import pytest
from campaign_cases import CONFIG, write_config
from data_set_cases import CUTOFF, FAR, PLAIN, alloys, shifted
from slurm_cases import SPACE, write_site
from slurm_runs import Campaign, assert_nothing_lost_or_repeated

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import prepare_store

pytestmark = pytest.mark.slurm

TRIALS, EPOCHS, STEPS = 6, 6, 180
TARGETS = {"energy": "eV", "forces": "eV/Å"}


def bp_file(folder, name, source):
    """A data set in HydraGNN's layout; its name relative to the folder."""
    values = {"source": source, "split": {"val": 0.3, "test": 0.3}, "path": folder}
    prepare_store(DataConfig.model_validate(values), CUTOFF, None, 0, folder / name)
    (shard,) = (folder / name).glob("*.bp")
    return str(shard.relative_to(folder))


@pytest.mark.slow
def test_several_files_in_steps_with_branches_through_a_killed_driver(cluster, tmp_path):
    sources = [
        {"name": name, "format": "hydragnn", "file": bp_file(tmp_path, name, source)}
        for name, source in ((PLAIN, alloys(40)), (FAR, shifted(tmp_path)))
    ]
    sources = [{**source, "targets": TARGETS} for source in sources]
    network = json.loads(json.dumps(CONFIG["network"]))
    network["Training"] |= {"num_epoch": EPOCHS, "batch_size": 4}
    config = write_config(
        tmp_path,
        data={"sources": sources, "sampling": "equal", "path": str(tmp_path)},
        network=network,
        search={
            "trials": TRIALS,
            "min_epochs": 2,
            "reduction_factor": 3,
            "budget": {"steps": STEPS},
            "space": {**SPACE, "Architecture.output_heads.node.dim_headlayers": {"int": [4, 12]}},
        },
        ensemble={"size": 2, "epochs": round((STEPS + 30) / STEPS * EPOCHS), "coverage": 0.8},
    )
    campaign = Campaign(cluster, config, write_site(tmp_path, nodes=2, blocks=1, gcds=2))
    for ended in (0, 3):
        campaign.start()
        campaign.wait_for("results", lambda ended=ended: len(campaign.results()) >= ended)
        with campaign.held(1):
            campaign.kill()
    campaign.start()
    campaign.finish()
    assert_nothing_lost_or_repeated(campaign, TRIALS, [2, EPOCHS])
    for result in campaign.results():
        if result.status == "ok" and not result.from_step:
            assert result.steps == STEPS // EPOCHS * (result.to_epoch - result.from_epoch)
            assert f"energy_mae_per_atom@{FAR}" in result.metrics
    summary = json.loads((campaign.seen / "ensemble" / "ensemble.json").read_text())
    assert summary["data_sets"].keys() == {PLAIN, FAR}
    for errors in summary["data_sets"].values():  # meV per atom, of levels 1,000 eV apart
        assert errors["energy per atom"]["mae"]["ensemble"]["value"] < 1000
