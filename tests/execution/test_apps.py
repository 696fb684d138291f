"""Apps of a Parsl script, and a campaign among them, on workers of this machine."""

import json
import logging
import os
import time
from pathlib import Path

import parsl
import pytest
import yaml
from parsl import bash_app, python_app
from parsl.executors.errors import InvalidResourceSpecification
from parsl.monitoring import MonitoringHub
from pool_cases import site

from hydragnn_flow import CampaignStopped, InputError, SiteExecutor, campaign_app


@python_app
def square(x):
    return x * x


@python_app
def wrong():
    raise ValueError("no such thing")


@python_app
def unreadable():
    class Code(Exception):
        def __init__(self, code, text):
            super().__init__(text)

    raise Code(3, "no such thing")


@python_app
def die(file):
    import os

    with file.open("a", encoding="utf-8") as tries:
        tries.write(".")
    os._exit(3)


@bash_app
def shell(stdout=None):
    return "echo done by a shell"


@python_app
def trials(done):
    return (done.run_directory / "trials.csv").read_text().count("complete")


@pytest.fixture(autouse=True)
def _tests_are_importable(monkeypatch):
    tests = str(Path(__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")]))


def write(folder: Path) -> Path:
    values = {
        "name": "function",
        "search": {
            "objective": "own_objective:quadratic",
            "trials": 6,
            "epochs": 1,
            "rungs": "none",
            "space": {"x": {"float": [0.0, 1.0]}},
        },
    }
    (file := folder / "function.yaml").write_text(yaml.safe_dump(values))
    return file


def test_apps_and_a_campaign_share_the_workers(tmp_path):
    executor = SiteExecutor(site(gcds=2), tmp_path / "script")
    with pytest.raises(InputError, match=r"parsl\.load"):
        campaign_site = executor.site.shared
        campaign_site(tmp_path / "early")
    runs = str(tmp_path / "runinfo")
    hub = MonitoringHub(workflow_name="apps")
    with parsl.load(parsl.Config(executors=[executor], monitoring=hub, run_dir=runs)):
        first = square(2)
        done = campaign_app(write(tmp_path), executor.site, tmp_path / "run", inputs=[first])
        last = trials(done)
        others = [square(number) for number in range(4)]
        assert first.result() == 4
        with pytest.raises(ValueError, match="no such thing"):
            wrong().result()
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            unreadable().result()
        shell(stdout=str(tmp_path / "said")).result()
        assert (tmp_path / "said").read_text() == "done by a shell\n"
        with pytest.raises(InvalidResourceSpecification):
            executor.submit(square, {"cores": 2})
        with pytest.raises(InputError, match="is being worked on"):
            SiteExecutor(site(), tmp_path / "script").start()
        assert [one.result() for one in others] == [0, 1, 4, 9]
        assert last.result() == 6
        with pytest.raises(InputError, match="batch jobs of its own"):
            campaign_app(write(tmp_path), site(), tmp_path / "other").result()
    assert json.loads((tmp_path / "run" / "workers.json").read_text())["blocks"] == []
    log = (tmp_path / "run" / "driver.log").read_text()
    assert "driver ended" in log
    assert logging.getLogger("hydragnn_flow").propagate
    with pytest.raises(CampaignStopped, match="start the script again"):
        executor.submit(square, {})


def test_a_script_that_ends_early_does_not_wait_for_its_campaign(tmp_path):
    executor = SiteExecutor(site(gcds=1), tmp_path / "script")
    began = time.monotonic()
    with parsl.load(parsl.Config(executors=[executor], run_dir=str(tmp_path / "runinfo"))):
        config = yaml.safe_load(write(tmp_path).read_text())
        config["search"]["space"]["pause"] = {"choices": [3600]}
        (tmp_path / "function.yaml").write_text(yaml.safe_dump(config))
        done = campaign_app(tmp_path / "function.yaml", executor.site, tmp_path / "run")
        while not (tmp_path / "run" / "trials" / "0" / "lock").exists():
            assert not done.done()
            time.sleep(0.1)
    assert time.monotonic() - began < 300
    with pytest.raises(CampaignStopped):
        done.result()


@pytest.mark.slow
def test_an_app_that_kills_its_process_is_tried_three_times(tmp_path):
    executor = SiteExecutor(site(gcds=1), tmp_path / "script")
    with (
        parsl.load(parsl.Config(executors=[executor], run_dir=str(tmp_path / "runinfo"))),
        pytest.raises(CampaignStopped, match="failed 3 times"),
    ):
        die(tmp_path / "tries").result()
    assert (tmp_path / "tries").read_text() == "..."
