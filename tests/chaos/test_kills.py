"""The driver is killed at every stage of a run; the same command goes on, and nothing is lost.

It is killed while segments run in tests/test_campaign.py, and at random moments of a search in
test_search_kills.py.
"""

import pytest
from campaign_cases import MEMBERS, TRIALS, write_config
from driver_cases import (
    PATIENCE,
    Reached,
    assert_every_segment_ended_once,
    lines,
    member_lines,
    start,
    start_until,
)

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

    assert_every_segment_ended_once(run, TRIALS, MEMBERS, [2, 6])
    assert (run / "report.html").exists()
    assert (run / "predictions" / "test.csv").exists()
