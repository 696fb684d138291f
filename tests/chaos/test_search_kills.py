"""A search of forty trials whose driver is killed at random moments, again and again."""

import random
import signal
import time
from collections import Counter
from typing import Any

import pytest
from campaign_cases import CONFIG, write_config
from driver_cases import PATIENCE, lines, start

from hydragnn_flow.config import load_config
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import read_trials

TRIALS, KILLS = 40, 5
SEARCH: dict[str, Any] = {
    "trials": TRIALS,
    "sampler": "auto",
    "min_epochs": 1,
    "reduction_factor": 3,
    "space": {
        "Architecture.mpnn_type": {"choices": ["SchNet", "EGNN"]},
        "Architecture.num_gaussians": {
            "int": [4, 8],
            "when": {"Architecture.mpnn_type": ["SchNet"]},
        },
        "Training.Optimizer.learning_rate": {"float": [1e-3, 1e-2], "log": True},
    },
}


@pytest.mark.slow
@pytest.mark.xdist_group("search_kills")  # begins with the first
def test_no_trial_is_lost_or_repeated(tmp_path):
    network = CONFIG["network"] | {"Training": CONFIG["network"]["Training"] | {"num_epoch": 3}}
    source = {"format": "emt_alloys", "structures": 30, "atoms": [8, 8]}
    config = write_config(
        tmp_path,
        network=network,
        search=SEARCH,
        data={"source": source, "split": {"val": 0.3, "test": 0.2}},
        ensemble={"size": 2, "epochs": 4, "coverage": 0.8},
    )
    run, log, chance = tmp_path / "run", tmp_path / "output", random.Random(0)
    ledger = run / "segments.jsonl"
    for kill in range(KILLS):
        driver, before = start(config, run, log), lines(ledger)
        # Now and then before it does anything; else in the midst of its work.
        more = 0 if kill % 5 == 1 else chance.randint(1, 8)
        give_up = time.monotonic() + PATIENCE
        while lines(ledger) < before + more and driver.poll() is None:
            assert time.monotonic() < give_up, log.read_text()
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 4 if more == 0 else 0.5))
        assert driver.poll() is None, f"ended before kill {kill}\n{log.read_text()}"
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    last = start(config, run, log)
    assert last.wait(timeout=PATIENCE) == 0, log.read_text()

    records = read_trials(run)
    results = [result for result in RunDirectory(run).results() if result.kind == "trial"]
    assert [record.number for record in records] == list(range(TRIALS))
    assert {record.state for record in records} <= {"complete", "pruned"}
    in_ledger = {(result.number, tuple(sorted(result.parameters.items()))) for result in results}
    assert in_ledger == {(r.number, tuple(sorted(r.parameters.items()))) for r in records}
    well = [result for result in results if result.status == "ok"]
    assert set(Counter((result.number, result.rung) for result in well).values()) == {1}
    rungs = (0, *load_config(config).rungs)
    for record in records:
        mine = [result for result in well if result.number == record.number]
        # Every epoch once: a segment that was sent again goes on from what the first one saved.
        assert [result.to_epoch for result in mine] == list(rungs[1 : len(mine) + 1])
        assert all(result.from_epoch >= rungs[result.rung] for result in mine)
        assert (record.state == "complete") == (len(mine) == len(rungs) - 1)
