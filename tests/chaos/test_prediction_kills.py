"""A prediction on a site is killed, driver or worker; the same command goes on, nothing is lost."""

import time

import ase.io
import pytest
from ase.build import bulk
from driver_cases import PATIENCE, command_of, command_on_two_cores, family_of
from ensemble_cases import untrained_ensemble

from hydragnn_flow import Ensemble
from hydragnn_flow.ensemble import write_predictions

STRUCTURES = 9 * 1024 + 5


@pytest.mark.slow
@pytest.mark.xdist_group("prediction_kills")  # begins with the first
def test_killed_driver_and_trainer(tmp_path, alloy_store):
    run = untrained_ensemble(tmp_path / "run", alloy_store)
    file, log, out = tmp_path / "all.extxyz", tmp_path / "log", tmp_path / "out.csv"
    kinds = [bulk("Cu", a=3.5 + 0.01 * n) for n in range(64)]
    ase.io.write(file, [kinds[number % 64] for number in range(STRUCTURES)])
    words = ["predict", run, file, "-o", out, "--site", "local"]
    folder = tmp_path / ".out.csv.parts"

    def started(parts):
        driver = command_on_two_cores(words, log)
        give_up = time.monotonic() + PATIENCE
        while len(list(folder.glob("*/part-*"))) < parts:
            assert driver.poll() is None and time.monotonic() < give_up, log.read_text()
            time.sleep(0.02)
        return driver

    driver = started(2)
    driver.kill()
    driver.wait()
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*/part-*")}
    assert before and not out.exists()
    driver = started(len(before) + 1)
    trainers = [p for p in family_of(driver, folder) if "hydragnn_flow: " in command_of(p)]
    trainers[0].kill()
    kept = {path.name: path.stat().st_mtime_ns for path in folder.glob("*/part-*")}
    assert before.items() <= kept.items()
    assert driver.wait(timeout=PATIENCE) == 0, log.read_text()
    assert f"{STRUCTURES:,} structures" in log.read_text()
    write_predictions(Ensemble.load(run), file, [tmp_path / "one.csv"])
    assert out.read_bytes() == (tmp_path / "one.csv").read_bytes()
    assert not folder.exists()
