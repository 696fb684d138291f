"""When a node takes no more tasks."""

import pytest

from hydragnn_flow.execution.pools.agent import in_time

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("given", "job_end", "drains_after"),
    [
        ("7110", NOW + 7200, "7110"),
        ("7110", NOW + 6900, "6810"),  # the environment took 300 s to come
        ("54", NOW + 60, "40"),  # segments stop seconds before the end
        ("108", NOW, "1"),
        ("None", NOW + 7200, "None"),
        ("60", None, "60"),
    ],
)
def test_a_pool_drains_before_the_end_of_its_job_however_late_it_starts(
    given, job_end, drains_after, monkeypatch
):
    monkeypatch.setenv("HYDRAGNN_FLOW_JOB_END", "" if job_end is None else f"{job_end:.0f}")
    others = ["--hb_period=15", "-a", "10.0.0.1"]
    expected = [*others, f"--drain_period={drains_after}"]
    assert in_time([*others, f"--drain_period={given}"], NOW) == expected
