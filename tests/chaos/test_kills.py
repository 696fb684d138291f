"""The driver is killed at every stage of a run; the same command goes on, and nothing is lost.

It is killed while segments run in tests/test_campaign.py, and at random moments of a search in
test_search_kills.py.
"""

from collections import Counter

import pytest
from campaign_cases import MEMBERS, TRIALS, write_config
from driver_cases import PATIENCE, Reached, lines, member_lines, start, start_until

from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import read_trials

# What the run directory shows at each moment of death, in the order of a run.
MOMENTS: dict[str, Reached] = {
    "while the store is being written": lambda run: any(run.glob("*store*")),
    "late in the search": lambda run: lines(run / "segments.jsonl") >= 7,
    "while a member trains": lambda run: (run / "ensemble/members/0/begun").exists(),
    "between members": lambda run: member_lines(run) >= 1,
    "while predictions are written": lambda run: (run / "predictions").exists(),
}


@pytest.mark.slow
@pytest.mark.xdist_group("kills")  # begins with the first
def test_killed_at_every_stage(tmp_path):
    config, run, log = write_config(tmp_path), tmp_path / "run", tmp_path / "output"
    for moment, reached in MOMENTS.items():
        driver = start_until(reached, moment, config, run, log)
        driver.kill()
        driver.wait()
    last = start(config, run, log)
    assert last.wait(timeout=PATIENCE) == 0, log.read_text()

    records = read_trials(run)
    assert [record.number for record in records] == list(range(TRIALS))
    assert {record.state for record in records} <= {"complete", "pruned"}, records
    results = list(RunDirectory(run).results())
    ended = Counter((r.kind, r.number, r.rung) for r in results if r.status == "ok")
    assert set(ended.values()) == {1}, "a segment was counted twice"
    assert {r.number for r in results if r.kind == "member"} == set(range(MEMBERS))
    for record in records:
        mine = [r for r in results if r.kind == "trial" and r.number == record.number]
        epochs = [(r.from_epoch, r.to_epoch) for r in mine if r.status == "ok"]
        assert all(start <= end for start, end in epochs)
        assert [end for _, end in epochs] == [2, 6][: len(epochs)]
    assert (run / "report.html").exists()
    assert (run / "predictions" / "test.csv").exists()
