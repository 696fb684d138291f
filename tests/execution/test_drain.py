"""When a node takes no more tasks."""

import pytest

from hydragnn_flow.execution.pools.agent import in_time

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("given", "seconds_left", "drains_after"),
    [
        ("7110", 7200, "7110"),
        ("7110", 6900, "6810"),  # the environment took 300 s to come
        ("270", 300, "270"),
        ("54", 60, "40"),  # segments stop seconds before the end
        ("108", 0, "1"),
        ("None", 7200, "None"),
    ],
)
def test_a_pool_drains_before_the_end_of_its_job_however_late_it_starts(
    given, seconds_left, drains_after, monkeypatch
):
    monkeypatch.setenv("HYDRAGNN_FLOW_JOB_END", str(int(NOW) + seconds_left))
    others = ["--hb_period=15", "-a", "10.0.0.1"]
    expected = [*others, f"--drain_period={drains_after}"]
    assert in_time([*others, f"--drain_period={given}"], NOW) == expected


def test_a_job_without_an_end_drains_as_parsl_says(monkeypatch):
    monkeypatch.delenv("HYDRAGNN_FLOW_JOB_END", raising=False)
    assert in_time(["--drain_period=60"], NOW) == ["--drain_period=60"]
