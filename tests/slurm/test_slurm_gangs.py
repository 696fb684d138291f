"""Ranks on several nodes compute what one process computes."""

import json
import re
import sys

import pandas as pd
import pytest
from cluster import INTERFACE, PARTITION
from published_configs import BRIDGES, IMPORTS
from slurm_cases import SPACE, write_campaign, write_site
from slurm_runs import PATIENCE, Campaign

pytestmark = pytest.mark.slurm

# Sums of the same numbers in another order, after some epochs of training in single precision.
ROUNDING = 2e-3


def test_the_workflow_gives_the_numbers_of_one_process(cluster, tmp_path):
    # Every step has two structures for each of four ranks, which are on two nodes.
    space = SPACE | {
        "Resources.gcds": {"choices": [1, 4]},
        "Training.batch_size": {"choices": [8]},
        "Training.sharding.strategy": {"choices": ["NO_SHARD", "FULL_SHARD", "HYBRID_SHARD"]},
    }
    training = {"sharding": {"group": 2}}
    for name in ("gangs", "alone"):
        (tmp_path / name).mkdir()
        # Suggestions that do not depend on the order in which trials end.
        write_campaign(
            *(tmp_path / name, 8, 6),
            space=space,
            training=training,
            sampler="random",
            member_epochs=4,
        )
    site = write_site(tmp_path, gcds=2)
    gangs = Campaign(cluster, tmp_path / "gangs/small.yaml", site)
    gangs.start(workflow=True)
    gangs.finish()
    wide = [result for result in gangs.results() if len(result.gcds) > 1]
    assert wide, "no gang"
    strategies = {
        trial.parameters["Training.sharding.strategy"]
        for trial in gangs.trials()
        if trial.parameters["Resources.gcds"] > 1
    }
    assert len(strategies) > 1
    for gang in wide:
        assert len({node for node, _ in gang.places}) == 2
        assert len(gang.gcds) == 4

    alone = Campaign(cluster, tmp_path / "alone/small.yaml", "local")
    alone.start("taskset", "-c", "0")  # of one core the local site makes one GCD
    alone.finish()
    assert {len(result.gcds) for result in alone.results()} == {1}
    for one, other in zip(gangs.trials(), alone.trials(), strict=True):
        assert one.parameters == other.parameters
        assert one.value == pytest.approx(other.value, rel=ROUNDING)
    chosen = [
        [member["trial"] for member in json.loads(file.read_text())["members"]]
        for file in (run.path / "ensemble/ensemble.json" for run in (gangs, alone))
    ]
    assert chosen[0] == chosen[1]
    for table in ("test.csv", "test_nodes.csv"):
        one, other = (pd.read_csv(run.path / "predictions" / table) for run in (gangs, alone))
        pd.testing.assert_frame_equal(one, other, rtol=ROUNDING, atol=ROUNDING)


def test_the_check_of_a_site_has_two_nodes_exchange_data(cluster, tmp_path):
    site = write_site(tmp_path, nodes=2, blocks=1, gcds=2)
    check = f"exec {sys.executable} -m hydragnn_flow site check {site}"
    told = cluster.ask("sh", "-c", f"cd {tmp_path} && {check}", seconds=PATIENCE)
    for between in ("two GCDs of a node", "two nodes"):
        assert re.search(rf"{between} exchange \d+\.\d+ GB/s", told), told
    assert "is as it should be: nodes 2, GCDs 4" in told


def test_a_published_configuration_is_a_site_as_it_stands(cluster, tmp_path):
    """Parsl's for Bridges, with the names of this cluster's partition and network."""
    here = BRIDGES.replace("YOUR_PARTITION_NAME", PARTITION).replace("ens3f0", INTERFACE)
    (tmp_path / "bridges.py").write_text(IMPORTS + here)
    check = f"exec {sys.executable} -m hydragnn_flow site check bridges.py"
    told = cluster.ask("sh", "-c", f"cd {tmp_path} && {check}", seconds=PATIENCE)
    assert "bridges is as it should be: nodes 2, GCDs 2" in told
